"""What it costs to train a tree in one pass, against its root-to-leaf paths trained apart.

Layers of SmolLM2's shape (hidden 576, feed-forward 1536, 9 heads, 3 of keys and values, 64 wide) in fp32 on one thread: few layers
and a small vocabulary, as layers are what a shared prefix saves; logits are computed where a token is trained, once either way.
Each path apart is a micro-step of its own. Two trees: a trunk of 1,024 with 8 leaves of 128, and the one that six sub-agents of a
real client made (record_tree.py; recorded_tree.json also has the main agent's context, which does not branch and is left out).
The last line is one JSON object:

ideal_ratio                    tokens of the paths / tokens of the tree, of 1,024 + 8 x 128
measured_ratio                 seconds of the paths / seconds of the tree, forward + backward: median of 7 pairs
fraction_of_ideal              measured_ratio / ideal_ratio (bar 0.85, goal 0.95)
recorded_fraction_of_ideal     the same of the recorded tree (recorded_ideal_ratio, recorded_measured_ratio)
grad_rel_error                 |gradient of the tree - of the paths| / |of the paths|, the worse of both trees (bar 2e-6)
grad_rel_error_float64         of the first tree in float64 (bar 1e-10)
bytes_per_token                slope of peak memory over tokens: attention alone, one head, 64 wide, fp32, forward + backward, up to
                               256k tokens of which 200k are a prefix; each size in a process of its own, the largest beside the
                               recorded tree on another processor: alone it takes minutes
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gyre_engine.batching import ExecutionWork, PackedMicroStep, Segment, pack
from gyre_engine.losses import LossConfig
from tests.works import first_leaves

RECORDED = Path(__file__).with_name("recorded_tree.json")
VOCAB, LAYERS, RECORDED_LAYERS, REPEATS = 512, 2, 1, 7
MEMORY_TOKENS = (32_000, 64_000, 128_000, 256_000)
PREFIX_SHARE, LEAVES = 200 / 256, 8

Rows = Sequence[tuple[int, Sequence[tuple[int, int]]]]
"""Segments, depth-first: parent, then how many tokens by turns, and whether they were sampled."""


def plain() -> Rows:
    return [(-1, [(1024, 0)]), *[(0, [(128, 1)])] * 8]


def recorded() -> Rows:
    """The tree of the recording that has the most leaves."""
    rows = [(parent, [(n, sampled) for n, sampled in some]) for parent, *some in json.loads(RECORDED.read_text())]
    roots = [i for i, (parent, _) in enumerate(rows) if parent < 0]
    trees = [rows[start:stop] for start, stop in zip(roots, [*roots[1:], len(rows)], strict=True)]
    start, tree = max(zip(roots, trees, strict=True), key=lambda pair: len(pair[1]))
    return [(parent - start if parent >= 0 else -1, some) for parent, some in tree]


def work(rows: Rows) -> ExecutionWork:
    """Random tokens of these sizes; those sampled are trained, from likelihoods about those of the untrained model."""
    rng = np.random.default_rng(7)
    sampled = np.concatenate([np.full(n, kind) for _, some in rows for n, kind in some])
    trained = np.flatnonzero(sampled).astype(np.int32)
    segments = [Segment(rng.integers(0, VOCAB, sum(n for n, _ in some)).astype(np.int32), parent) for parent, some in rows]
    return ExecutionWork(
        execution="bench", segments=tuple(segments), trained=trained, sequences=first_leaves(segments, trained),
        logprobs=(-np.log(VOCAB) + 0.02 * rng.standard_normal(len(trained))).astype(np.float32),
        versions=np.zeros(len(trained), dtype=np.int32), advantage=1.0, trained_tokens=len(trained),
    )  # fmt: skip


class Trainer:
    """A replica with seeded weights."""

    def __init__(self, layers: int, dtype: str = "float32") -> None:
        import torch

        from gyre_engine.training.model.megatron import MegatronReplica
        from gyre_engine.training.model.shape import ModelShape
        from gyre_engine.training.replica import ReplicaOptions

        shape = ModelShape.of_config({
            "model_type": "llama", "num_hidden_layers": layers, "hidden_size": 576, "intermediate_size": 1536,
            "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": VOCAB,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 1e5, "tie_word_embeddings": True,
        })  # fmt: skip
        self.replica = MegatronReplica(shape, ReplicaOptions(dtype=dtype))
        generator = torch.Generator().manual_seed(7)
        for slot in self.replica.parameters.layout:
            weight = slot.of(self.replica.parameters.weights)
            drawn = torch.randn(slot.shape, generator=generator, dtype=torch.float64) * 0.04
            weight.copy_(drawn if weight.dim() > 1 else 1 + drawn)
        self.replica.version = 0

    def seconds(self, steps: Sequence[PackedMicroStep]) -> float:
        """Forward + backward of all of them."""
        self.replica.zero()
        began = time.perf_counter()
        for step in steps:
            self.replica.accumulate(step, LossConfig())
        return time.perf_counter() - began

    def gradient(self, steps: Sequence[PackedMicroStep]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        self.seconds(steps)
        return self.replica.gradient_buffer().astype(np.float64)


@dataclass(frozen=True, slots=True)
class Compared:
    """One tree against its paths."""

    ideal: float
    measured: float
    error: float


def compared(rows: Rows, layers: int) -> Compared:
    trainer, item = Trainer(layers), work(rows)
    (tree,), paths = pack([item], item.tokens), pack([item], 1)
    error = gradient_error(trainer, item)
    pairs = [(trainer.seconds([tree]), trainer.seconds(paths)) for _ in range(REPEATS)]
    print([f"{apart:.2f} / {together:.2f} s" for together, apart in pairs], flush=True)
    ratios = [apart / together for together, apart in pairs]
    return Compared(sum(p.tokens for p in paths) / tree.tokens, statistics.median(ratios), error)


def gradient_error(trainer: Trainer, item: ExecutionWork) -> float:
    tree, paths = (trainer.gradient(pack([item], budget)) for budget in (item.tokens, 1))
    return float(np.linalg.norm(tree - paths) / np.linalg.norm(paths))


def peak_bytes(tokens: int) -> int:
    """Of a process that attends over a tree of so many tokens, forward and backward."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_tree_step", str(tokens)], capture_output=True, text=True, check=True
    )
    return int(run.stdout.split()[-1])


