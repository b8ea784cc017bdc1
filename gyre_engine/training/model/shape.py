"""The shape of a model, read from its Hugging Face config.json; Qwen3, Qwen3-MoE, Qwen2 and Llama."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre_engine.experts import Experts
from gyre_engine.training.replica import TrainingError

FAMILIES = ("qwen3", "qwen3_moe", "qwen2", "llama")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder with grouped-query attention, RoPE, RMSNorm and SwiGLU; context in tokens. ffn: of layers without experts."""

    family: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_base: float
    norm_eps: float
    tied: bool
    experts: Experts | None = None

    @property
    def qk_norm(self) -> bool:
        return self.family in ("qwen3", "qwen3_moe")

    @property
    def qkv_bias(self) -> bool:
        return self.family == "qwen2"

    def has_experts(self, layer: int) -> bool:
        """Whether a layer's feed-forward part is a mixture of experts."""
        return self.experts is not None and layer in self.experts.layers

    @classmethod
    def of_folder(cls, folder: Path) -> ModelShape:
        """From folder/config.json. Raises TrainingError."""
        path = folder / "config.json"
        if not path.is_file():
            raise TrainingError(f"{folder} has no config.json; give a folder that transformers can load")
        return cls.of_config(json.loads(path.read_text()))

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """From the fields of a config.json. Raises TrainingError for what would not be trained exactly or is no such field."""
        try:
            _check_supported(config)
            return cls._of_fields(config)
        except (TypeError, ValueError, AttributeError) as error:
            raise TrainingError(
                f"config.json has a field of another kind than models have ({error}): put the model's own config.json there"
            ) from error

    @classmethod
    def _of_fields(cls, config: Mapping[str, Any]) -> ModelShape:
        heads = int(config["num_attention_heads"])
        return cls(
            family=str(config["model_type"]),
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            ffn=int(config["intermediate_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
            vocab=int(config["vocab_size"]),
            context=int(config["max_position_embeddings"]),
            rope_base=float(_rope(config).get("rope_theta", 10000.0)),
            norm_eps=float(config["rms_norm_eps"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            experts=_experts(config),
        )


def _experts(config: Mapping[str, Any]) -> Experts | None:
    try:
        return Experts.of_config(config)
    except (KeyError, ValueError) as error:
        raise TrainingError(f"a mixture of experts that cannot be trained: {error}") from error


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """transformers 5 writes rope_parameters; older configs rope_theta and rope_scaling."""
    if config.get("rope_parameters"):
        return dict(config["rope_parameters"])
    return {"rope_theta": config.get("rope_theta", 10000.0), **(config.get("rope_scaling") or {})}


def _check_supported(config: Mapping[str, Any]) -> None:
    family = config.get("model_type")
    if family not in FAMILIES:
        raise TrainingError(f"model_type {family!r} cannot be trained; supported: {', '.join(FAMILIES)}")
    rope = _rope(config)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise TrainingError(f"rope type {kind!r} cannot be trained; supported: default")
    for key in ("use_sliding_window", "attention_bias", "mlp_bias"):
        if config.get(key):
            raise TrainingError(f"a model with {key} cannot be trained; supported: {key} = false")
    if config.get("hidden_act", "silu") != "silu":
        raise TrainingError(f"hidden_act {config['hidden_act']!r} cannot be trained; supported: silu")
