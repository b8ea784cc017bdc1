"""Real SGLang over a mixture of experts on the CPU: what it samples and which experts it says computed it, by transformers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gyre_engine.experts import Experts
from gyre_engine.lifeline import tied
from gyre_engine.sampling import Completion, SamplingParams, complete
from gyre_engine.sampling.native.fresh import QUICKSTART, write_fresh_model
from gyre_engine.sampling.port import GenerateRequest
from gyre_engine.sampling.sglang import SGLangEngine
from infra.sglang.launch import PYTHON, ended_together, sglang_on_cpu
from tests.contract.test_inference_engine import answering, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

EXPERTS = Experts(count=6, chosen=2, ffn=64, normed=True, layers=(0, 1, 2))
MIXTURE = replace(
    QUICKSTART, architecture="qwen3_moe", vocab=256, hidden=64, layers=3, heads=4, kv_heads=2, head_dim=16, ffn=128,
    max_context=2048, experts=EXPERTS, tied=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fresh_model(tmp_path_factory.mktemp("mixture") / "v1", MIXTURE, seed=1, spread=0.15)


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    if not PYTHON.exists():
        pytest.skip("SGLang's environment is not installed (infra/sglang)")
    port = free_port()
    launch = sglang_on_cpu(str(folder), "v1", host="127.0.0.1", port=port, environment=os.environ, record_routing=True)
    with (folder.parent / "log").open("wb") as output:
        process = subprocess.Popen(tied(ended_together(launch.argv)), env=launch.env, stdout=output, stderr=output)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def by_transformers(folder: Path, ids: list[int]) -> tuple[NDArray[np.int64], list[float]]:
    """Each token's experts, ascending, layer by layer; log-probabilities of ids[1:]."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    seen: list[torch.Tensor] = []
    for layer in EXPERTS.layers:
        model.model.layers[layer].mlp.gate.register_forward_hook(lambda _, __, out: seen.append(out[2]))
    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    scores = logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    return np.sort(np.stack([one.numpy() for one in seen], axis=1), axis=2), scores


def read(answer: Completion) -> NDArray[np.int64]:
    rows = np.frombuffer(answer.routed, dtype=np.uint8).reshape(-1, EXPERTS.width)
    return np.sort(EXPERTS.routed(rows), axis=2)


async def test_sglang_tells_the_experts_of_all_but_the_last_token(folder: Path, url: str) -> None:
    engine = SGLangEngine(url, experts=EXPERTS)
    await answering(engine)
    prompt = [(7 * i * i + 3 * i) % 256 for i in range(40)]
    params = SamplingParams(max_tokens=12, seed=1)
    first = await complete(engine, GenerateRequest("one", prompt, params, routed_from=0))
    path = [*prompt, *first.output_ids]
    turn = [*path, *range(9)]
    second = await complete(engine, GenerateRequest("two", turn, params, streamed=False, routed_from=len(path) - 1))
    whole = [*turn, *second.output_ids]
    experts, scores = by_transformers(folder, whole)
    assert first.logprobs == pytest.approx(scores[39:51], abs=1e-4)
    assert np.array_equal(read(first), experts[: len(path) - 1])
    assert np.array_equal(read(second), experts[len(path) - 1 : -1])
    assert second.cached_tokens > 0
    silent = await complete(engine, GenerateRequest("three", prompt, params))
    assert silent.routed == b""
    await engine.close()
