"""The cells of `bench_policies`: the real processes, stretched so that each has a device of its own however few cores there are.

The engine is the scripted one with a pace: a piece of an answer takes PIECE_S. The trainer is the real one on Megatron; a micro-step
takes at least tokens / TOKENS_PER_S. Both note in the stack's folder what they were busy with, from when to when.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tokenizers import Tokenizer

from gyre_engine.sampling.port import Chunk, GenerateRequest
from gyre_engine.sampling.script_file import read_script
from gyre_engine.sampling.scripted import Gate, Play, ScriptedEngine
from infra.stack import entries
from infra.stack.launch import Launch
from infra.stack.layout import StackFolder

PIECE_IDS, PIECE_S = 9, 0.15
TOKENS_PER_S = 375.0
"""Of one trainer: with it a burst has about 1.65 times as much training as sampling, as the paper's 2.4T setting."""


@dataclass(frozen=True, slots=True)
class Busy:
    """From when to when (seconds since the epoch) a cell served a request or computed a micro-step, and how much."""

    cell: str
    kind: str
    began: float
    ended: float
    amount: int


def notes(folder: Path) -> list[Busy]:
    """What all cells of a stack have noted."""
    lines = (line for path in sorted((folder / "busy").glob("*.jsonl")) for line in path.read_text().splitlines())
    return [Busy(**json.loads(line)) for line in lines]


def notebook(folder: str, cell: str, kind: str) -> Callable[[float, int], None]:
    """Notes what began at a time and ends now."""
    path = Path(folder) / "busy" / f"{cell}-{kind}.jsonl"
    path.parent.mkdir(exist_ok=True)

    def note(began: float, amount: int) -> None:
        with path.open("a") as file:
            file.write(json.dumps({"cell": cell, "kind": kind, "began": began, "ended": time.time(), "amount": amount}) + "\n")

    return note


class Pace(Gate):
    """Every piece takes its time."""

    async def passed(self, played: int) -> int | None:
        await asyncio.sleep(PIECE_S)
        return None


class PacedEngine(ScriptedEngine):
    """The scripted engine at a pace, with notes."""

    def __init__(self, play: Play, note: Callable[[float, int], None], *, kv_capacity: int, max_context: int) -> None:
        super().__init__(play, version="0", gate=Pace(), kv_capacity=kv_capacity, max_context=max_context)
        self._note = note

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk]:
        began, ids = time.time(), 0
        try:
            async for chunk in super().generate(request):
                ids += len(chunk.output_ids)
                yield chunk
        finally:
            self._note(began, ids)


def engine(folder: str, cell: str) -> None:
    """In the place of infra.stack.entries.engine."""
    from producers.cells.engine_server import serve

    launch = Launch.load(StackFolder(Path(folder)))
    config, url = launch.settings, urlsplit(launch.cell(cell).engine_url)
    play = read_script(config.cells.script, Tokenizer.from_file(str(Path(config.model.path, "tokenizer.json"))))
    paced = PacedEngine(
        play, notebook(folder, cell, "sampling"), kv_capacity=config.cells.kv_tokens, max_context=config.model.context
    )
    serve(paced, url.hostname or "", url.port or 0, paused=True)


def trainer(folder: str, cell: str) -> None:
    """In the place of infra.stack.entries.trainer."""
    from gyre_engine.batching import PackedMicroStep
    from gyre_engine.losses.config import LossConfig
    from gyre_engine.training.metrics import StepMetrics
    from gyre_engine.training.model import megatron

    note = notebook(folder, cell, "training")

    class Paced(megatron.MegatronReplica):
        def accumulate(self, step: PackedMicroStep, loss: LossConfig) -> StepMetrics:
            began = time.time()
            metrics = super().accumulate(step, loss)
            time.sleep(max(0.0, began + step.tokens / TOKENS_PER_S - time.time()))
            note(began, step.tokens)
            return metrics

    megatron.MegatronReplica = Paced  # type: ignore[misc]
    entries.trainer(folder, cell)
