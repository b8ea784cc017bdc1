"""Events on `training` that say what a step came to: derived from the ledger and its sources, never part of what it decides."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre_engine.events.envelope import Event, event


@dataclass(frozen=True, slots=True)
class DriftAt:
    """Current against behaviour policy on the trained tokens that were `staleness` versions old; log_ratio_mean: mean absolute.
    None: not a number."""

    staleness: int
    tokens: int
    ratio_mean: float | None
    ratio_max: float | None
    log_ratio_mean: float | None


@dataclass(frozen=True, slots=True)
class MemberTime:
    """Where a member's time went in a step, seconds by its own clock (docs/metrics.md)."""

    cell: str
    member_epoch: int
    micro_steps: int
    trained_tokens: int
    compute_s: float
    wait_s: float
    merge_s: float
    publish_s: float


@event("step-reported", topic="training", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class StepReported(Event):
    """What a committed step came to (docs/metrics.md says how each figure is made). The first of a step on the ledger counts."""

    step: int
    attempt: int
    core_epoch: int
    opened_at: int
    committed_at: int
    seconds: float
    """From opening to commit."""
    skipped: bool
    """The gradient was not finite and the weights stayed."""
    loss: float | None
    """As in step-committed, over the step's divisor: policy_loss + kl_loss + entropy_loss. None where it is not a number."""
    policy_loss: float | None
    kl_loss: float | None
    entropy_loss: float | None
    grad_norm: float | None
    """Before clipping; none where the step was skipped."""
    lr: float | None
    entropy: float | None
    """Of the policy, a trained token, nats; none where it was not measured."""
    kl: float | None
    """Estimate of KL(behaviour, current), a trained token, nats."""
    reference_kl: float | None
    """Estimate of KL(current, reference), a trained token; none without a reference."""
    clip_fraction: float | None
    ratio_max: float | None
    """Largest importance weight, current over behaviour."""
    ratio_tails: dict[str, float]
    """Share of the trained tokens whose importance weight lies above_2, above_5, above_10, below_0.5, below_0.2, below_0.1."""
    ratio_tail_tokens: dict[str, int]
    """The same as counts."""
    drift: tuple[DriftAt, ...]
    gap_version: int | None
    """Newest version at which some engine's gap to the trainer was known when this was written."""
    gap_max: float | None
    gap_mean: float | None
    gap_cells: int
    trained_tokens: int
    packed_tokens: int
    sampled_tokens: int
    """By all policy calls of those executions of the step's groups, training or not, whose trees were closed when admission decided
    the group; what an attempt sampled whose tree closed later is in no report (the view sampled_by_step has it)."""
    delivered_tokens: int
    """Of these, those that stand in a trajectory tree."""
    delivered: float
    """delivered_tokens / sampled_tokens."""
    trained: float
    """trained_tokens / sampled_tokens."""
    path_tokens: int
    """Tokens of the selected trajectories from root to leaf, each counted whole."""
    dedup_ratio: float | None
    """path_tokens / packed_tokens; none where nothing was packed."""
    step_groups: int
    decided_groups: int
    """Since the last step, whether they train or not."""
    zero_variance_groups: int
    """Of the decided ones."""
    untrained_groups: dict[str, int]
    """Of the decided ones, by reason."""
    trained_executions: int
    scored_executions: int
    discarded_executions: int
    failed_executions: int
    """Their evaluation failed for good."""
    left_out_executions: dict[str, int]
    """All attempts of the step's groups that do not count, by reason; discarded and failed among them."""
    reward_mean: float
    """Over the scored executions of the step's groups."""
    reward_deviation: float
    reward_min: float
    reward_max: float
    staleness_max: int
    staleness_mean: float
    data_s: float | None
    """How long the core, which owed nothing any more, waited for the step's groups and their calls. Without burst_s beside it this is
    the whole time until the step had opened."""
    members: tuple[MemberTime, ...]
    released_members: int
    """Members that were released in the middle of the step."""
    burst_s: float | None = None
    """From then until its cell had the role of training and the scheduler let the burst begin."""
    prepare_s: float | None = None
    """From then until the step had opened: packing, scoring with the reference policy, the log."""
    resume: dict[str, int] = field(default_factory=dict)
    """`topic/partition` -> offset from which whoever makes the next report must read."""
