"""A bench for real clients: the runner, its sandbox, the proxy on a port, scripted engines with a real tokenizer, a log."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson
import uvicorn
from tokenizers import Tokenizer

from gyre_engine.events.calls import ModelCall, Role, TreeClosed
from gyre_engine.events.cells import CellRole, CellStarted, RoleChanged
from gyre_engine.events.executions import Discarded, Finished
from gyre_engine.log.memory import MemoryLog
from gyre_engine.sampling.script_file import Answer, ScriptFile
from gyre_engine.sampling.scripted import ScriptedEngine
from gyre_engine.sandbox import Limits, sandbox_available
from gyre_engine.sandbox.bridge import open_bridge
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.tasks import Source, load_catalog
from gyre_engine.trees import facts
from gyre_engine.trees.forest import Forest
from gyre_engine.work_product import unpack
from producers.proxy.app import application
from producers.proxy.call import Desk
from producers.proxy.outbox import Outbox
from producers.proxy.rendering import Rendering
from producers.proxy.role_rules import RoleRule
from producers.proxy.router import Router
from producers.proxy.service import Service
from producers.proxy.settings import ProxySettings, RunSampling
from producers.proxy.tokens import ChatTokenizer
from producers.runner.execution import Execution, Outside
from producers.runner.harnesses import HarnessSettings, find_harness
from producers.runner.proxy_client import ProxyClient
from producers.runner.settings import RunnerSettings
from tests.integration.runner_fakes import SECRET, write_task

MODEL = Path(__file__).parents[2] / "examples" / "quickstart" / "model"
NAME = "g000000.0.0"
NO_FILES: Mapping[str, str] = MappingProxyType({})


@dataclass
class Seen:
    """A request of a client and the answer that it got."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    answer: bytearray = field(default_factory=bytearray)

    @property
    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.body)
        return found


@dataclass
class Ran:
    """What one execution came to."""

    end: Finished | Discarded
    calls: list[ModelCall]
    tree: TreeClosed
    files: Path

    def roles(self) -> list[Role]:
        """By call, in order."""
        role = {node.node: node.role for node in self.tree.nodes}
        return [role[call.call] for call in self.calls]

    def of(self, *roles: Role) -> list[ModelCall]:
        return [call for call, role in zip(self.calls, self.roles(), strict=True) if role in roles]


class Bench:
    """One execution at a time. `seen`: everything that clients asked of the proxy but the runner's own questions."""

    def __init__(self, folder: Path, service: Service, log: MemoryLog, server: uvicorn.Server, url: str) -> None:
        self.folder, self.service, self.log, self.server, self.url = folder, service, log, server, url
        self.seen: list[Seen] = []
        self.engines: dict[str, ScriptedEngine] = {}

    def cell(self, name: str, position: int, engine: ScriptedEngine) -> None:
        """A cell that samples."""
        self.engines[name] = engine
        started = CellStarted(
            cell=name, position=position, incarnation=f"{name}-1", engine="scripted", engine_url=f"scripted://{name}", capacity=8,
            role=CellRole.SAMPLING, weight_version=0,
        )  # fmt: skip
        self.service.desk.router.apply([started])

    def drop(self) -> None:
        """Cut every connection of clients, as a proxy does that dies."""
        for connection in list(self.server.server_state.connections):
            connection.transport.abort()  # type: ignore[union-attr]

    def leaves(self, name: str) -> None:
        """The cell stops sampling."""
        changed = RoleChanged(cell=name, incarnation=f"{name}-1", role=CellRole.TRAINING, command_epoch=1, command_number=1)
        self.service.desk.router.apply([changed])

    async def run(
        self, harness: str, instruction: str, *, name: str = NAME, files: Mapping[str, str] = NO_FILES, **settings: Any
    ) -> Ran:
        """One execution on a task with this instruction, in a workspace that has these files too."""
        own = HarnessSettings(name=harness, **settings)
        task = write_task(self.folder / "tasks" / "one", toml=f"[agent]\ntimeout_sec = {LIMIT_S}\n")
        for path, text in files.items():
            (file := task / "environment" / path).parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            with (task / "environment" / "Dockerfile").open("a") as recipe:
                recipe.write(f"COPY {path} /app/{path}\n")
        (task / "instruction.md").write_text(instruction)
        of_runner = RunnerSettings(
            plan=ClassPlan(batch=1, mu=1, phi=0, steps=1), group_size=1, sources=(Source("tasks", self.folder / "tasks"),),
            harness=own, workspaces=self.folder / "workspaces", store=f"file://{self.folder}/store", proxy_url=self.url,
            secret=SECRET, limits=LIMITS, overall_timeout_s=2 * LIMIT_S,
        )  # fmt: skip
        proxy = ProxyClient(self.url, SECRET, 5.0)
        bridge = await open_bridge(self.folder / "p.sock", "127.0.0.1", int(self.url.rsplit(":", 1)[1]), 5.0)
        outside = Outside(of_runner, sandbox_available(), find_harness(own), proxy, str(bridge.path))
        try:
            (_, found), *_ = load_catalog(of_runner.sources).of_split("train")
            end = await Execution(name, found, outside, self._append, asyncio.Event()).outcome()
        finally:
            await proxy.aclose()
            await bridge.close()
        return self._ran(name, end)

    async def _append(self, event: Any) -> None:
        await asyncio.wrap_future(self.log.append(event))

    def _ran(self, name: str, end: Finished | Discarded) -> Ran:
        events = [record.event for record in self.log.read("model-calls")]
        calls = [event for event in events if isinstance(event, ModelCall) and event.execution == name]
        forest, trees = Forest(), list[TreeClosed]()
        for event in events:
            grown = forest.observe(facts.of_event(event))
            trees += [grown] if isinstance(grown, TreeClosed) and grown.execution == name else []
        files = self.folder / "left" / name
        files.mkdir(parents=True)
        if isinstance(end, Finished):
            unpack(Path(end.work_url.removeprefix("file://")).read_bytes(), files)
        return Ran(end, calls, trees[-1], files / "app")


