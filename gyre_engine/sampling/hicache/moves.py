"""What SGLang's HTTP server lacks for KV that moves: who was interrupted, exports, imports, and the weights' version told in time.

promises  the stores are shut before the weights begin to change and opened when SGLang has said that they have, and that its cache is
          empty: what fails in between leaves them shut, which costs prefills and never a wrong page; every answer comes within a
          limit; a drained engine refuses requests at once, as they would wait there until it samples again

A middleware, so that no client of SGLang's has to know of it. A pause that would keep requests becomes one that hands them back:
SGLang 0.5.23 does not empty its cache while requests that it keeps look pages up in a storage backend.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gyre_engine.sampling.hicache import control
from gyre_engine.sampling.hicache.control import ControlLost, Json
from gyre_engine.sampling.kv import KvPart, KvTicket
from gyre_engine.sampling.rids import END_OF_RID

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

LEASE_SECONDS = 120.0
CONTROL_SECONDS = 10.0
READ_SECONDS = 70.0
"""Above what a rank may read for."""
FLUSH_SECONDS = 30.0
GENERATE = "/generate"
PAUSE, CONTINUE = "/pause_generation", "/continue_generation"
FROM_DISK = "/update_weights_from_disk"
CHANGES = ("/update_weights", "/begin_weight_update", "/end_weight_update", "/load_lora_adapter", "/unload_lora_adapter")
"""Beginnings of paths behind which the weights change; only FROM_DISK says to which version, in one call."""

logger = logging.getLogger(__name__)


class Engine(Protocol):
    """SGLang's own process of requests, as far as this needs it."""

    def in_flight(self) -> Mapping[str, Callable[[], list[int]]]:
        """Each request that has not ended: what gives its prompt and what it has sampled, also once it has ended."""
        ...

    async def pause(self) -> None:
        """Abort what is in flight and hold back what comes, until SGLang is told to go on."""
        ...

    async def flush(self, seconds: float) -> bool:
        """Forget all cached KV, once nothing is under way any more; whether it came to that in time."""
        ...


@dataclass(slots=True)
class Moves:
    """sockets: the folder in which the ranks listen; None where SGLang runs without the backend, so that there is no KV to move.

    refuses: whether new requests are, from a pause that aborts until the engine goes on
    """

    engine: Engine
    sockets: Path | None
    refuses: bool = False
    _interrupted: dict[str, list[int]] = field(default_factory=dict)

    async def drain(self, _: Json) -> Json:
        """{} -> {requests: [{rid, tokens}]}: abort all; which were interrupted, and how long they are."""
        self.refuses = True
        running = dict(self.engine.in_flight())
        await self.engine.pause()
        self._interrupted = {rid.removesuffix(END_OF_RID): ids() for rid, ids in running.items()}
        return {"requests": [{"rid": rid, "tokens": len(ids)} for rid, ids in self._interrupted.items()]}

    async def export(self, body: Json) -> Json:
        """{rid, lease?} of an interrupted request -> {ticket, tokens}; no ticket where nothing of it is kept."""
        ids = self._interrupted.get(str(body["rid"]))
        if not ids or self.sockets is None:
            return {"tokens": 0, "ticket": None}
        ask = {"do": "export", "ids": ids[:-1], "lease": float(body.get("lease", LEASE_SECONDS))}  # the last has no KV yet
        said = await self._all(ask, CONTROL_SECONDS)
        parts = [KvPart.from_fields(one["part"]) for one in said.values() if one["part"]]
        versions = {(one["version"], one["page_tokens"]) for one in said.values() if one["part"]}
        if not parts or len(parts) < len(said) or len(versions) > 1:
            await self._release(parts)
            return {"tokens": 0, "ticket": None}
        version, page_tokens = versions.pop()
        ticket = KvTicket(str(version), page_tokens=int(page_tokens), parts=tuple(parts))
        return {"tokens": ticket.tokens, "ticket": ticket.to_fields()}

    async def take(self, body: Json) -> Json:
        """{ticket} -> {tokens}: each rank reads its part; what all have now."""
        if self.sockets is None:
            raise ValueError("this SGLang runs without the backend that takes KV: set cells.engine_kv")
        ticket = KvTicket.from_fields(body["ticket"])
        parts, here = {part.rank: part for part in ticket.parts}, self._ranks()
        if not here or set(parts) != set(here):
            raise ValueError(f"a ticket for ranks {sorted(parts)} came to an engine with ranks {here}: start all cells alike")
        asks = {
            rank: {"do": "import", "version": ticket.weight_version, "part": part.to_fields()} for rank, part in parts.items()
        }
        said = await self._each(asks, READ_SECONDS)
        return {"tokens": min(int(one["tokens"]) for one in said.values())}

    async def release(self, body: Json) -> Json:
        """{ticket} -> {}: the pages were read, or nobody wants them."""
        await self._release(KvTicket.from_fields(body["ticket"]).parts)
        return {}

    async def state(self, _: Json) -> Json:
        """{} -> {rank: {version, nbytes, capacity}}."""
        return await self._all({"do": "state"}, CONTROL_SECONDS)

    def go_on(self) -> None:
        """The engine serves again: nothing is interrupted any more."""
        self.refuses, self._interrupted = False, {}

    async def shut(self) -> None:
        """Before the weights change: no rank gives or takes a page, and SGLang keeps none. Raises ControlLost."""
        await self._all({"do": "shut"}, CONTROL_SECONDS)
        if self.sockets is not None and not await self.engine.flush(FLUSH_SECONDS):
            logger.warning("SGLang was not idle within %.0f s: KV stays where it is until new weights are loaded", FLUSH_SECONDS)

    async def open(self, version: str) -> None:
        """The weights are these, and SGLang's cache is empty. Raises ControlLost."""
        await self._all({"do": "open", "version": version}, CONTROL_SECONDS)

    async def _release(self, parts: Sequence[KvPart]) -> None:
        await self._each({part.rank: {"do": "release", "part": part.to_fields()} for part in parts}, CONTROL_SECONDS)

    async def _all(self, ask: Json, seconds: float) -> dict[str, Json]:
        return await self._each(dict.fromkeys(self._ranks(), ask), seconds)

    async def _each(self, asks: Mapping[str, Json], seconds: float) -> dict[str, Json]:
        if self.sockets is None:
            return {}
        folder = self.sockets
        said = await asyncio.gather(*(control.ask(folder, rank, ask, seconds) for rank, ask in asks.items()))
        return dict(zip(asks, said, strict=True))

    def _ranks(self) -> list[str]:
        return control.ranks(self.sockets) if self.sockets is not None else []


