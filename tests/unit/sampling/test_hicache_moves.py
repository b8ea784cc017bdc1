"""The routes that SGLang lacks, around an application that stands where SGLang's does, in front of real sockets."""

from __future__ import annotations

import asyncio
import socket
import stat
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gyre_engine.sampling import EngineFailed, WeightsUnreadable
from gyre_engine.sampling.hicache import control
from gyre_engine.sampling.hicache.control import Control, ControlLost, Json
from gyre_engine.sampling.hicache.moves import KvMiddleware, Moves
from gyre_engine.sampling.kv import KvPart, KvTicket
from gyre_engine.sampling.port import EngineNotServing, GenerateRequest, InFlight, complete
from gyre_engine.sampling.sglang import SGLangEngine


class Requests:
    """What is in flight: a request of three prompt tokens that has sampled two, and gets one more on its way out."""

    def __init__(self, order: list[str]) -> None:
        self.order, self.ids, self.idle = order, [1, 2, 3, 7, 8], True

    def in_flight(self) -> Mapping[str, Callable[[], list[int]]]:
        return {"call-1/": lambda: list(self.ids)}

    async def pause(self) -> None:
        self.order.append("paused")
        self.ids.append(9)

    async def flush(self, seconds: float) -> bool:
        self.order.append("flushed")
        return self.idle


class FakeRank:
    """Answers as a rank does, and remembers what it was asked."""

    def __init__(self, folder: Path, name: str, order: list[str], pages: int = 1) -> None:
        self.asked: list[Json] = []
        self.order, self.name, self.pages = order, name, pages
        self.control = Control(folder, name, self.answer)

    def answer(self, body: Json) -> Json:
        self.asked.append(body)
        self.order.append(body["do"] + (f" {body['version']}" if body["do"] == "open" else ""))
        if body["do"] == "export":
            part = KvPart(self.name, "l", self.pages, 8, b"\x01").to_fields() if self.pages else None
            return {"version": "7", "page_tokens": 4, "part": part}
        return {"tokens": 4 * self.pages} if body["do"] == "import" else {}


