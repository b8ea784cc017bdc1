"""Mixtures of experts in training: Megatron's router, choosing as Hugging Face's does, or as the engine did where that is recorded.

promises  recorded experts are exactly those that compute; their weights are the current router's probabilities, so that it learns

Megatron's own replay stands on a list of all routers of a process and knows no token without a record; its gate needs CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gyre_engine.experts import FREE, BadRouting, Experts, Rows
from gyre_engine.training.model.megatron_core import TopKRouter
from gyre_engine.training.replica import Untrainable


class Router(TopKRouter):  # type: ignore[misc]
    """The gate of one layer: softmax over all experts, the likeliest `chosen` of them, their probabilities scaled to 1 if `normed`.

    given: int64[tokens, chosen] of the next forward pass and what is computed again for its backward pass, FREE where the gate
           chooses; None: everywhere
    """

    normed = False
    given: Tensor | None = None

    def gating(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight)

    def routing(self, logits: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """logits [tokens, 1, experts] -> the weight of each expert [tokens, experts], and which compute."""
        logits = logits.flatten(0, 1)
        likely = logits.softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        chosen = likely.topk(self.topk, dim=-1).indices
        if self.given is not None:
            chosen = torch.where(self.given == FREE, chosen, self.given)
        weights = likely.gather(1, chosen)
        if self.normed:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        compute = torch.zeros_like(logits, dtype=torch.bool).scatter(1, chosen, torch.ones_like(chosen, dtype=torch.bool))
        return torch.zeros_like(logits).scatter(1, chosen, weights.to(logits.dtype)), compute


class Routing:
    """The routers of a model's layers, told together what is recorded."""

    def __init__(self, experts: Experts, routers: Sequence[Router]) -> None:
        self._experts, self._routers = experts, routers
        for router in routers:
            router.normed = experts.normed

    def set(self, rows: Rows, tokens: int) -> None:
        """Take a pack's record, until the next one; no rows: route freely. Raises Untrainable."""
        given = None if not rows.size else self._read(rows, tokens)
        for number, router in enumerate(self._routers):
            router.given = None if given is None else given[:, number].to(router.weight.device)

    def _read(self, rows: Rows, tokens: int) -> Tensor:
        try:
            if len(rows) != tokens:
                raise BadRouting(f"{len(rows)} rows of routed experts for {tokens} tokens")
            return torch.from_numpy(self._experts.routed(rows))
        except BadRouting as error:
            raise Untrainable(f"routed experts: {error}") from error


def mixture_config(experts: Experts | None) -> dict[str, Any]:
    """What of Megatron's config is about experts: no loss of its own, no capacity, nothing dropped, and nothing fused."""
    if experts is None:
        return {}
    return {
        "num_moe_experts": experts.count,
        "moe_router_topk": experts.chosen,
        "moe_ffn_hidden_size": experts.ffn,
        "moe_router_pre_softmax": True,
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_token_dispatcher_type": "allgather",
        "moe_grouped_gemm": False,
        "moe_permute_fusion": False,
    }