class KvMiddleware:
    """Around SGLang's application."""

    def __init__(self, app: App, moves: Moves) -> None:
        self._app, self._moves = app, moves
        self._routes = {
            "/drain": moves.drain,
            "/kv_export": moves.export,
            "/kv_import": moves.take,
            "/kv_release": moves.release,
            "/kv_state": moves.state,
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One call of ASGI."""
        path = scope.get("path", "") if scope["type"] == "http" else ""
        if path == GENERATE:
            await self._generate(scope, receive, send)
            return
        if not self._concerns(path):
            await self._app(scope, receive, send)
            return
        try:
            body = _parsed(await _whole(receive))
            answer = await self._before(path, body)
        except (KeyError, ValueError) as error:
            await _send(send, 400, {"error": {"message": f"{path}: {type(error).__name__}: {error}"}})
        except ControlLost as error:
            await _send(send, 500, {"error": {"message": f"{path}: {error}"}})
        else:
            if path in self._routes:
                await _send(send, 200, answer)
            else:
                await self._app(scope, _again(answer), self._watched(path, body, send))

    async def _generate(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse it where the engine is drained: also where that came while a long prompt was still on its way."""
        arrived = await _arrived(receive)
        if self._moves.refuses:
            text = "this SGLang is drained: ask another one, or this one after it resumed"
            await _send(send, 503, {"error": {"message": text}})
        else:
            await self._app(scope, _replayed(arrived, receive), send)

    def _concerns(self, path: str) -> bool:
        changing = self._moves.sockets is not None and path.startswith(CHANGES)
        return path in self._routes or path in (PAUSE, CONTINUE) or changing

    async def _before(self, path: str, body: Json) -> Json:
        """What a route of ours answers; of one of SGLang's, the body that it gets."""
        if path in self._routes:
            return await self._routes[path](body)
        if path == PAUSE:
            return self._pause(body)
        if path == CONTINUE:
            self._moves.go_on()
        else:
            await self._moves.shut()
        return body

    def _pause(self, body: Json) -> Json:
        """Requests wait for an engine that keeps what it has: it pauses for a moment, as for new weights."""
        if body.get("mode", "abort") == "abort":
            self._moves.refuses = True
        return {**body, "mode": "abort"} if self._moves.sockets is not None else body

    def _watched(self, path: str, body: Json, send: Send) -> Send:
        """The stores are open before whoever asked for new weights hears of it, and only if these are there and the cache is empty."""

        async def watched(message: Message) -> None:
            done = message["type"] == "http.response.start" and int(message["status"]) == 200
            if done and path == FROM_DISK and body.get("flush_cache", True) and body.get("weight_version"):
                await self._open(str(body["weight_version"]))
            await send(message)

        return watched

    async def _open(self, version: str) -> None:
        try:
            await self._moves.open(version)
        except (ControlLost, ValueError) as error:
            logger.warning("KV stays where it is until new weights are loaded: %s", error)


def _parsed(data: bytes) -> Json:
    """Raises ValueError."""
    body = json.loads(data or b"{}")
    if not isinstance(body, dict):
        raise ValueError("the body is no JSON object")
    return body


async def _whole(receive: Receive) -> bytes:
    return b"".join([message.get("body", b"") for message in await _arrived(receive)])


async def _arrived(receive: Receive) -> list[Message]:
    """A request's messages, up to the end of its body or the client's leaving."""
    said = [await receive()]
    while said[-1].get("more_body"):
        said.append(await receive())
    return said


def _replayed(arrived: list[Message], receive: Receive) -> Receive:
    """What has arrived, once more, then what comes."""
    left = deque(arrived)

    async def again() -> Message:
        return left.popleft() if left else await receive()

    return again


def _again(body: Json) -> Receive:
    """A body to be received once more; then nothing comes, as from a client that waits."""
    left = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive() -> Message:
        if left:
            return left.pop()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")

    return receive


async def _send(send: Send, status: int, body: Json) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})