class Fixture:
    """A server, its client, and what happened in which order."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.order = folder, list[str]()
        self.requests = Requests(self.order)
        self.ranks: list[FakeRank] = []
        self.status = 200
        self.seen: list[tuple[str, Json]] = []
        self.client = SGLangEngine("http://127.0.0.1:1")

    def rank(self, name: str, pages: int = 1) -> FakeRank:
        self.ranks.append(FakeRank(self.folder, name, self.order, pages))
        return self.ranks[-1]

    async def sglang(self, request: Request) -> Response:
        self.seen.append((request.url.path, await request.json()))
        self.order.append(request.url.path)
        status = self.status if request.url.path.startswith("/update") else 200
        return JSONResponse({"message": "no such folder"}, status)


@asynccontextmanager
async def serving(fixture: Fixture, sockets: Path | None) -> AsyncIterator[None]:
    paths = ("/pause_generation", "/continue_generation", "/update_weights_from_disk", "/update_weights_from_tensor")
    app = Starlette(routes=[Route(path, fixture.sglang, methods=["POST"]) for path in paths])
    app.add_middleware(KvMiddleware, moves=Moves(fixture.requests, sockets))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        fixture.client = SGLangEngine(f"http://127.0.0.1:{listener.getsockname()[1]}")
        try:
            yield
        finally:
            await fixture.client.close()
            server.should_exit = True
            await task
            for rank in fixture.ranks:
                rank.control.close()


@pytest.fixture
async def moving(tmp_path: Path) -> AsyncIterator[Fixture]:
    """A server whose ranks listen."""
    async with AsyncExitStack() as stack:
        fixture = Fixture(tmp_path / "sockets")
        fixture.folder.mkdir()
        await stack.enter_async_context(serving(fixture, fixture.folder))
        yield fixture


async def test_drain_says_who_was_interrupted_with_what_came_last(moving: Fixture) -> None:
    assert await moving.client.drain() == (InFlight("call-1", 6),)


async def test_an_export_is_of_all_ranks_and_of_the_tokens_that_have_kv(moving: Fixture) -> None:
    ranks = [moving.rank("tp0of2"), moving.rank("tp1of2")]
    await moving.client.drain()
    ticket = await moving.client.export_kv("call-1", lease=9.0)
    assert ticket is not None
    assert (ticket.weight_version, ticket.tokens, [part.rank for part in ticket.parts]) == ("7", 4, ["tp0of2", "tp1of2"])
    assert [rank.asked for rank in ranks] == [[{"do": "export", "ids": [1, 2, 3, 7, 8], "lease": 9.0}]] * 2


async def test_a_rank_that_has_nothing_makes_an_export_of_nothing_and_the_others_let_go(moving: Fixture) -> None:
    held = moving.rank("tp0of2")
    moving.rank("tp1of2", pages=0)
    await moving.client.drain()
    assert await moving.client.export_kv("call-1", lease=9.0) is None
    assert [ask["do"] for ask in held.asked] == ["export", "release"]


async def test_nobody_is_interrupted_any_more_once_the_engine_goes_on(moving: Fixture) -> None:
    moving.rank("tp0of1")
    await moving.client.drain()
    await moving.client.resume()
    assert await moving.client.export_kv("call-1", lease=9.0) is None


async def test_each_rank_takes_its_own_part_and_the_fewest_tokens_count(moving: Fixture) -> None:
    ranks = [moving.rank("tp0of2", pages=3), moving.rank("tp1of2", pages=2)]
    parts = tuple(KvPart(rank.name, "l", 3, 8, b"\x01") for rank in ranks)
    assert await moving.client.import_kv(KvTicket("7", page_tokens=4, parts=parts)) == 8
    assert [(ask["version"], ask["part"]["rank"]) for rank in ranks for ask in rank.asked] == [("7", "tp0of2"), ("7", "tp1of2")]


async def test_a_ticket_for_other_ranks_is_refused_with_both_named(moving: Fixture) -> None:
    moving.rank("tp0of1")
    ticket = KvTicket("7", page_tokens=4, parts=(KvPart("tp0of2", "l", 3, 8, b"\x01"),))
    with pytest.raises(EngineFailed, match=r"tp0of2.*tp0of1.*alike"):
        await moving.client.import_kv(ticket)


async def test_a_native_ticket_is_refused(moving: Fixture) -> None:
    moving.rank("tp0of1")
    with pytest.raises(EngineFailed, match="start all cells alike"):
        await moving.client.import_kv(KvTicket("7", (2, 2, 1, 5, 4), b"\x01", b"\x02"))


async def test_the_stores_are_shut_before_the_weights_change_and_open_before_anybody_hears_of_it(moving: Fixture) -> None:
    moving.rank("tp0of1")
    await moving.client.load_weights("/models/8", "8")
    await asyncio.sleep(0)
    assert moving.order == [
        "/pause_generation", "shut", "flushed", "/update_weights_from_disk", "open 8", "/continue_generation",
    ]  # fmt: skip
    assert moving.seen[0] == ("/pause_generation", {"mode": "abort"})
    assert moving.seen[1][1]["model_path"] == "/models/8"


async def test_weights_that_could_not_be_loaded_leave_the_stores_shut(moving: Fixture) -> None:
    """SGLang says the same where it has them, and could not empty its cache."""
    moving.rank("tp0of1")
    moving.status = 400
    with pytest.raises(WeightsUnreadable):
        await moving.client.load_weights("/models/8", "8")
    assert "shut" in moving.order
    assert not [step for step in moving.order if step.startswith("open")]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/update_weights_from_disk", {"weight_version": "8", "flush_cache": False}),
        ("/update_weights_from_disk", {"model_path": "/models/8"}),
        ("/update_weights_from_tensor", {"weight_version": "8"}),
    ],
)
async def test_weights_of_which_the_version_or_the_end_is_unknown_leave_the_stores_shut(
    moving: Fixture, path: str, body: dict[str, Any]
) -> None:
    moving.rank("tp0of1")
    await moving.client._post(path, body)
    assert moving.order == ["shut", "flushed", path]


async def test_a_rank_that_is_away_keeps_the_weights(moving: Fixture) -> None:
    """A store that nobody could shut would give out pages of the old weights."""
    moving.rank("tp0of1").control._server.server_close()
    with pytest.raises(WeightsUnreadable, match=r"tp0of1"):
        await moving.client.load_weights("/models/8", "8")
    assert "/update_weights_from_disk" not in moving.order


class Asked:
    """The middleware around an application that answers everything, as its callers see it."""

    def __init__(self, sockets: Path | None = None) -> None:
        self.passed: list[tuple[str, bytes]] = []
        self.app = KvMiddleware(self.sglang, Moves(Requests([]), sockets))

    async def sglang(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body", False)
        self.passed.append((scope["path"], body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def status(self, path: str, body: bytes = b"{}", on_its_way: str = "") -> int:
        """Of the answer. on_its_way: what is asked between the body's two halves."""
        halves, said = [body[:1], body[1:]], list[Any]()

        async def receive() -> dict[str, Any]:
            if on_its_way and len(halves) == 1:
                await self.status(on_its_way)
            return {"type": "http.request", "body": halves.pop(0), "more_body": bool(halves)}

        async def send(message: Any) -> None:
            said.append(message)

        await self.app({"type": "http", "path": path}, receive, send)
        return int(said[0]["status"])


