"""The supervisor's side of the preloader: starts it, orders forks, hears of exits."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack

from infra.supervisor.children import start_ticks
from infra.supervisor.spec import ProcessSpec
from infra.supervisor.target import child_environment

PRELOADERS = {"preloader": ("torch", "megatron.core.models.gpt")}
"""Name -> what it imports once."""


class HeavyChild:
    """A process that the preloader forks; it has a pid as soon as the preloader says so (0 before)."""

    def __init__(self, nursery: Nursery, name: str) -> None:
        self.pid = 0
        self.name = name
        self.status: int | None = None
        self._nursery = nursery

    def poll(self) -> int | None:
        return self.status

    def signal(self, number: int, *, group: bool = False) -> None:
        if self.pid and self.status is None:
            self._nursery.send({"signal": self.pid, "number": int(number), "group": group})


class Nursery:
    """One preloader and its children. Belongs to the supervising thread."""

    def __init__(self, modules: Sequence[str], log_file: Path) -> None:
        ours, theirs = socket.socketpair()
        self.link = ours
        self._modules = tuple(modules)
        self.ready = False
        self.load_seconds = 0.0
        self.threads = 0
        self._answers = msgpack.Unpacker()
        self._born: dict[str, HeavyChild] = {}
        self._living: dict[int, HeavyChild] = {}
        with theirs, log_file.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "infra.supervisor.preloader", str(os.getpid()), str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=child_environment({}),
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        self.start = start_ticks(self.process.pid)

    def fork(self, spec: ProcessSpec, log_file: Path) -> HeavyChild:
        """Order a child; forked at once where the preloader is ready."""
        child = HeavyChild(self, spec.name)
        self._born[spec.name] = child
        args, env = dict(spec.args), child_environment(spec.env)
        self.send({"fork": spec.name, "target": spec.target, "args": args, "env": env, "log": str(log_file)})
        return child

    def send(self, message: dict[str, Any]) -> None:
        """Send an order; a preloader that is gone is noticed by `lost`."""
        try:
            self.link.sendall(msgpack.packb(message))
        except OSError:
            self.process.poll()

    def words(self) -> str:
        """How the import went, for the log."""
        return f"imported {', '.join(self._modules)} in {self.load_seconds:.1f} s" + (
            f"; it has {self.threads} threads, which forks do not copy" if self.threads > 1 else ""
        )

    def hear(self) -> bool:
        """Take in what the preloader said. Call when `link` is readable. Whether it has just become ready."""
        was_ready = self.ready
        try:
            data = self.link.recv(65536)
        except OSError:
            data = b""
        self._answers.feed(data)
        for message in self._answers:
            self._note(message)
        return self.ready and not was_ready

    def lost(self) -> int | None:
        """The preloader's exit status where it is gone; its children are then marked as killed, as the kernel has done."""
        status = self.process.poll()
        if status is not None:
            for child in [*self._living.values(), *self._born.values()]:
                child.status = -9 if child.status is None else child.status
            self._living.clear()
            self._born.clear()
        return status

    def close(self, seconds: float) -> None:
        """End the preloader (and with it what is left of its children)."""
        self.link.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _note(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self.ready, self.load_seconds, self.threads = True, message["ready"], message["threads"]
        elif "forked" in message:
            child = self._born.pop(message["forked"])
            child.pid = message["pid"]
            self._living[child.pid] = child
        elif message["ended"] in self._living:
            self._living.pop(message["ended"]).status = message["status"]
