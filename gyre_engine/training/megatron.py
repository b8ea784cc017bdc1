"""The training replica on Megatron-core: a GPTModel that trains packed trees, bit-reproducibly, also without a GPU.

Importing this takes seconds and hundreds of megabytes: only trainers do, forked from a parent that has it loaded.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.utils.checkpoint import checkpoint

from gyre_engine.batching.microstep import PackedMicroStep
from gyre_engine.losses.config import LossConfig
from gyre_engine.losses.policy import Targets, policy_loss
from gyre_engine.training.attention import AncestorAttention
from gyre_engine.training.flat import FlatParameters, flatten
from gyre_engine.training.likelihood import likelihoods
from gyre_engine.training.measures import step_metrics
from gyre_engine.training.megatron_core import (
    GPTModel,
    TransformerConfig,
    get_gpt_layer_local_spec,
    parallel_state,
    quiet,
)
from gyre_engine.training.replica import ReplicaOptions, StepMetrics, TrainingError
from gyre_engine.training.shape import ModelShape
from gyre_engine.training.weights import read_image, to_hf, to_megatron


class TreeModel(GPTModel):  # type: ignore[misc]
    """GPTModel over one pack: RoPE follows each token's depth; only rows that predict something reach the logits."""

    recompute = False

    def forward(self, ids: Tensor, position: Tensor, end: Tensor) -> Tensor:
        """ids, position int64[n], end int32[n] on the CPU -> hidden states [n, hidden]."""
        hidden = self.embedding(input_ids=ids[None], position_ids=position[None])
        angles = position.to(torch.float32)[:, None] * self.rotary_pos_emb.inv_freq
        rotary = torch.cat([angles, angles], dim=-1)[:, None, None, :]
        return self._decoded(hidden, attention_mask=end, rotary_pos_emb=rotary)[:, 0]

    def _decoded(self, hidden: Tensor, **given: Any) -> Tensor:
        """Megatron's own recomputation needs CUDA's random state; nothing here is random, so torch's does."""
        if not (self.recompute and torch.is_grad_enabled()):
            return cast(Tensor, self.decoder(hidden_states=hidden, **given))
        for layer in self.decoder.layers:
            hidden, _ = checkpoint(layer, hidden, use_reentrant=False, **given)
        return cast(Tensor, self.decoder.final_layernorm(hidden))

    def logits(self, hidden: Tensor) -> Tensor:
        """[m, hidden] -> [m, vocab]."""
        tied = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if tied else None
        out: Tensor = self.output_layer(hidden[:, None], weight=weight)[0]
        return out[:, 0]


