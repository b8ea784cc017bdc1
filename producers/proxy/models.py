"""What a model's name stands for: the policy's desk, the desk of a frozen engine, or an upstream (learning.md, 12).

promises  a role switch of a cell touches nothing but the policy's desk
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from gyre_engine.events.cells import CellRole, CellStarted
from producers.proxy.call import Desk
from producers.proxy.exchange import unknown_model
from producers.proxy.router import Connect, Router
from producers.proxy.settings import POLICY, Frozen, Model, Upstream
from producers.proxy.upstream import UpstreamClient

ANY_OTHER = "*"
ABOVE_ALL = (1 << 62) - 1
"""Stands for a frozen engine's version and its room: no execution was dispatched later, its own queue bounds it."""


class Models:
    """State: one client an upstream and a router a frozen engine. Raises KeyMissing where an upstream's key is not there."""

    def __init__(
        self, names: Mapping[str, Model], policy: Desk, connect: Connect, environment: Mapping[str, str], *, limit_s: float
    ) -> None:
        self._limit_s = limit_s
        self._routers: list[Router] = [policy.router]
        self._upstreams: dict[Upstream, UpstreamClient] = {}
        self._behind = {name: self._open(model, policy, connect, environment) for name, model in names.items()}

    @property
    def names(self) -> list[str]:
        """The names that can be asked for."""
        return [name for name in self._behind if name != ANY_OTHER]

    def of(self, name: str) -> Desk | UpstreamClient:
        """What `name` stands for. Raises ProxyError (404)."""
        found = self._behind.get(name) or self._behind.get(ANY_OTHER)
        if found is None:
            raise unknown_model(name, sorted(self._behind))
        return found

    def forget(self, execution: str) -> None:
        """The execution is over."""
        for router in self._routers:
            router.forget(execution)

    async def close(self) -> None:
        """Close every engine client and every upstream."""
        routers, upstreams = self._routers, self._upstreams.values()
        await asyncio.gather(*[router.close() for router in routers], *[upstream.close() for upstream in upstreams])

    def _open(self, model: Model, policy: Desk, connect: Connect, environment: Mapping[str, str]) -> Desk | UpstreamClient:
        if isinstance(model, Upstream):
            if model not in self._upstreams:
                self._upstreams[model] = UpstreamClient(model, environment, limit_s=self._limit_s)
            return self._upstreams[model]
        if isinstance(model, Frozen):
            desk = _frozen(model, policy, connect)
            self._routers.append(desk.router)
            return desk
        assert model == POLICY
        return policy


def _frozen(model: Frozen, policy: Desk, connect: Connect) -> Desk:
    """A desk like the policy's, with a router of its own that knows one cell, which always samples."""
    router = Router(connect)
    cell = CellStarted(
        cell=f"frozen-{model.name}", position=0, incarnation="frozen", engine="frozen", engine_url=model.url, capacity=ABOVE_ALL,
        role=CellRole.SAMPLING, weight_version=ABOVE_ALL,
    )  # fmt: skip
    router.apply([cell])
    return replace(policy, router=router, untrainable=f"sampled by the frozen model {model.name!r}, not by the policy")