LIMIT_S = 240.0
LIMITS = Limits(memory_mb=4096)
"""Node's compiler, which Qwen Code keeps busy, does not live with 2 GB."""


@asynccontextmanager
async def bench(
    folder: Path,
    *,
    context: int = 1 << 20,
    max_tokens: int = 8192,
    roles: tuple[RoleRule, ...] = (),
    wait_limit_s: float = 1800.0,
    quiet_s: float = 10.0,
) -> AsyncIterator[Bench]:
    """A bench without cells."""
    log, seen, engines = MemoryLog(), list[Seen](), dict[str, ScriptedEngine]()
    sampling = RunSampling(max_tokens=max_tokens)
    settings = ProxySettings(
        MODEL,
        Path("unused"),
        models={"policy": "policy"},
        context_limit=context,
        sampling=sampling,
        roles=roles,
        wait_limit_s=wait_limit_s,
        quiet_s=quiet_s,
    )
    router = Router(lambda url: engines[url.removeprefix("scripted://")])
    service = Service(settings, Desk(router, Outbox(log), Rendering(ChatTokenizer.load(MODEL), "qwen3")))
    app = _recorded(application(service, SECRET), seen)
    listener = socket.create_server(("127.0.0.1", 0))
    server = _Server(uvicorn.Config(app, lifespan="off", log_config=None, ws="none", timeout_graceful_shutdown=2))
    serving = asyncio.create_task(server.serve([listener]))
    made = Bench(folder, service, log, server, f"http://127.0.0.1:{listener.getsockname()[1]}")
    made.engines, made.seen = engines, seen
    try:
        yield made
    finally:
        server.should_exit = True
        await serving
        await service.settle(5)


def scripted(*answers: Answer, **options: Any) -> ScriptedEngine:
    """An engine that plays `answers` through the model's own tokenizer."""
    return ScriptedEngine(ScriptFile(answers, Tokenizer.from_file(str(MODEL / "tokenizer.json"))), version="0", **options)


def tool_call(name: str, **arguments: Any) -> str:
    """A tool call in the model's chat format."""
    return raw_call(name, orjson.dumps(arguments).decode())


def raw_call(name: str, arguments: str) -> str:
    """A tool call whose arguments are this text."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


def _recorded(app: Any, seen: list[Seen]) -> Any:
    """`app`, with what passes kept in `seen`."""

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].startswith("/internal"):
            return await app(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        one = Seen(scope["method"], scope["path"], headers, b"")
        seen.append(one)

        async def hear() -> Any:
            message = await receive()
            one.body += message.get("body", b"")
            return message

        async def say(message: Any) -> None:
            one.status = message.get("status", one.status)
            one.answer += message.get("body", b"")
            await send(message)

        return await app(scope, hear, say)

    return wrapped
