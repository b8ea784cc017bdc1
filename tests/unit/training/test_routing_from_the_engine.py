"""From a mixture of experts in the native engine to the trainer: the same log-probabilities, routed by the record and freely."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gyre_engine.batching.assemble import assemble
from gyre_engine.batching.microstep import PackedMicroStep
from gyre_engine.batching.packing import pack
from gyre_engine.events.calls import Continuity, Finish, InputSpan, ModelCall, Provenance, Role, WeightSpan
from gyre_engine.events.training import AdmittedExecution, SelectedTrajectory
from gyre_engine.experts import Experts, recorded_from
from gyre_engine.sampling.native.batcher import Batcher, Limits
from gyre_engine.sampling.native.fresh import QUICKSTART, write_fresh_model
from gyre_engine.sampling.native.sampler import request_key
from gyre_engine.sampling.native.sequence import Sequence
from gyre_engine.sampling.native.weights import read_weights
from gyre_engine.sampling.port import Chunk, SamplingParams
from gyre_engine.training.model.megatron import MegatronReplica
from gyre_engine.training.model.shape import ModelShape

pytestmark = pytest.mark.filterwarnings("ignore:.*tp_group is None:DeprecationWarning")

EXPERTS = Experts(count=6, chosen=2, ffn=20, normed=True, layers=(0, 2))
MIXTURE = replace(
    QUICKSTART, architecture="qwen3_moe", vocab=96, hidden=32, layers=3, heads=4, kv_heads=2, head_dim=8, ffn=48, max_context=512,
    experts=EXPERTS,
)  # fmt: skip


class Agent:
    """Calls of one execution to a native engine, recorded as the proxy records them."""

    def __init__(self, folder: Path) -> None:
        self.engine = Batcher(MIXTURE, read_weights(folder, MIXTURE), "0", Limits(max_context=512, kv_capacity=4096))
        self.calls: list[ModelCall] = []
        self.paths: list[list[int]] = []

    def call(self, parent: int, shared: int, new: list[int], most: int = 12) -> int:
        """Go on from the first `shared` tokens of an earlier path, which is all that call's own or its end."""
        prompt = [*(self.paths[parent][:shared] if parent >= 0 else []), *new]
        number, chunks = len(self.calls), list[Chunk]()
        params = SamplingParams(max_tokens=most, seed=3)
        sequence = Sequence(
            str(number), list(prompt), params, request_key(3, str(number)), 512, chunks.append, routed_from=recorded_from(shared)
        )
        with torch.inference_mode():
            self.engine.submit(sequence)
            while self.engine.busy:
                self.engine.step()
        output = [token for chunk in chunks for token in chunk.output_ids]
        self.calls.append(
            ModelCall(
                execution="e", call=f"c{number}", number=number, owner_epoch=1, parent=f"c{parent}" if parent >= 0 else None,
                prefix_len=shared, prefix_hash=b"", new_input_ids=np.array(new, np.int32), output_ids=np.array(output, np.int32),
                logprobs=np.array([p for chunk in chunks for p in chunk.logprobs], np.float32),
                weight_spans=(WeightSpan(0, 0, "c"),), input_spans=(InputSpan(0, Provenance.USER),), finish=Finish.STOP,
                continuity=Continuity.BRIDGED, dialect="chat", temperature=1.0, top_p=1.0, max_tokens=most, tools=0, messages=1,
                shape="s", routed_experts=np.frombuffer(chunks[-1].routed, np.uint8),
            )
        )  # fmt: skip
        self.paths.append([*prompt, *output])
        return number


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("mixtures")
    return [write_fresh_model(root / str(seed), MIXTURE, seed=seed, spread=0.25) for seed in (1, 2)]


@pytest.fixture(scope="module")
def step(folders: list[Path]) -> PackedMicroStep:
    """Two turns, and a branch out of the first."""
    agent = Agent(folders[0])
    agent.call(-1, 0, [(7 * i) % 96 for i in range(20)])
    agent.call(0, 32, [5, 6, 7])
    agent.call(0, 26, [8, 9])
    leaves = tuple(SelectedTrajectory(f"c{leaf}", Role.MAIN, count) for leaf, count in ((1, 24), (2, 12)))
    admitted = AdmittedExecution("e", 0, "s", 1.0, 0.7, 36, leaves, (), 0)
    (found,) = pack([assemble(admitted, agent.calls)], 1000)
    return found


def scores(folder: Path, step: PackedMicroStep) -> np.ndarray:
    replica = MegatronReplica(ModelShape.of_folder(folder))
    replica.load(folder, 0)
    model = replica._model
    with torch.no_grad():
        return model.scores(model.hidden(step.ids, step.position, step.end, experts=step.experts), step)


def test_every_token_that_matters_has_a_record(step: PackedMicroStep) -> None:
    """All but the last token of each leaf, which no target depends on."""
    known = np.flatnonzero(EXPERTS.routed(step.experts)[:, 0, 0] >= 0)
    assert set(step.src.tolist()) <= set(known.tolist())
    assert len(known) == step.tokens - 2


def test_the_trainer_finds_what_the_engine_sampled_with_routed_by_its_record_or_freely(
    folders: list[Path], step: PackedMicroStep
) -> None:
    for one in (step, replace(step, experts=step.experts[:0])):
        assert np.abs(scores(folders[0], one) - step.logprobs).max() <= 1e-4


def test_under_other_weights_the_record_still_decides_who_computes(folders: list[Path], step: PackedMicroStep) -> None:
    forced, free = scores(folders[1], step), scores(folders[1], replace(step, experts=step.experts[:0]))
    assert np.abs(forced - free).max() > 0.1
    swapped = EXPERTS.routed(step.experts)[:, :, ::-1].copy()
    assert scores(folders[1], replace(step, experts=EXPERTS.rows(swapped))) == pytest.approx(forced, abs=1e-5)
