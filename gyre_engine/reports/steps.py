"""A committed step, put together: the ledger's figures, its members' times, and the counts of its groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from gyre_engine.events.cells import ProbeGap
from gyre_engine.events.reports import DriftAt, MemberTime, StepReported
from gyre_engine.events.training import Sealed, StepCommitted, StepOpened
from gyre_engine.reports.groups import DISCARDED, FAILED, Decision, GroupTokens
from gyre_engine.training.ledger.sums import TAILS, drift_by_staleness

ZERO_VARIANCE = "zero-variance"


@dataclass(frozen=True, slots=True)
class StepToReport:
    """A final step as the ledger tells it. id, at: of its commit; core: the cell that committed it."""

    opened: StepOpened
    opened_at: int
    committed: StepCommitted
    id: str
    at: int
    core: str
    seals: tuple[Sealed, ...]
    released: int


@dataclass(frozen=True, slots=True)
class StepGroups:
    """decisions, tokens: of the step's groups, in its order; decided: of all groups that were decided since the last step."""

    decisions: Sequence[Decision]
    tokens: Sequence[GroupTokens]
    decided: Sequence[Decision]

    @property
    def causes(self) -> tuple[str, ...]:
        """Ids of the decisions, each once, in a fixed order."""
        return tuple(sorted({d.id for d in (*self.decisions, *self.decided)}))


def step_reported(step: StepToReport, groups: StepGroups, gaps: Sequence[ProbeGap], resume: Mapping[str, int]) -> StepReported:
    """gaps: what engines last measured, all of one version, one a cell."""
    metrics, opened, committed = step.committed.metrics, step.opened, step.committed
    trained, packed = int(metrics.get("targets", 0.0)), int(metrics.get("packed_tokens", 0.0))
    sampled, delivered = sum(t.sampled for t in groups.tokens), sum(t.delivered for t in groups.tokens)
    path = sum(t.path for t in groups.tokens)
    rewards = [reward for d in groups.decisions for reward in d.rewards]
    skipped = bool(metrics.get("skipped", 0.0))
    absent = None if skipped else 0.0
    left_out, untrained = _left_out(groups.decisions), Counter(d.reason for d in groups.decided if d.reason)
    return StepReported(
        step=opened.step, attempt=opened.attempt, core_epoch=committed.core_epoch, opened_at=step.opened_at, committed_at=step.at,
        seconds=(step.at - step.opened_at) / 1e6, skipped=skipped,
        loss=committed.loss, grad_norm=committed.grad_norm, lr=metrics.get("lr"),
        policy_loss=metrics.get("policy_loss", committed.loss), kl_loss=metrics.get("kl_loss", absent),
        entropy_loss=metrics.get("entropy_loss", absent), entropy=metrics.get("entropy"), kl=metrics.get("kl"),
        reference_kl=metrics.get("reference_kl"), clip_fraction=metrics.get("clip_fraction"),
        ratio_max=metrics.get("ratio_max"), ratio_tails=_tails(metrics, trained),
        ratio_tail_tokens={_tail(name): int(metrics[name]) for name in TAILS if name in metrics}, drift=_drift(metrics),
        gap_version=gaps[0].version if gaps else None, gap_max=max((g.gap_max for g in gaps), default=None),
        gap_mean=_gap_mean(gaps), gap_cells=len(gaps),
        trained_tokens=trained, packed_tokens=packed, sampled_tokens=sampled, delivered_tokens=delivered,
        delivered=delivered / sampled if sampled else 1.0, trained=trained / sampled if sampled else 0.0,
        path_tokens=path, dedup_ratio=path / packed if packed else None,
        step_groups=len(opened.groups), decided_groups=len(groups.decided), zero_variance_groups=untrained[ZERO_VARIANCE],
        untrained_groups=dict(sorted(untrained.items())),
        trained_executions=opened.executions, scored_executions=len(rewards), discarded_executions=left_out.get(DISCARDED, 0),
        failed_executions=left_out.get(FAILED, 0), left_out_executions=left_out,
        reward_mean=fmean(rewards) if rewards else 0.0, reward_deviation=pstdev(rewards) if rewards else 0.0,
        reward_min=min(rewards, default=0.0), reward_max=max(rewards, default=0.0),
        staleness_max=opened.staleness_max, staleness_mean=opened.staleness_mean, data_s=metrics.get("core_data_s"),
        burst_s=metrics.get("core_burst_s"), prepare_s=metrics.get("core_prepare_s"),
        members=_members(step), released_members=step.released, resume=dict(resume),
    )  # fmt: skip


def _left_out(decisions: Sequence[Decision]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for decision in decisions:
        total.update(decision.left_out)
    return dict(sorted(total.items()))


def _tail(name: str) -> str:
    return name.removeprefix("ratio_")


def _tails(metrics: Mapping[str, float], trained: int) -> dict[str, float]:
    return {_tail(name): metrics[name] / trained for name in TAILS if name in metrics and trained}


def _drift(metrics: Mapping[str, float]) -> tuple[DriftAt, ...]:
    return tuple(
        DriftAt(age, int(d["tokens"]), d.get("ratio_mean"), d.get("ratio_max"), d.get("gap_mean"))
        for age, d in drift_by_staleness(metrics).items()
        if "tokens" in d
    )


def _gap_mean(gaps: Sequence[ProbeGap]) -> float | None:
    tokens = sum(g.tokens for g in gaps)
    return sum(g.gap_mean * g.tokens for g in gaps) / tokens if tokens else None


def _members(step: StepToReport) -> tuple[MemberTime, ...]:
    """The core also where it computed nothing: it merged, waited and published."""
    seals = {seal.cell: seal for seal in step.seals}
    return tuple(_member(cell, seals.get(cell), step) for cell in dict.fromkeys((step.core, *seals)))


def _member(cell: str, seal: Sealed | None, step: StepToReport) -> MemberTime:
    own, of_core = (seal.metrics if seal else {}), (step.committed.metrics if cell == step.core else {})
    return MemberTime(
        cell=cell,
        member_epoch=seal.member_epoch if seal else 0,
        micro_steps=len(seal.micro_steps) if seal else 0,
        trained_tokens=seal.tokens if seal else 0,
        compute_s=own.get("compute_s", 0.0),
        # The core's own seal is not the end of its step: what it says of the whole of it counts.
        wait_s=of_core.get("core_wait_s", own.get("wait_s", 0.0)),
        merge_s=own.get("merge_s", 0.0) + of_core.get("core_merge_s", 0.0),
        publish_s=own.get("publish_s", 0.0) + of_core.get("core_publish_s", 0.0),
    )
