"""How fast the native engine is here: `python -m gyre_engine.sampling.native.measure [MODEL_FOLDER]`.

Counts the thread's CPU time, so that a busy machine blurs it less. Without a folder it takes a fresh model of the quickstart's size.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch

from gyre_engine.sampling.native.batcher import Batcher, Limits
from gyre_engine.sampling.native.fresh import QUICKSTART, write_fresh_model
from gyre_engine.sampling.native.sequence import Sequence
from gyre_engine.sampling.native.shape import read_shape
from gyre_engine.sampling.native.weights import read_weights
from gyre_engine.sampling.port import SamplingParams

BATCHES = (1, 8, 64, 128)
PROMPTS = (32, 600)
STEPS = 30


def measure(folder: Path) -> None:
    """Print tokens per CPU second for decoding at several batch sizes and prompt lengths, and for prefill."""
    torch.set_num_threads(1)
    shape = read_shape(folder)
    weights = read_weights(folder, shape)
    with torch.inference_mode():
        for prompt in PROMPTS:
            for batch in BATCHES:
                batcher = Batcher(shape, weights, "measured", Limits(max_batch=batch, max_context=1024))
                prefill = _fill(batcher, batch, prompt)
                print(
                    f"prompt {prompt:5}  batch {batch:4}  decode {_decode(batcher, batch):8.0f}  prefill {prefill:8.0f} tokens/s"
                )


def _fill(batcher: Batcher, batch: int, prompt: int) -> float:
    """Start `batch` sequences that share nothing; tokens prefilled per second."""
    for number in range(batch):
        ids = [(number + 1 + at * (number + 3)) % batcher.shape.vocab for at in range(prompt)]
        params = SamplingParams(max_tokens=2 * batch + 2 * STEPS + 200)
        batcher.submit(Sequence(str(number), ids, params, number, batcher.limits.longest, lambda _: None))
    spent = 0.0
    while len(batcher.running) < batch:
        start = time.thread_time()
        batcher._prefill()
        spent += time.thread_time() - start
    return batcher.stats(paused=False).prefill_tokens / spent


def _decode(batcher: Batcher, batch: int) -> float:
    start = time.thread_time()
    for _ in range(STEPS):
        batcher.step()
    return batch * STEPS / (time.thread_time() - start)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            measure(write_fresh_model(Path(folder), QUICKSTART, seed=1))
