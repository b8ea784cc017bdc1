"""An SGLang server gives its memory back while nobody samples, and takes it again with the next weights (cells.release_memory).

Runs in SGLang's environment, on one GPU, with the quickstart's model in fp32. The last line is one JSON object.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gyre_engine.sampling.port import GenerateRequest, SamplingParams, complete
from gyre_engine.sampling.sglang import SGLangEngine
from tests.gpu.kv_sglang import PROMPT, model, served, told, up

SAVER = "--enable-memory-saver"
SHORT = SamplingParams(temperature=0.0, max_tokens=32)
KV_BYTES = 32768 * 2 * 4
"""Least that 32,768 tokens of KV take: a layer's key and value of one float each."""


def free_bytes() -> int:
    """Of the GPU, whoever uses the rest."""
    import torch  # of SGLang's environment

    return int(torch.cuda.mem_get_info()[0])


async def measured(engine: SGLangEngine, folder: Path) -> dict[str, Any]:
    """In the order in which a cell does it (producers.cells.memory)."""
    before = await complete(engine, GenerateRequest("before", PROMPT, SHORT))
    await engine.drain()
    held = free_bytes()
    await engine.release_memory()
    released = free_bytes() - held
    await engine.reclaim_memory()
    await engine.load_weights(folder, "1")
    await engine.resume()
    after = await complete(engine, GenerateRequest("after", PROMPT, SHORT))
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    checks = {
        "the same tokens afterwards": after.output_ids == before.output_ids,
        "the new version is told": after.weight_spans == ((0, "1"),),
        "nothing of before is cached": after.cached_tokens == 0,
        "weights and KV were given back": released >= weights + KV_BYTES,
    }
    failed = [name for name, holds in checks.items() if not holds]
    return {"ok": not failed, "failed": failed, "released_bytes": released, "weights_bytes": weights}


async def run(folder: Path) -> Mapping[str, Any]:
    weights = model(folder / "model")
    with served(weights, folder / "engine", extra=(SAVER,)) as (engine, process):
        await up(engine, process, folder / "engine.log")
        try:
            return await measured(engine, weights)
        except Exception:
            print((folder / "engine.log").read_text(errors="replace")[-4000:], file=sys.stderr)
            raise
        finally:
            await engine.close()


if __name__ == "__main__":
    sys.exit(told(run))