def attend(tokens: int) -> None:
    """In a process of its own: prints its peak resident memory in bytes (getrusage would tell the parent's, where that is larger)."""
    import torch

    from gyre_engine.training.model.chains import chain_attention
    from gyre_engine.training.model.visibility import parts

    torch.set_num_threads(1)
    leaf = int(tokens * (1 - PREFIX_SHARE)) // LEAVES
    prefix = tokens - LEAVES * leaf
    end = np.repeat([tokens, *(prefix + leaf * (i + 1) for i in range(LEAVES))], [prefix, *[leaf] * LEAVES]).astype(np.int32)
    given = [torch.randn(tokens, 1, 1, 64).permute(1, 2, 0, 3).requires_grad_() for _ in range(3)]
    query, key, value = given
    chain_attention(query, key, value, parts(end), 0.125).sum().backward()
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")))


def slope(peaks: Mapping[int, int]) -> float:
    print({tokens: f"{peak / 2**20:.0f} MiB" for tokens, peak in peaks.items()}, flush=True)
    return float(np.polyfit(list(peaks), list(peaks.values()), 1)[0])


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.simplefilter("ignore")  # torch's and Megatron's own
    first = compared(plain(), LAYERS)
    with ThreadPoolExecutor(1) as pool:
        longest = pool.submit(peak_bytes, MEMORY_TOKENS[-1])
        second = compared(recorded(), RECORDED_LAYERS)
        exact = gradient_error(Trainer(1, "float64"), work(plain()))
        peaks = {tokens: peak_bytes(tokens) for tokens in MEMORY_TOKENS[:-1]}
        peaks[MEMORY_TOKENS[-1]] = longest.result()
    result = {
        "ideal_ratio": round(first.ideal, 3), "measured_ratio": round(first.measured, 3),
        "fraction_of_ideal": round(first.measured / first.ideal, 3),
        "recorded_fraction_of_ideal": round(second.measured / second.ideal, 3),
        "recorded_ideal_ratio": round(second.ideal, 3), "recorded_measured_ratio": round(second.measured, 3),
        "grad_rel_error": max(first.error, second.error), "grad_rel_error_float64": exact,
        "bytes_per_token": round(slope(peaks)),
    }  # fmt: skip
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    attend(int(sys.argv[1])) if len(sys.argv) > 1 else main()