class MegatronReplica:
    """A TrainingReplica (see the port) of one model shape, in this process alone."""

    def __init__(self, shape: ModelShape, options: ReplicaOptions | None = None) -> None:
        self.shape = shape
        self.options = options or ReplicaOptions()
        self.version = -1
        _prepare_process(self.options.device)
        with quiet():
            self._model = build_model(shape, self.options)
        self.parameters: FlatParameters = flatten(self._model.named_parameters())

    def load(self, image: bytes | Path, version: int) -> None:
        """See the port. Raises TrainingError where the image is of another model."""
        state = to_megatron(read_image(image), self.shape)
        with torch.no_grad():
            for slot in self.parameters.layout:
                _copy(state[slot.name], slot.of(self.parameters.weights), slot.name)
        self.version = version

    def accumulate(self, step: PackedMicroStep, loss: LossConfig) -> StepMetrics:
        """See the port. Raises TrainingError before any weights were loaded, or for a version from the future."""
        self._check(step)
        current, entropy = self._likelihoods(step, loss.entropy)
        behaviour, weight = self._tensor(step.logprobs), self._tensor(step.weight)
        sequence = self._tensor(step.sequence, torch.int64)
        result = policy_loss(current, behaviour, Targets(weight, sequence), loss)
        result.loss.backward()  # type: ignore[no-untyped-call]
        return step_metrics(step, self.version, result, (current - behaviour).detach(), entropy)

    def zero(self) -> None:
        """See the port."""
        self.parameters.gradients.zero_()

    def gradient_buffer(self) -> NDArray[np.float32]:
        """See the port. On a GPU: a copy on the host."""
        return self.parameters.gradients.cpu().numpy()

    def logprobs(self, ids: NDArray[np.int32], *, temperature: float | None = None) -> NDArray[np.float32]:
        """See the port."""
        count = len(ids)
        with torch.no_grad():
            hidden = self._hidden(ids, np.arange(count), np.full(count, count, dtype=np.int32))
            current, _ = likelihoods(
                self._model.logits,
                hidden[:-1],
                self._tensor(ids[1:], torch.int64),
                self.options.temperature if temperature is None else temperature,
            )
        return current.float().cpu().numpy()

    def export(self) -> bytes:
        """See the port."""
        slots = {slot.name: slot.of(self.parameters.weights) for slot in self.parameters.layout}
        state = {name: tensor.float().cpu().contiguous() for name, tensor in to_hf(slots, self.shape).items()}
        return save(state, metadata={"format": "pt"})

    def weights_hash(self) -> str:
        """See the port."""
        return hashlib.sha256(self.export()).hexdigest()

    def _check(self, step: PackedMicroStep) -> None:
        if self.version < 0:
            raise TrainingError("a micro-step came before any weights; call load first")
        newest = int(step.versions.max(initial=0))
        if newest > self.version:
            raise TrainingError(f"a target was sampled at version {newest}, the replica holds {self.version}; load it")
        if step.tokens and not 0 <= int(step.ids.min()) <= int(step.ids.max()) < self.shape.vocab:
            raise TrainingError(f"a token id lies outside the vocabulary of {self.shape.vocab}")

    def _likelihoods(self, step: PackedMicroStep, entropy: bool) -> tuple[Tensor, float]:
        hidden = self._hidden(step.ids, step.position, step.end)
        rows = hidden.index_select(0, self._tensor(step.src, torch.int64))
        tokens = self._tensor(step.ids[step.dst], torch.int64)
        return likelihoods(self._model.logits, rows, tokens, self.options.temperature, entropy)

    def _hidden(self, ids: NDArray[Any], position: NDArray[Any], end: NDArray[np.int32]) -> Tensor:
        mask = torch.from_numpy(np.array(end, dtype=np.int32))
        hidden: Tensor = self._model(self._tensor(ids, torch.int64), self._tensor(position, torch.int64), mask)
        return hidden

    def _tensor(self, array: NDArray[Any], dtype: torch.dtype | None = None) -> Tensor:
        return torch.tensor(array, dtype=dtype or self.parameters.weights.dtype, device=self.options.device)


def build_model(shape: ModelShape, options: ReplicaOptions) -> TreeModel:
    """A TreeModel of this shape with weights still to be loaded."""
    spec = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=shape.qk_norm)
    spec.submodules.self_attention.submodules.core_attention = AncestorAttention
    model = TreeModel(
        config=_transformer_config(shape, options),
        transformer_layer_spec=spec,
        vocab_size=shape.vocab,
        max_sequence_length=shape.context,
        position_embedding_type="rope",
        rotary_base=shape.rope_base,
        share_embeddings_and_output_weights=shape.tied,
        parallel_output=True,
    )
    model.recompute = options.recompute
    return cast(TreeModel, model.to(device=options.device, dtype=_dtype(options)))


def _transformer_config(shape: ModelShape, options: ReplicaOptions) -> TransformerConfig:
    """Every fusion off: the fused paths need CUDA extensions, and this must run without them."""
    return TransformerConfig(
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
    )


def _dtype(options: ReplicaOptions) -> torch.dtype:
    return torch.float64 if options.dtype == "float64" else torch.float32


def _prepare_process(device: str) -> None:
    """One thread and deterministic kernels: sums in one order. A world of one, without a port to fight for."""
    if device.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(1, 1)


def _copy(source: Tensor, target: Tensor, name: str) -> None:
    if source.shape != target.shape:
        raise TrainingError(f"{name} has shape {tuple(source.shape)}, the model's config says {tuple(target.shape)}")
    target.copy_(source)
