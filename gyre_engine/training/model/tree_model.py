"""Megatron-core's GPTModel over packed trees, whole or a rank's part of it, bit-reproducible, also without a GPU.

Importing this takes seconds and hundreds of megabytes: only trainers do, forked from a parent that has it loaded.
"""

from __future__ import annotations

import os
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gyre_engine.batching.microstep import PackedMicroStep
from gyre_engine.experts import NO_ROWS, Rows
from gyre_engine.losses.config import Entropy, LossConfig
from gyre_engine.losses.policy import policy_loss
from gyre_engine.losses.targets import Targets
from gyre_engine.training.measures import step_metrics
from gyre_engine.training.mesh import ONE, Mesh, Place
from gyre_engine.training.metrics import StepMetrics
from gyre_engine.training.model.attention import AncestorAttention
from gyre_engine.training.model.flat import sum_type
from gyre_engine.training.model.heap import keep_freed_memory
from gyre_engine.training.model.likelihood import likelihoods
from gyre_engine.training.model.megatron_core import (
    GPTModel,
    ProcessGroupCollection,
    TransformerBlockSubmodules,
    TransformerConfig,
    get_gpt_layer_local_spec,
    quiet,
)
from gyre_engine.training.model.routing import Router, Routing, mixture_config
from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.model.vocabulary import VocabularyPart
from gyre_engine.training.replica import ReplicaOptions, Untrainable


class TreeModel(GPTModel):  # type: ignore[misc]
    """GPTModel over one pack: RoPE follows each token's depth; only rows that predict something reach the logits."""

    recompute = False
    temperature = 1.0
    routing: Routing | None = None
    """Of a mixture of experts."""
    words: VocabularyPart | None = None
    """The words whose logits are this rank's; None: all."""

    def forward(self, ids: Tensor, position: Tensor, end: Tensor, given: Tensor | None = None) -> Tensor:
        """ids, position int64[n], end int32[n] on the CPU -> hidden states [n, hidden]; `given`: those of the stage before."""
        hidden = self.embedding(input_ids=ids[None], position_ids=position[None]) if given is None else given[:, None]
        angles = position.to(torch.float32)[:, None] * self.rotary_pos_emb.inv_freq.to(position.device)
        rotary = torch.cat([angles, angles], dim=-1)[:, None, None, :]
        return self._decoded(hidden, attention_mask=end, rotary_pos_emb=rotary)[:, 0]

    def _decoded(self, hidden: Tensor, **given: Any) -> Tensor:
        """Megatron's own recomputation needs CUDA's random state; nothing here is random, so torch's does."""
        if not (self.recompute and torch.is_grad_enabled()):
            self.decoder.set_input_tensor(hidden)
            out: Tensor = self.decoder(hidden_states=hidden, **given)
            self.decoder.set_input_tensor(None)
            return out
        for layer in self.decoder.layers:
            hidden, _ = checkpoint(layer, hidden, use_reentrant=False, **given)
        return cast(Tensor, self.decoder.final_layernorm(hidden)) if self.post_process else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[m, hidden] -> [m, vocab], or this rank's part of it: made in the model's type, then 16 bits are widened, as sums follow."""
        tied = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if tied else None
        out: Tensor = self.output_layer(hidden[:, None], weight=weight)[0]
        return out[:, 0].to(sum_type(out.dtype))

    def hidden(
        self,
        ids: NDArray[Any],
        position: NDArray[Any],
        end: NDArray[np.int32],
        given: Tensor | None = None,
        *,
        experts: Rows = NO_ROWS,
    ) -> Tensor:
        """As `forward`, of arrays. experts: those that tokens are routed to, where they are recorded (`gyre_engine.experts`)."""
        if self.routing is not None:
            self.routing.set(experts, len(ids))
        elif experts.size:
            raise Untrainable(
                "a micro-step records routed experts, but the model has none: were its calls sampled by another one?"
            )
        mask = torch.from_numpy(np.array(end, dtype=np.int32))
        hidden: Tensor = self(self._tensor(ids, torch.int64), self._tensor(position, torch.int64), mask, given)
        return hidden

    def likelihoods(self, hidden: Tensor, step: PackedMicroStep, entropy: Entropy = Entropy.NONE) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the step's targets, and their entropies where these are asked for."""
        rows = hidden.index_select(0, self._tensor(step.src, torch.int64))
        tokens = self._tensor(step.ids[step.dst], torch.int64)
        return likelihoods(self.logits, rows, tokens, self.temperature, entropy, self.words)

    def add_gradient(self, hidden: Tensor, step: PackedMicroStep, loss: LossConfig, version: int) -> StepMetrics:
        """The backward pass of the step's summed loss from these hidden states, and what it measured."""
        current, entropy = self.likelihoods(hidden, step, loss.entropy_use)
        targets = self._targets(step, version, current.dtype)
        result = policy_loss(current, targets, loss, entropy)
        result.loss.backward()  # type: ignore[no-untyped-call]
        return step_metrics(step, version, result, (current - targets.behaviour).detach(), loss)

    def _targets(self, step: PackedMicroStep, version: int, dtype: torch.dtype) -> Targets:
        return Targets(
            weight=self._tensor(step.weight, dtype),
            sequence=self._tensor(step.sequence, torch.int64),
            behaviour=self._tensor(step.logprobs, dtype),
            staleness=self._tensor(version - step.versions, torch.int64),
            share=self._tensor(step.share, dtype),
            reference=self._tensor(step.reference, dtype),
        )

    def scores(self, hidden: Tensor, step: PackedMicroStep) -> NDArray[np.float32]:
        """float32[m]: the log-probabilities of the step's targets alone."""
        found, _ = self.likelihoods(hidden, step)
        return found.detach().float().cpu().numpy()

    def following(self, hidden: Tensor, ids: NDArray[np.int32], temperature: float | None) -> NDArray[np.float32]:
        """float32[n - 1]: log-probability of ids[1:] from the hidden states of one path."""
        wanted, at = self._tensor(ids[1:], torch.int64), self.temperature if temperature is None else temperature
        found, _ = likelihoods(self.logits, hidden[:-1], wanted, at, words=self.words)
        return found.detach().float().cpu().numpy()

    def _tensor(self, array: NDArray[Any], dtype: torch.dtype | None = None) -> Tensor:
        like = next(self.parameters())
        return torch.tensor(array, dtype=dtype or sum_type(like.dtype), device=like.device)


