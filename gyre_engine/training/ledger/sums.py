"""What a step measured, in the ledger's words: names and numbers by which a member's `metrics` stand in its seal, and what those of
all seals come to in the step's commit. Pure, no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from gyre_engine.events.training import Sealed
from gyre_engine.training.metrics import ABOVE, BELOW, StepMetrics, largest

TAILS = (*(f"ratio_above_{bound:g}" for bound in ABOVE), *(f"ratio_below_{bound:g}" for bound in BELOW))
"""Names of the counts of importance weights beyond each bound."""
PARTS = ("policy_loss", "kl_loss", "entropy_loss")
"""Names of the loss's parts."""
MEANS = {"entropy": ("entropy_sum", "entropy_targets"), "kl": ("moved_sum", "targets"), "reference_kl": ("kl_sum", "kl_targets")}
"""Names of means over targets, each with the names of its sum and of how many it is over."""
_DRIFT = re.compile(r"drift_-?\d+_tokens")


def flat_metrics(metrics: StepMetrics) -> dict[str, float]:
    """What a seal says, as sums over the member's micro-steps; means stand beside their counts (drift, clip_fraction)."""
    flat = {
        **{
            name: float(getattr(metrics, name))
            for name in ("targets", "clipped", *PARTS, *(n for pair in MEANS.values() for n in pair))
        },
        **dict(zip(TAILS, map(float, (*metrics.tails.above, *metrics.tails.below)), strict=True)),
        "clip_fraction": metrics.clip_fraction,
        "ratio_max": metrics.tails.largest,
    }
    for staleness, drift in metrics.drift.items():
        flat[f"drift_{staleness}_tokens"] = float(drift.tokens)
        flat[f"drift_{staleness}_ratio_mean"] = drift.ratio_mean
        flat[f"drift_{staleness}_ratio_max"] = drift.ratio_max
        flat[f"drift_{staleness}_gap_mean"] = drift.gap_sum / drift.tokens
    return flat


def mean_loss(seals: Sequence[Sealed], divisor: int) -> float | None:
    """The loss whose gradient the update takes: the members' sums over what their gradients are divided by. None: not a number."""
    loss = sum((s.loss_sum for s in seals), 0.0) / divisor if divisor else 0.0
    return loss if math.isfinite(loss) else None


def step_totals(seals: Sequence[Sealed], divisor: int) -> dict[str, float]:
    """What a commit says of the step. Loss parts are divided as the loss is; tails are counts; a mean that no seal has a sum for, as
    those of earlier versions, is left out, and so is every figure of which a member's share is not a number: its seal tells whose."""
    totals: dict[str, float] = {
        "targets": float(sum(s.tokens for s in seals)),
        "packed_tokens": float(sum(s.packed_tokens for s in seals)),
        "members": float(len(seals)),
        "clip_fraction": _mean([(s.metrics.get("clip_fraction", 0.0), s.tokens) for s in seals]),
    }
    for name in TAILS:
        totals[name] = _sum(seals, name)
    for name in PARTS:
        totals[name] = _sum(seals, name) / divisor if divisor else 0.0
    for name, (total, count) in MEANS.items():
        over = sum(s.metrics.get(count, 0.0) for s in seals if total in s.metrics)
        if over:
            totals[name] = _sum(seals, total) / over
    for name in sorted({name for s in seals for name in s.metrics if name.endswith("ratio_max")}):
        totals[name] = largest(*(s.metrics[name] for s in seals if name in s.metrics))
    return {name: value for name, value in (totals | _drift(seals)).items() if math.isfinite(value)}


def _drift(seals: Sequence[Sealed]) -> dict[str, float]:
    """Token-weighted over the members."""
    found: dict[str, float] = {}
    for tokens in sorted({name for s in seals for name in s.metrics if _DRIFT.fullmatch(name)}):
        stem = tokens.removesuffix("_tokens")
        found[tokens] = _sum(seals, tokens)
        for name in ("ratio_mean", "gap_mean"):
            found[f"{stem}_{name}"] = _mean([(s.metrics.get(f"{stem}_{name}", 0.0), s.metrics.get(tokens, 0.0)) for s in seals])
    return found


def _sum(seals: Sequence[Sealed], name: str) -> float:
    return sum((s.metrics.get(name, 0.0) for s in seals), 0.0)


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    weight = sum(w for _, w in weighted)
    return sum(value * w for value, w in weighted) / weight if weight else 0.0


def drift_by_staleness(metrics: Mapping[str, float]) -> dict[int, dict[str, float]]:
    """The drift in a commit's metrics: staleness -> tokens, ratio_mean, ratio_max, gap_mean."""
    found: dict[int, dict[str, float]] = {}
    for name, value in metrics.items():
        if match := re.fullmatch(r"drift_(-?\d+)_(tokens|ratio_mean|ratio_max|gap_mean)", name):
            found.setdefault(int(match[1]), {})[match[2]] = value
    return dict(sorted(found.items()))
