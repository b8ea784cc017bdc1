"""Replicas of several ranks, led by a process of their own: a process group is a whole process's, so a test cannot lead one.

The leader is forked from a parent that has Megatron loaded, as the supervisor's trainers are.
"""

from __future__ import annotations

import hashlib
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from gyre_engine.training.mesh import Mesh
from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.replica import Hyper, ReplicaOptions
from tests.forks import FORKED

PATIENCE_S = 120.0


class LeaderGone(RuntimeError):
    """The leader ended instead of answering."""


class Leader:
    """A SpreadReplica in another process; its methods, and `call` for what else a test asks of it. Loaded at version 3."""

    def __init__(self, folder, mesh: Mesh, limit_s: float = 60.0, **options: Any) -> None:
        self.link, theirs = FORKED.Pipe()
        self.process = FORKED.Process(target=_lead, args=(theirs, folder, mesh, ReplicaOptions(**options), limit_s))
        self.process.start()
        theirs.close()
        self.shape = ModelShape.of_folder(folder)
        self.layout = self.answer()
        self.load(folder, 3)

    def __getattr__(self, method: str):
        return lambda *args, **kwargs: self.call(method, *args, **kwargs)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.link.send((method, args, kwargs))
        return self.answer()

    def answer(self) -> Any:
        """What the last call gave; raises what it raised."""
        try:
            assert self.link.poll(PATIENCE_S), "the leader does not answer"
            found = self.link.recv()
        except (EOFError, ConnectionError) as error:
            self.process.join(PATIENCE_S)
            raise LeaderGone(f"status {self.process.exitcode}") from error
        if isinstance(found, Exception):
            raise found
        return found

    def end(self) -> None:
        self.link.close()
        self.process.join(PATIENCE_S)
        if self.process.is_alive():
            self.process.kill()


def _lead(link: Connection, folder, mesh: Mesh, options: ReplicaOptions, limit_s: float) -> None:
    from gyre_engine.training.ranks.spread import SpreadReplica

    replica = SpreadReplica(ModelShape.of_folder(folder), mesh, options, limit_s=limit_s)
    link.send(replica.parameters.layout)
    extra = {
        "train": train,
        "updates": updates,
        "reference": scored,
        "ranks": lambda r: list(r._crew._pids.values()),
        "buffer": lambda r: r.gradient_buffer().copy(),
    }
    while True:
        try:
            method, args, kwargs = link.recv()
        except EOFError:
            return replica.close()
        try:
            found = extra[method](replica, *args) if method in extra else getattr(replica, method)(*args, **kwargs)
        except Exception as error:
            found = error
        link.send(found)


def scored(replica, folder, steps):
    from gyre_engine.training.reference import BorrowedReplica

    return BorrowedReplica(replica, folder).score(steps)


def train(replica, steps, loss) -> str:
    """Hash of the gradients, the optimizer's state and the weights of two updates."""
    from gyre_engine.training.optimizer.adamw import AdamW

    optimizer, digest = AdamW(replica.parameters, replica.shards()), hashlib.sha256()
    for _ in range(2):
        replica.zero()
        for step in steps:
            replica.accumulate(step, loss)
        gradient = np.array(replica.gradient_buffer())
        digest.update(gradient.tobytes())
        optimizer.apply(gradient, 2, Hyper(lr=1e-3, weight_decay=0.01))
        replica.version += 1
    digest.update(optimizer.state_hash().encode() + replica.export())
    return digest.hexdigest()


def updates(replica, gradients, hyper: Hyper, came_from: str = "", goes_to: str = "") -> tuple[str, bytes]:
    """Hash of the optimizer's state, and the weights, after updates by these gradients; the state is read and written where said."""
    from gyre_engine.training.optimizer.adamw import AdamW

    optimizer = AdamW(replica.parameters, replica.shards())
    if came_from:
        optimizer.restore(came_from)
    for gradient in gradients:
        optimizer.apply(gradient, 1, hyper)
        replica.version += 1
    if goes_to:
        optimizer.save(goes_to)
    return optimizer.state_hash(), replica.export()
