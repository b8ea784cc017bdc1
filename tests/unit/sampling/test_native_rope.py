"""The native engine's angles far into a context: those of transformers, or the gap to the trainer grows with each position."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from gyre_engine.sampling.native.model import _rope_tables
from gyre_engine.sampling.native.shape import ModelShape

CONTEXT = 32768


@pytest.mark.parametrize(("theta", "dim"), [(10_000.0, 32), (100_000.0, 64), (1_000_000.0, 128)])
def test_angles_are_the_trainers_at_every_position(theta: float, dim: int) -> None:
    config = LlamaConfig(
        hidden_size=4 * dim, num_attention_heads=4, num_key_value_heads=2, head_dim=dim, max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )  # fmt: skip
    shape = ModelShape(
        architecture="llama", vocab=8, hidden=4 * dim, layers=1, heads=4, kv_heads=2, head_dim=dim, ffn=8, norm_eps=1e-6,
        rope_theta=theta, max_context=CONTEXT, tied=True, qk_norm=False, qkv_bias=False,
    )  # fmt: skip
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(CONTEXT)[None])
    ours_cos, ours_sin = _rope_tables(shape, CONTEXT)
    signs = torch.cat([-torch.ones(dim // 2), torch.ones(dim // 2)])  # the first half carries the sign of the rotation
    torch.testing.assert_close(ours_cos, cos[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(ours_sin, sin[0] * signs, rtol=0, atol=1e-6)
