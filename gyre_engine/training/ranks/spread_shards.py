"""The optimizer's state over the ranks of a cell (ZeRO-1 on the flat weights): each has the moments, and masters, of its share.

The leader keeps the whole weights and the merged gradient. At an update each rank gets its run of the gradient and gives back its run
of the weights; the bytes are those of one process, because the same units are updated by the same code.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch.distributed as dist
from torch import Tensor

from gyre_engine.training.model.flat import FlatParameters, Unit, shares, span, units_of
from gyre_engine.training.optimizer import shard_store
from gyre_engine.training.optimizer.shard import Shard, Update
from gyre_engine.training.ranks.crew import Crew
from gyre_engine.training.ranks.rank import LEADER


class SpreadShards:
    """The leader's side; `whole`: its flat weights."""

    def __init__(self, whole: FlatParameters, crew: Crew, ranks: int) -> None:
        self._weights, self._crew = whole.weights, crew
        runs = shares(units_of(whole.layout, whole.decayed), ranks)
        self._own_run, self._runs = runs[LEADER], dict(enumerate(runs[1:], start=LEADER + 1))
        self._made: Shard | None = None

    @property
    def _shard(self) -> Shard:
        """The leader's share. As it is made, at the first use, the others get theirs: the weights are loaded by then."""
        if self._made is None:
            self._made = Shard(self._own_run, self._weights[slice(*span(self._own_run))])
            for rank, run, own in self._others():
                self._crew.tell(rank, "begin_shard", list(run))
                dist.send(own, rank)
                self._crew.answer(rank)
        return self._made

    def update(self, gradient: Tensor, update: Update) -> None:
        shard = self._shard
        for rank, run, _ in self._others():
            self._crew.tell(rank, "update_shard", update)
            dist.send(gradient[slice(*span(run))].to(shard.dtype), rank)
        shard.update(gradient[slice(*span(self._own_run))], update)
        for rank, _, own in self._others():
            dist.recv(own, rank)
            self._crew.answer(rank)

    def hashes(self) -> list[str]:
        found = self._shard.hashes()
        for rank in self._runs:
            self._crew.tell(rank, "shard_hashes")
        return found + [each for rank in self._runs for each in self._crew.answer(rank)]

    def save(self, url: str, number: int) -> None:
        shard = self._shard
        for rank in self._runs:
            self._crew.tell(rank, "save_shard", url, number)
        shard_store.save(url, shard.tensors(), number, alone=False)
        for rank in self._runs:
            self._crew.answer(rank)

    def restore(self, url: str) -> int:
        self._made = None
        shard, number = self._shard, shard_store.number(url)
        for rank in self._runs:
            self._crew.tell(rank, "load_shard", url, number)
        shard.take(shard_store.load(url, shard.blank()), number)
        for rank in self._runs:
            self._crew.answer(rank)
        return number

    def _others(self) -> Iterator[tuple[int, tuple[Unit, ...], Tensor]]:
        """The other ranks, the units of their shares, and their runs of the leader's weights; some may be empty."""
        for rank, run in self._runs.items():
            yield rank, run, self._weights[slice(*span(run))]
