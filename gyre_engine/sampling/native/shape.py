"""What a model folder's config.json says, as far as a forward pass needs it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre_engine.experts import Experts
from gyre_engine.sampling.port import UnknownModel

ARCHITECTURES = ("qwen3", "qwen3_moe", "qwen2", "llama")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes and switches of a decoder with grouped queries, RoPE, RMS norms and a gated feed-forward; ffn: without experts."""

    architecture: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    norm_eps: float
    rope_theta: float
    max_context: int
    tied: bool
    qk_norm: bool
    qkv_bias: bool
    experts: Experts | None = None

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads


def read_shape(folder: Path) -> ModelShape:
    """The shape of the model in a Hugging Face folder. Raises UnknownModel."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UnknownModel(f"{path} cannot be read ({error}): give a Hugging Face model folder") from error
    return shape_of(config, path)


def shape_of(config: dict[str, Any], path: Path) -> ModelShape:
    """Parse a config; keys that are absent take the defaults of transformers."""
    architecture = config.get("model_type", "")
    if architecture not in ARCHITECTURES:
        raise UnknownModel(f"{path}: model_type {architecture!r} is not one of {', '.join(ARCHITECTURES)}: serve it with SGLang")
    _refuse_what_is_not_computed(config, path)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return ModelShape(
        architecture=architecture,
        vocab=config["vocab_size"],
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        ffn=config["intermediate_size"],
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=_rope(config).get("rope_theta") or config.get("rope_theta", 10000.0),
        max_context=config.get("max_position_embeddings", 2048),
        tied=config.get("tie_word_embeddings", False),
        qk_norm=architecture in ("qwen3", "qwen3_moe"),
        qkv_bias=config.get("attention_bias", architecture == "qwen2"),
        experts=_experts(config, path),
    )


def _experts(config: dict[str, Any], path: Path) -> Experts | None:
    try:
        return Experts.of_config(config)
    except (KeyError, ValueError) as error:
        raise UnknownModel(f"{path}: a mixture of experts that cannot be read: {error}") from error


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _refuse_what_is_not_computed(config: dict[str, Any], path: Path) -> None:
    kind = _rope(config).get("rope_type") or _rope(config).get("type") or "default"
    windows = config.get("use_sliding_window", False)
    if kind != "default" or windows or config.get("hidden_act", "silu") != "silu":
        raise UnknownModel(
            f"{path}: RoPE {kind!r}, sliding windows {windows} and hidden_act are not all plain: serve it with SGLang"
        )
