"""What the benchmarks' agents are: a small model folder, the words that they say, and an execution that grows turn by turn."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from gyre_engine.sampling.port import GenerateRequest, SamplingParams
from gyre_engine.sampling.sglang import SGLangEngine
from producers.proxy.tokens import ChatTokenizer

REPLY = '<tool_call>\n{"name": "bash", "arguments": {"command": "make test"}}\n</tool_call>'
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]
WORDS = (
    "the",
    "build",
    "failed",
    "in",
    "module",
    "parser",
    "with",
    "error",
    "expected",
    "token",
    "value",
    "return",
    "import",
    "test",
    "passed",
    "line",
    "function",
    "argument",
    "missing",
    "file",
    "directory",
    "warning",
    "unused",
    "variable",
    "while",
    "reading",
)


def words(rng: random.Random, count: int) -> str:
    return " ".join(f"{rng.choice(WORDS)}{rng.randrange(100)}" for _ in range(count))


def make_model_folder(folder: Path) -> ChatTokenizer:
    """A small byte-level BPE with Qwen3's markers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([words(random.Random(seed), 2000) for seed in range(20)], trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    return ChatTokenizer.load(folder)


class Connection:
    """The cheapest HTTP/1.1 client there is, so that the agent's side takes no part in what is measured."""

    def __init__(self, port: int, key: str) -> None:
        self._port, self._head = port, f"POST /v1/chat/completions HTTP/1.1\r\nhost: p\r\nauthorization: Bearer {key}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, body: bytes) -> dict[str, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        reader, writer = self._streams
        writer.write(f"{self._head}content-length: {len(body)}\r\n\r\n".encode() + body)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        answer: dict[str, Any] = orjson.loads(await reader.readexactly(length))
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the proxy answered {head[:40]!r}: {answer}")
        return answer


@dataclass
class Agent:
    """One execution: its history, and what its last prompt was."""

    proxy: Connection
    engine: SGLangEngine
    tokenizer: ChatTokenizer
    messages: list[dict[str, Any]] = field(default_factory=list)
    prompt_tokens: int = 0

    async def turn(self) -> float:
        """One more turn through the proxy; seconds."""
        body = orjson.dumps({"model": "policy", "messages": self.messages, "tools": TOOLS})
        begin = time.perf_counter()
        answer = await self.proxy.ask(body)
        took = time.perf_counter() - begin
        message = answer["choices"][0]["message"]
        self.prompt_tokens = answer["usage"]["prompt_tokens"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "ok " * 20}
        self.messages += [message, result]
        return took

    async def directly(self, engine: SGLangEngine | None = None) -> float:
        """The engine alone, or another way to it, with as many tokens and a whole answer, as through the proxy; seconds."""
        ids: Any = np.arange(self.prompt_tokens, dtype=np.int32) % 1000
        request = GenerateRequest(secrets.token_hex(8), ids, SamplingParams(), streamed=False)
        begin = time.perf_counter()
        async for _ in (engine or self.engine).generate(request):
            pass
        return time.perf_counter() - begin

    async def grow(self, tokens: int, turns: int, rng: random.Random) -> None:
        """A history of about `tokens` tokens in `turns` turns."""
        size = tokens // turns
        per_word = len(self.tokenizer.encode(words(rng, 1000))) / 1000
        task = words(rng, int(size / per_word))
        self.messages = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": task}]
        for _ in range(turns - 1):
            await self.turn()
            self.messages[-1]["content"] = words(rng, int((size - 40) / per_word))
        await self.turn()