@pytest.mark.parametrize("sockets", [None, Path("/nobody/listens")], ids=["plain", "with the backend"])
@pytest.mark.parametrize(("path", "body"), [
    ("/drain", b"{}"), ("/pause_generation", b'{"mode": "abort"}'), ("/pause_generation", b"{}"),
])  # fmt: skip
async def test_a_drained_engine_refuses_what_would_wait_until_it_goes_on(path: str, body: bytes, sockets: Path | None) -> None:
    asked = Asked(sockets)
    assert await asked.status("/generate", b'{"rid": "a"}') == 200
    await asked.status(path, body)
    assert await asked.status("/generate", b'{"rid": "b"}') == 503
    await asked.status("/continue_generation")
    assert await asked.status("/generate", b'{"rid": "c"}') == 200
    assert [body for path, body in asked.passed if path == "/generate"] == [b'{"rid": "a"}', b'{"rid": "c"}']


@pytest.mark.parametrize("sockets", [None, Path("/nobody/listens")], ids=["plain", "with the backend"])
async def test_requests_wait_for_an_engine_that_pauses_for_new_weights(sockets: Path | None) -> None:
    asked = Asked(sockets)
    await asked.status("/pause_generation", b'{"mode": "retract"}')
    assert await asked.status("/generate") == 200


async def test_a_request_that_was_on_its_way_when_the_engine_was_drained_is_refused() -> None:
    asked = Asked()
    assert await asked.status("/generate", b'{"input_ids": [1, 2]}', on_its_way="/drain") == 503
    assert asked.passed == []


async def test_a_refusal_is_what_clients_know_as_an_engine_that_does_not_serve(moving: Fixture) -> None:
    proxy = SGLangEngine(moving.client._url)
    await moving.client.drain()
    with pytest.raises(EngineNotServing, match="drained"):
        await complete(proxy, GenerateRequest("call-2", [1, 2, 3]))
    with pytest.raises(EngineNotServing, match="drained"):
        await proxy.score([1, 2, 3])
    await proxy.close()


async def test_without_the_backend_sglang_is_as_it_comes_but_for_drain(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path)
    async with serving(fixture, None):
        assert await fixture.client.drain() == (InFlight("call-1", 6),)
        assert await fixture.client.export_kv("call-1", lease=9.0) is None
        await fixture.client.resume()
        await fixture.client.load_weights("/models/8", "8")
        assert fixture.seen[1] == ("/pause_generation", {"mode": "retract"})
        with pytest.raises(EngineFailed, match=r"without the backend.*cells\.engine_kv"):
            await fixture.client.import_kv(KvTicket("7", page_tokens=4, parts=(KvPart("r", "l", 3, 8, b"\x01"),)))


async def test_plain_sglang_has_no_kv_to_give_and_says_that_it_takes_none() -> None:
    app = Starlette()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        client = SGLangEngine(f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert await client.export_kv("call-1", lease=9.0) is None
        with pytest.raises(EngineFailed, match=r"cells\.engine_kv"):
            await client.import_kv(KvTicket("7", (2, 2, 1, 5, 4), b"\x01", b"\x02"))
        await client.close()
        server.should_exit = True
        await task


def test_only_its_owner_reaches_a_rank_however_long_its_folder_is_called(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    control_ = Control(folder, "tp0of1", lambda body: {"heard": body["do"]})
    mode = (folder / "kv-tp0of1").stat().st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
    assert asyncio.run(control.ask(folder, "tp0of1", {"do": "state"}, 5.0)) == {"heard": "state"}
    assert control.ranks(folder) == ["tp0of1"]
    control_.close()
    assert control.ranks(folder) == []


async def test_a_rank_that_does_not_answer_costs_the_limit_and_is_named(tmp_path: Path) -> None:
    asked = threading.Event()
    silent = Control(tmp_path, "tp0of1", lambda _: {"waited": asked.wait(30)})
    with pytest.raises(ControlLost, match=r"tp0of1.*export"):
        await control.ask(tmp_path, "tp0of1", {"do": "export"}, 0.05)
    asked.set()
    silent.close()
    with pytest.raises(ControlLost):
        await control.ask(tmp_path, "tp0of1", {"do": "export"}, 5.0)


async def test_what_a_rank_refuses_comes_with_its_reason(tmp_path: Path) -> None:
    def refuse(_: Json) -> Json:
        raise ValueError("no room")

    refusing = Control(tmp_path, "tp0of1", refuse)
    with pytest.raises(ValueError, match=r"tp0of1: ValueError: no room"):
        await control.ask(tmp_path, "tp0of1", {"do": "import"}, 5.0)
    refusing.close()
