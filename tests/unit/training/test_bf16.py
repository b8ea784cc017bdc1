"""A replica of bf16 weights: what it computes, sums, exports and loads."""

import numpy as np
import pytest

from gyre_engine.batching import pack
from gyre_engine.losses import LossConfig
from gyre_engine.training.mesh import Mesh
from gyre_engine.training.optimizer.adamw import AdamW
from gyre_engine.training.replica import Hyper
from tests.contract.leaders import Leader
from tests.contract.replicas import FAMILIES, forest, four_executions, gradient, one_process

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

pytestmark = pytest.mark.filterwarnings("ignore:.*tp_group is None:DeprecationWarning")

ROUNDING = 2.0**-8
"""Of one bf16 number."""


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_transformers_in_bf16_up_to_roundings(folder, family):
    """Both round after every operation, elsewhere: they are as near to each other as each is to float32."""
    ids = np.random.default_rng(1).integers(0, 62, 50).astype(np.int32)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder(family), dtype=torch.bfloat16, attn_implementation="eager")
    with torch.no_grad():
        logits = model(torch.from_numpy(ids[None].astype(np.int64))).logits[0, :-1].float()
    expected = torch.log_softmax(logits, -1).gather(1, torch.from_numpy(ids[1:, None].astype(np.int64)))[:, 0].numpy()
    found = one_process(folder(family), dtype="bfloat16").logprobs(ids)
    exact = one_process(folder(family)).logprobs(ids)
    assert found.dtype == np.float32
    assert 0 < np.abs(found - exact).max() < 30 * ROUNDING
    assert np.abs(found - expected).mean() < 2 * np.abs(expected - exact).mean()


def test_gradients_are_summed_in_float32(folder):
    """A micro-step again and again: in bf16 the sum would stand still after 256 additions of itself."""
    replica = one_process(folder("qwen3"), dtype="bfloat16")
    (step,) = pack(forest(), 1000)
    once = gradient(replica, [step])
    assert once.dtype == np.float32
    many = gradient(replica, [step] * 300)
    assert np.linalg.norm(many / 300 - once) / np.linalg.norm(once) < 1e-5
    exact = gradient(one_process(folder("qwen3")), [step])
    assert np.linalg.norm(once) == pytest.approx(np.linalg.norm(exact), rel=0.1)


def test_the_same_steps_give_the_same_bytes_wherever_their_memory_lies(folder):
    steps = pack(forest() + four_executions(), 100)
    first, held = gradient(one_process(folder("qwen3"), dtype="bfloat16"), steps), torch.zeros(1001)
    second = gradient(one_process(folder("qwen3"), dtype="bfloat16"), steps)
    assert first.tobytes() == second.tobytes() and held.sum() == 0


def test_an_image_of_bf16_is_loaded_as_it_is_and_by_transformers(folder, tmp_path):
    replica = one_process(folder("qwen3"), dtype="bfloat16")
    image = replica.export()
    tensors = safetensors_torch.load(image)
    saved = safetensors_torch.load_file(folder("qwen3") / "model.safetensors")
    assert all(torch.equal(tensors[name], saved[name].to(torch.bfloat16)) for name in saved)
    satellite = one_process(folder("qwen3"), dtype="bfloat16")
    satellite.load(image, version=4)
    assert satellite.weights_hash() == replica.weights_hash()
    (tmp_path / "model.safetensors").write_bytes(image)
    (tmp_path / "config.json").write_bytes((folder("qwen3") / "config.json").read_bytes())
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).state_dict()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_an_update_of_a_bf16_replica_is_its_masters_rounded(folder):
    """Independently: float32 copies of the weights, torch's AdamW a parameter, rounded."""
    replica = one_process(folder("qwen3"), dtype="bfloat16")
    (step,) = pack(forest(), 1000)
    flat, hyper = replica.parameters, Hyper(lr=1e-3, weight_decay=0.1, clip=0.0)
    masters = {slot.name: torch.nn.Parameter(slot.of(flat.weights).float()) for slot in flat.layout}
    decays = {slot.name: len(slot.shape) >= 2 for slot in flat.layout}
    groups = [
        {"params": [masters[n] for n in masters if decays[n] is d], "weight_decay": 0.1 if d else 0.0} for d in (True, False)
    ]
    reference = torch.optim.AdamW(groups, lr=1e-3, foreach=False)
    optimizer = AdamW(flat, replica.shards())
    for version in (4, 5):
        grad = torch.from_numpy(gradient(replica, [step]))
        optimizer.apply(grad.numpy(), 2, hyper)
        replica.version = version
        for slot in flat.layout:
            masters[slot.name].grad = slot.of(grad) / 2
        reference.step()
        assert all(torch.equal(slot.of(flat.weights), masters[slot.name].detach().to(torch.bfloat16)) for slot in flat.layout)


@pytest.mark.parametrize(
    "mesh",
    [Mesh(data=2), pytest.param(Mesh(tensor=2), marks=pytest.mark.slow), pytest.param(Mesh(pipeline=2), marks=pytest.mark.slow)],
    ids=["data", "tensor", "pipeline"],
)
def test_ranks_of_bf16_do_what_one_process_does_up_to_roundings(folder, mesh):
    steps = pack(forest() + four_executions(), 1000)
    alone = one_process(folder("qwen3"), dtype="bfloat16")
    expected = gradient(alone, steps, LossConfig(cap=1e9))
    cell = Leader(folder("qwen3"), mesh, dtype="bfloat16")
    try:
        assert cell.export() == alone.export()
        found = gradient(cell, steps, LossConfig(cap=1e9))
    finally:
        cell.end()
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 5 * ROUNDING
