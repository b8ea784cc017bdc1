"""A request is interrupted on one SGLang server and goes on at another with its KV: same tokens, same log-probabilities, less prefill.

Runs in SGLang's environment, on one GPU, with the quickstart's model in fp32. Everything is compared with one uninterrupted run. The
last line is one JSON object; what it calls ok is what the checks below say.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre_engine.sampling.kv import KvTicket
from gyre_engine.sampling.port import Completion, EngineNotServing, FinishReason, GenerateRequest, SamplingParams, complete
from gyre_engine.sampling.sglang import SGLangEngine
from infra.sglang.launch import PAGE_TOKENS, MovingKv, no_gpu, sglang_on_gpu

MODEL = Path(__file__).resolve().parents[2] / "examples" / "quickstart" / "model"
PROMPT = [(11 * i * i + 5 * i) % 600 for i in range(1500)]
TOKENS, INTERRUPT_AFTER = 600, 150
BOOT_SECONDS = 200.0
NEVER_SAID = 639
"""An id that stands for no text: this model must not stop by itself."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS)
FLAGS = {
    "--dtype": "float32",
    "--attention-backend": "triton",
    "--sampling-backend": "pytorch",
    "--mem-fraction-static": "0.2",
    "--cuda-graph-backend-decode": "disabled",
    "--cuda-graph-backend-prefill": "disabled",
}


