"""What a trainer refuses to compute, before any gradient is added: pure."""

from __future__ import annotations

from gyre_engine.batching import PackedMicroStep
from gyre_engine.batching.step_inputs import Packing
from gyre_engine.events.training import StepOpened
from gyre_engine.training.ledger.fold import Ledger
from gyre_engine.training.replica import TrainingError, Untrainable


def require_budget(name: str, pack: PackedMicroStep, packing: Packing) -> None:
    """Raises Untrainable for a micro-step that is larger than this run's are. Only a single path may be longer than the budget."""
    if pack.tokens > max(packing.max_tokens, packing.context):
        raise Untrainable(
            f"micro-step {name} has {pack.tokens} tokens, batch.micro_step_tokens is {packing.max_tokens} and model.context "
            f"{packing.context}: it was packed under another config"
        )


def require_known_weights(ledger: Ledger, opened: StepOpened) -> None:
    """Raises TrainingError for a step that was opened on weights which no committed step has left, nor, before any, version 0 has.

    A core that starts again opens it anew, on the weights that the ledger knows."""
    before, published = ledger.committed, ledger.published
    if before is not None:
        known, where = before.weights_hash, f"step {before.step} was committed with"
    elif published is not None and published.version == 0:
        known, where = published.weights_hash, "version 0 was published as"
    else:
        return
    if opened.weights_hash != known:
        raise TrainingError(
            f"step {opened.step} was opened on weights {opened.weights_hash[:16]}, which nobody knows: {where} {known[:16]}"
        )
