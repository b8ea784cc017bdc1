"""A proxy in this process: the application over scripted engines and a log in memory, with a byte-level tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from gyre_engine.events import Event
from gyre_engine.events.calls import ModelCall
from gyre_engine.events.cells import CellRole, CellStarted
from gyre_engine.keys import internal_token, mint
from gyre_engine.log.memory import MemoryLog
from gyre_engine.sampling.port import InferenceEngine
from gyre_engine.sampling.scripted import Script, ScriptedEngine
from gyre_engine.sampling.sglang import SGLangEngine
from gyre_engine.trees.path import Paths, Stretch
from producers.proxy.app import application
from producers.proxy.call import Desk
from producers.proxy.outbox import Outbox
from producers.proxy.rendering import Rendering
from producers.proxy.router import Router
from producers.proxy.service import Service
from producers.proxy.settings import ProxySettings, RunSampling
from producers.proxy.tokens import ChatTokenizer
from tests.unit.proxy.upstream_server import UpstreamServer, serving

SECRET = b"a secret of the tests"
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def make_tokenizer() -> Tokenizer:
    """Bytes, the merges that make `hello` one token, and Qwen3's special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    parts = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    vocab = {text: at for at, text in enumerate([*alphabet, *("".join(pair) for pair in parts)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=parts))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer(make_tokenizer(), "test", "<|im_end|>")


@pytest.fixture(scope="session")
def rendering(tokenizer: ChatTokenizer) -> Rendering:
    return Rendering(tokenizer, "qwen3")


@dataclass
class Stack:
    """A proxy, its engines by cell, its log, and a client."""

    service: Service
    log: MemoryLog
    client: httpx.AsyncClient
    rendering: Rendering
    app: Any
    engines: dict[str, ScriptedEngine] = field(default_factory=dict)
    scripts: list[Script] = field(default_factory=list)

    def says(self, *texts: str | Script, piece: int | None = None) -> None:
        """The next answers of the engines, each with its stop token."""
        end = self.rendering.stop_ids[0]
        for text in texts:
            if isinstance(text, str):
                text = Script((*self.rendering.tokenizer.encode(text), end), piece=piece)
            self.scripts.append(text)

    def cell(self, name: str, position: int = 0, capacity: int = 8, engine: ScriptedEngine | None = None) -> ScriptedEngine:
        """A cell that samples."""
        self.engines[name] = engine or ScriptedEngine(lambda _: self.scripts.pop(0))
        self.service.desk.router.apply([started(name, position, capacity)])
        return self.engines[name]

    async def chat(self, messages: list[dict[str, Any]], execution: str = "g.0.0", **fields: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {mint(SECRET, execution)}"}
        return await self.client.post(
            "/v1/chat/completions", json={"model": "policy", "messages": messages, **fields}, headers=headers
        )

    async def say(self, messages: list[dict[str, Any]], execution: str = "g.0.0", **fields: Any) -> dict[str, Any]:
        """The assistant message of an answer."""
        response = await self.chat(messages, execution, **fields)
        assert response.status_code == 200, response.text
        message: dict[str, Any] = response.json()["choices"][0]["message"]
        return message

    async def internal(self, method: str, path: str) -> httpx.Response:
        return await self.client.request(method, path, headers={"authorization": f"Bearer {internal_token(SECRET)}"})

    def events(self, topic: str = "model-calls") -> list[Event]:
        return [record.event for record in self.log.read(topic)]

    def calls(self) -> list[ModelCall]:
        return [event for event in self.events() if isinstance(event, ModelCall)]

    def sent(self) -> list[list[int]]:
        """What the engines were asked, in order."""
        return [list(request.input_ids) for engine in self.engines.values() for request in engine.requests]

    def prompts(self) -> list[list[int]]:
        """What the records say was asked, in order."""
        paths = Paths()
        found = []
        for call in self.calls():
            delta = [*call.new_input_ids, *call.output_ids]
            paths.add(
                Stretch(
                    call.call,
                    call.parent,
                    call.prefix_len,
                    call.prefix_hash,
                    np.asarray(delta, dtype=np.int32),
                    len(call.new_input_ids),
                )
            )
            found.append(paths.ids(paths.cut(call.call, call.prompt_tokens)).tolist())
        return found


def started(name: str, position: int = 0, capacity: int = 8, role: CellRole = CellRole.SAMPLING) -> CellStarted:
    return CellStarted(
        cell=name,
        position=position,
        incarnation=f"{name}-1",
        engine="scripted",
        engine_url=f"scripted://{name}",
        capacity=capacity,
        role=role,
        weight_version=0,
    )


MakeStack = Callable[..., Stack]


@pytest.fixture
async def make_stack(rendering: Rendering) -> AsyncIterator[MakeStack]:
    """Build a proxy with settings of one's own; one that samples on cell `a` unless `cells` is False."""
    stacks: list[Stack] = []

    def make(
        *,
        log: MemoryLog | None = None,
        format: Rendering = rendering,
        cells: bool = True,
        sampling: RunSampling | None = None,
        environment: Mapping[str, str] | None = None,
        **values: Any,
    ) -> Stack:
        settings = ProxySettings(Path("unused"), Path("unused"), sampling=sampling or RunSampling(), **values)
        found = log or MemoryLog()
        engines: dict[str, ScriptedEngine] = {}

        def connect(url: str) -> InferenceEngine:
            if url.startswith("http"):
                return SGLangEngine(url)
            return engines[url.removeprefix("scripted://")]

        desk = Desk(Router(connect), Outbox(found), format)
        service = Service(settings, desk, connect=connect, environment=environment or {})
        app = application(service, SECRET)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://proxy", timeout=30)
        stack = Stack(service, found, client, format, app, engines)
        if cells:
            stack.cell("a")
        stacks.append(stack)
        return stack

    yield make
    for stack in stacks:
        await stack.service.settle(5)
        await stack.service.models.close()
        await stack.client.aclose()


@pytest.fixture
def stack(make_stack: MakeStack) -> Stack:
    return make_stack()


@pytest.fixture
async def upstream(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[UpstreamServer]:
    """Somebody's chat endpoint on a free port."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with serving() as server:
        yield server


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def tool(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def tool_call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


BASH = {
    "type": "function",
    "function": {"name": "bash", "description": "run", "parameters": {"type": "object", "properties": {}}},
}


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until the condition holds; the test's own time limit bounds it."""
    while not condition():
        await asyncio.sleep(0)
