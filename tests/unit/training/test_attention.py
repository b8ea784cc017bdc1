"""Attention of packs against a softmax that is written out over the whole square."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre_engine.training.model.visibility import parts
from tests.unit.training.test_visibility import ends, rule

torch = pytest.importorskip("torch")

from gyre_engine.training.model.blocks import block_attention, block_mask  # noqa: E402
from gyre_engine.training.model.chains import chain_attention  # noqa: E402

SCALE = 0.3

uncompiled = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
"""A CPU has no kernel of it, but the same mask gives the same softmax."""


def written_out(query, key, value, end):
    """Each query head of its group's key and value; what is not seen weighs nothing."""
    key, value = (t.repeat_interleave(query.size(1) // t.size(1), dim=1) for t in (key, value))
    scores = (query @ key.transpose(-1, -2)) * SCALE
    return torch.softmax(scores.masked_fill(~torch.from_numpy(rule(end)), float("-inf")), -1) @ value


def tensors(rows, heads, groups, dtype, seed=0):
    """Laid out as Megatron gives them: rows outermost."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, 1, count, 8) for count in (heads, groups, groups, heads)]
    found = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).permute(1, 2, 0, 3) for shape in shapes]
    return [t.requires_grad_() for t in found[:3]], found[3]


@settings(deadline=None, max_examples=60)
@given(ends(), st.sampled_from([(1, 1), (4, 2), (9, 3)]), st.sampled_from([(torch.float64, 1e-13), (torch.float32, 3e-6)]))
def test_output_and_gradients_are_those_of_the_whole_softmax(end, heads, precision):
    dtype, bound = precision
    (query, key, value), gradient = tensors(len(end), *heads, dtype)
    expected = written_out(query, key, value, end)
    wanted = torch.autograd.grad(expected, (query, key, value), gradient)
    found = chain_attention(query, key, value, parts(end), SCALE)
    got = torch.autograd.grad(found, (query, key, value), gradient)
    for left, right in zip((found, *got), (expected, *wanted), strict=True):
        assert left.dtype == dtype
        assert float((left - right).detach().norm()) <= bound * max(1.0, float(right.detach().norm()))


def test_half_precision_sums_in_single():
    """A row with 40 ancestors, one a chain: sums in bfloat16 would err by more than one rounding of the output."""
    end = np.arange(1, 81, dtype=np.int32)
    end[::2] = 80
    (query, key, value), _ = tensors(80, 2, 1, torch.bfloat16)
    exact = written_out(*(t.detach().double() for t in (query, key, value)), end)
    found = chain_attention(query, key, value, parts(end), SCALE)
    assert found.dtype == torch.bfloat16
    assert float((found.detach().double() - exact).abs().max()) <= 2**-8 * float(exact.abs().max())


@uncompiled
def test_blocks_beyond_one_agree_with_the_rule():
    """A trunk of 300 with leaves of 100, 30 and 170: 600 rows, five blocks, the last one short.

    Through torch's uncompiled FlexAttention, which knows no gradients on a CPU."""
    end = np.repeat(np.array([600, 400, 430, 600], dtype=np.int32), [300, 100, 30, 170])
    mask = block_mask(end.tobytes(), torch.device("cpu"))
    partly, whole = mask.kv_num_blocks[0, 0].tolist(), mask.full_kv_num_blocks[0, 0].tolist()
    assert [a + b for a, b in zip(partly, whole, strict=True)] == [1, 2, 3, 4, 5]
    assert whole == [0, 1, 2, 2, 2]
    query, key, value = (t.detach() for t in tensors(600, 2, 1, torch.float32)[0])
    found = block_attention(query, key, value, end.tobytes(), SCALE)
    assert torch.allclose(found, written_out(query, key, value, end), atol=1e-5)
