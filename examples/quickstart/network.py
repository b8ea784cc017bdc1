"""The model in plain torch, for the warm start: Qwen3's architecture at a size that one processor core trains in minutes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of the network (Hugging Face's names in `hf_config`)."""

    vocabulary: int = 640
    hidden: int = 160
    layers: int = 4
    heads: int = 5
    kv_heads: int = 1
    head: int = 32
    ffn: int = 448
    positions: int = 32768
    theta: float = 10000.0
    eps: float = 1e-6


class RMSNorm(nn.Module):
    """x / rms(x) * weight, over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, half-split layout. x: [batch, heads, time, head]; cos, sin: [time, head]."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Attention(nn.Module):
    """Causal attention with grouped heads and a norm on queries and keys."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.q_proj = nn.Linear(size.hidden, size.heads * size.head, bias=False)
        self.k_proj = nn.Linear(size.hidden, size.kv_heads * size.head, bias=False)
        self.v_proj = nn.Linear(size.hidden, size.kv_heads * size.head, bias=False)
        self.o_proj = nn.Linear(size.heads * size.head, size.hidden, bias=False)
        self.q_norm = RMSNorm(size.head, size.eps)
        self.k_norm = RMSNorm(size.head, size.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, time, _ = x.shape
        split = (batch, time, -1, self.size.head)
        q = rotate(self.q_norm(self.q_proj(x).view(split)).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(self.k_proj(x).view(split)).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(split).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        mixed: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, time, -1))
        return mixed


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size.hidden, size.ffn, bias=False)
        self.up_proj = nn.Linear(size.hidden, size.ffn, bias=False)
        self.down_proj = nn.Linear(size.ffn, size.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Attention and feed-forward, each normed before and added."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(size.hidden, size.eps)
        self.self_attn = Attention(size)
        self.post_attention_layernorm = RMSNorm(size.hidden, size.eps)
        self.mlp = FeedForward(size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Network(nn.Module):
    """Token ids to logits; parameters are named as in Hugging Face's Qwen3 without the prefix `model.`; embeddings are tied."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.embed_tokens = nn.Embedding(size.vocabulary, size.hidden)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = RMSNorm(size.hidden, size.eps)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: int64[batch, time] -> the last hidden states, normed: float[batch, time, hidden]."""
        cos, sin = self._rotary(tokens.shape[1])
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        hidden: Tensor = self.norm(x)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """float[..., hidden] -> float[..., vocabulary]."""
        return hidden @ self.embed_tokens.weight.T

    def _rotary(self, time: int) -> tuple[Tensor, Tensor]:
        rates = self.size.theta ** (-torch.arange(0, self.size.head, 2, dtype=torch.float32) / self.size.head)
        angles = torch.outer(torch.arange(time, dtype=torch.float32), rates).repeat(1, 2)
        return angles.cos(), angles.sin()


def hf_config(size: Size, end: int, padding: int) -> dict[str, Any]:
    """config.json of the same model for Hugging Face's Qwen3ForCausalLM."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": size.vocabulary,
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head,
        "intermediate_size": size.ffn,
        "max_position_embeddings": size.positions,
        "rope_theta": size.theta,
        "rms_norm_eps": size.eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_sliding_window": False,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": padding,
        "torch_dtype": "bfloat16",
    }