def build_model(shape: ModelShape, options: ReplicaOptions, mesh: Mesh = ONE, place: Place | None = None) -> TreeModel:
    """A TreeModel of this shape with weights still to be loaded; of a mesh, the part of the rank at `place`."""
    place = place or mesh.place(0)
    with quiet():
        model = TreeModel(
            config=_transformer_config(shape, options, mesh),
            transformer_layer_spec=_layers(shape),
            vocab_size=shape.vocab,
            max_sequence_length=shape.context,
            position_embedding_type="rope",
            rotary_base=shape.rope_base,
            share_embeddings_and_output_weights=shape.tied,
            parallel_output=True,
            pre_process=place.stage == 0,
            post_process=mesh.is_last(place),
            pg_collection=_groups() if mesh.pipeline > 1 else None,
        )
    model.recompute, model.temperature = options.recompute, options.temperature
    if shape.experts is not None:
        model.routing = Routing(shape.experts, [model.decoder.layers[layer].mlp.router for layer in shape.experts.layers])
    if mesh.tensor > 1:
        model.words = VocabularyPart(place.tensor * shape.vocab // mesh.tensor, model.tp_group)
    return cast(TreeModel, model.to(device=options.device, dtype=_dtype(options)))


def prepare_process(device: str) -> None:
    """One thread and deterministic kernels: sums in one order."""
    keep_freed_memory()
    if device.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def _groups() -> Any:
    """Without the group of tied embeddings: over it Megatron would copy their first weights, on a GPU alone. Here they are loaded."""
    groups = ProcessGroupCollection.use_mpu_process_groups()
    groups.embd = None
    return groups


def _layers(shape: ModelShape) -> Any:
    """What a layer is built of; a list of them where some have experts."""
    dense = _layer(shape)
    if shape.experts is None:
        return dense
    mixture = _layer(shape, num_experts=shape.experts.count, moe_grouped_gemm=False)
    mixture.submodules.mlp.submodules.router = Router
    every = [mixture if shape.has_experts(layer) else dense for layer in range(shape.layers)]
    return TransformerBlockSubmodules(layer_specs=every, layer_norm=dense.submodules.input_layernorm)


def _layer(shape: ModelShape, **experts: Any) -> Any:
    spec = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=shape.qk_norm, **experts)
    spec.submodules.self_attention.submodules.core_attention = AncestorAttention
    return spec


def _transformer_config(shape: ModelShape, options: ReplicaOptions, mesh: Mesh) -> TransformerConfig:
    """Every fusion off: the fused paths need CUDA extensions, and this must run without them."""
    return TransformerConfig(
        tensor_model_parallel_size=mesh.tensor,
        pipeline_model_parallel_size=mesh.pipeline,
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.ffn,
        num_attention_heads=shape.heads,
        num_query_groups=shape.kv_heads,
        kv_channels=shape.head_dim,
        layernorm_epsilon=shape.norm_eps,
        qk_layernorm=shape.qk_norm,
        add_qkv_bias=shape.qkv_bias,
        add_bias_linear=False,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=F.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        use_cpu_initialization=True,
        perform_initialization=False,
        params_dtype=_dtype(options),
        pipeline_dtype=_dtype(options),
        cuda_graph_scope=[],
        **mixture_config(shape.experts),
    )


def _dtype(options: ReplicaOptions) -> torch.dtype:
    return {"float64": torch.float64, "bfloat16": torch.bfloat16}.get(options.dtype, torch.float32)