def model(folder: Path) -> Path:
    """The quickstart's, but for its end token."""
    folder.mkdir()
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).symlink_to(MODEL / name)
    config = json.loads((MODEL / "config.json").read_text()) | {"eos_token_id": NEVER_SAID, "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@contextmanager
def served(
    folder: Path, scratch: Path, kv: MovingKv | None = None, extra: tuple[str, ...] = ()
) -> Iterator[tuple[SGLangEngine, subprocess.Popen[bytes]]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    launch = sglang_on_gpu(
        sys.executable, str(folder), "0", host="127.0.0.1", port=port, environment=os.environ, kv_capacity=32768, max_batch=8,
        kv=kv, flags=FLAGS,
    )  # fmt: skip
    with (scratch.with_suffix(".log")).open("wb") as log:
        process = subprocess.Popen((*launch.argv, *extra), env=launch.env, stdout=log, stderr=log, start_new_session=True)
        try:
            yield SGLangEngine(f"http://127.0.0.1:{port}"), process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def up(engine: SGLangEngine, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it answers. Raises with the end of its log."""
    deadline = time.monotonic() + BOOT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(EngineNotServing):
            await engine.stats()
            return
        await asyncio.sleep(0.2)
    raise RuntimeError(f"SGLang did not come up:\n{log.read_text(errors='replace')[-6000:]}")


async def interrupted(source: SGLangEngine, rid: str) -> Completion:
    """What a request had sampled when its cell was drained."""
    answer, drained = Completion(), None
    async for chunk in source.generate(GenerateRequest(rid, PROMPT, GREEDY)):
        answer = answer.plus(chunk)
        if len(answer.output_ids) >= INTERRUPT_AFTER and drained is None:
            drained = asyncio.create_task(source.drain())
    assert drained is not None, "the request ended before it could be interrupted"
    [said] = await drained
    assert (said.rid, said.tokens) == (rid, len(PROMPT) + len(answer.output_ids)), said
    assert answer.finish_reason is FinishReason.ABORT, answer.finish_reason
    return answer


async def exported(source: SGLangEngine, rid: str) -> KvTicket:
    ticket = await source.export_kv(rid, lease=60.0)
    assert ticket is not None, "the source had nothing of it"
    return ticket


async def continued(engine: SGLangEngine, rid: str, begun: Completion) -> tuple[Completion, float]:
    """What follows, and the seconds to its first token."""
    answer, began, first = Completion(), time.monotonic(), 0.0
    history = [*PROMPT, *begun.output_ids]
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS - len(begun.output_ids))
    async for chunk in engine.generate(GenerateRequest(rid, history, params)):
        first = first or time.monotonic() - began
        answer = answer.plus(chunk)
    return answer, first


@dataclass(frozen=True, slots=True)
class Moved:
    """A request that was interrupted, whose KV was taken elsewhere (`taken` tokens of it), and what followed there."""

    begun: Completion
    ticket: KvTicket
    taken: int
    rest: Completion
    export_s: float
    import_s: float
    first_token_s: float

    @property
    def output_ids(self) -> tuple[int, ...]:
        return (*self.begun.output_ids, *self.rest.output_ids)

    def worst_difference(self, whole: Completion) -> float:
        """Of its log-probabilities from those of the uninterrupted run."""
        logprobs = (*self.begun.logprobs, *self.rest.logprobs)
        return max(abs(a - b) for a, b in zip(logprobs, whole.logprobs, strict=True))


async def moved(source: SGLangEngine, target: SGLangEngine) -> Moved:
    begun = await interrupted(source, "moving-1")
    at = time.monotonic()
    ticket = await exported(source, "moving-1")
    export_s, at = time.monotonic() - at, time.monotonic()
    taken = await target.import_kv(ticket)
    import_s = time.monotonic() - at
    await source.release_kv(ticket)
    await source.resume()
    rest, first_token_s = await continued(target, "moved-1", begun)
    return Moved(begun, ticket, taken, rest, export_s, import_s, first_token_s)


async def offered_across_weights(source: SGLangEngine, target: SGLangEngine, folder: Path) -> tuple[int, Completion]:
    """Tokens that the target, which has newer weights, took of an interrupted request's KV; and what followed there."""
    stale = await interrupted(source, "stale-1")
    old = await exported(source, "stale-1")
    await target.load_weights(folder, "3")
    taken = await target.import_kv(old)
    unhelped, _ = await continued(target, "unhelped-1", stale)
    return taken, unhelped


async def measured(source: SGLangEngine, target: SGLangEngine, folder: Path) -> dict[str, Any]:
    whole = await complete(source, GenerateRequest("whole-1", PROMPT, GREEDY))
    for engine in (source, target):
        await engine.load_weights(folder, "1")  # the same weights by another name: nothing of before may be used

    move = await moved(source, target)
    await target.load_weights(folder, "2")
    cold, without_s = await continued(target, "cold-1", move.begun)
    taken_across, unhelped = await offered_across_weights(source, target, folder)

    ticket, rest, worst = move.ticket, move.rest, move.worst_difference(whole)
    computed = len(PROMPT) + len(move.begun.output_ids) - 1
    checks = {
        "same tokens as the uninterrupted run": move.output_ids == whole.output_ids,
        "same log-probabilities (2e-3)": worst < 2e-3,
        "all but the last page were exported": 0 <= computed - ticket.tokens < 2 * PAGE_TOKENS,
        "all of them were taken": move.taken == ticket.tokens,
        "the destination computed no page again": rest.cached_tokens >= ticket.tokens,
        "new weights leave nothing cached": cold.cached_tokens == 0 and unhelped.cached_tokens == 0,
        "the same continued without its KV": cold.output_ids == rest.output_ids,
        "KV of other weights was not taken": taken_across == 0,
        "the versions are told": (whole.weight_spans, rest.weight_spans) == (((0, "0"),), ((0, "1"),)),
    }
    return {
        "ok": all(checks.values()), "failed": [name for name, holds in checks.items() if not holds], "tokens": ticket.tokens,
        "nbytes": ticket.nbytes, "cached_tokens": rest.cached_tokens, "worst_logprob_difference": worst,
        "export_s": round(move.export_s, 4), "import_s": round(move.import_s, 4),
        "first_token_with_kv_s": round(move.first_token_s, 4), "first_token_without_s": round(without_s, 4),
    }  # fmt: skip


async def run(folder: Path) -> Mapping[str, Any]:
    secret = folder / "secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    weights, began = model(folder / "model"), time.monotonic()
    with ExitStack() as stack:
        engines = []
        for name in ("source", "target"):  # one after the other: each looks how much of the GPU is free
            kv = MovingKv(str(folder / name), 1 << 28, str(secret))
            engine, process = stack.enter_context(served(weights, folder / name, kv))
            await up(engine, process, folder / f"{name}.log")
            engines.append(engine)
        up_s = time.monotonic() - began
        try:
            return {**await measured(engines[0], engines[1], weights), "up_s": round(up_s, 1)}
        except Exception:
            for name in ("source", "target"):
                print((folder / f"{name}.log").read_text(errors="replace")[-4000:], file=sys.stderr)
            raise
        finally:
            for engine in engines:
                await engine.close()


def told(check: Callable[[Path], Awaitable[Mapping[str, Any]]]) -> int:
    """Run a check in a folder of its own and print what it found; the exit status."""
    if missing := no_gpu():
        print(json.dumps({"ok": False, "why": missing}))
        return 1

    async def checked(folder: Path) -> Mapping[str, Any]:
        return await check(folder)

    with tempfile.TemporaryDirectory(prefix="gyre-gpu-") as folder:
        try:
            found = asyncio.run(checked(Path(folder)))
        except Exception as error:
            print(json.dumps({"ok": False, "why": f"{type(error).__name__}: {error}"[:2000]}))
            return 1
    print(json.dumps(found))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(told(run))
