"""Events on `trajectories`, `micro-steps` and `training`: what was trained on, and who did it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gyre_engine.events.codec import Float32, Float64, Int32, UInt8
from gyre_engine.events.envelope import Event, event


@dataclass(frozen=True, slots=True)
class SelectedTrajectory:
    """A root-to-leaf path that is trained on, and how many of its tokens it contributes (others were taken by an earlier one)."""

    leaf: str
    role: str
    trained_tokens: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A leaf, or a whole execution, that is not trained on, and why. `tokens`: sampled tokens that go untrained with it."""

    what: str
    reason: str
    tokens: int


@dataclass(frozen=True, slots=True)
class AdmittedExecution:
    """What admission took from one execution; it never changes afterwards (log-rules, 6)."""

    execution: str
    index: int
    score: str
    """Id of the score event."""
    reward: float
    advantage: float
    trained_tokens: int
    trajectories: tuple[SelectedTrajectory, ...]
    left_out: tuple[LeftOut, ...]
    min_version: int


@event("group-admitted", topic="trajectories", key="group")
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdmitted(Event):
    """All executions of a group have ended: its advantages and the selected trajectories, or why it does not train."""

    group: str
    group_number: int
    class_number: int
    query: str
    dispatched_version: int
    mean: float
    deviation: float
    trains: bool
    reason: str
    """Empty where it trains; else `zero-variance`, `too-few` (fewer than group.min executions count) or `nothing-to-train`."""
    executions: tuple[AdmittedExecution, ...]
    left_out: tuple[LeftOut, ...]
    """Executions that count neither in the baseline nor in training."""


@event("micro-step", topic="micro-steps", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStep(Event):
    """Packed training work that one cell claims (gyre_engine.batching)."""

    micro_step: str
    step: int
    index: int
    groups: tuple[str, ...]
    ids: Int32
    position: Int32
    end: Int32
    """Key j is visible to query i iff j <= i < end[j]."""
    src: Int32
    dst: Int32
    """Row src[k] predicts token dst[k]: the trained tokens."""
    logprobs: Float32
    versions: Int32
    weight: Float64
    """Advantage / trained tokens of the execution, a target."""
    sequence: Int32
    """Trajectory of each target, numbered within the micro-step."""
    executions: tuple[tuple[str, int, int], ...]
    """(execution, first target, number of targets), in order."""
    share: Float64 = field(default_factory=lambda: np.empty(0, np.float64))
    """The weight without the advantage, a target; empty in records of earlier versions."""
    reference: Float32 = field(default_factory=lambda: np.empty(0, np.float32))
    """Log-probability of each target under the reference policy; empty where loss.kl is 0."""
    routed_experts: UInt8 = field(default_factory=lambda: np.empty(0, np.uint8))
    """The experts that each token is routed to, a row a token (gyre_engine.experts); empty where none were recorded."""


@event("core-elected", topic="training", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class CoreElected(Event):
    """A core takes over: the open attempt is void, lower epochs are ignored (log-rules, 3 and 8)."""

    core_epoch: int
    holder: str
    cell: str


@event("step-opened", topic="training", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class StepOpened(Event):
    """The core opens a step. Order of everything that replay needs is fixed here (log-rules, 4)."""

    core_epoch: int
    step: int
    attempt: int
    weights_hash: str
    groups: tuple[str, ...]
    scores: tuple[str, ...]
    micro_steps: tuple[str, ...]
    executions: int
    """Executions that train in this step."""
    divisor: int
    """What the core divides the summed gradients by (log-rules, 6): with the two-level mean, `executions`."""
    staleness_max: int
    staleness_mean: float


@event("member-joined", topic="training", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoined(Event):
    """A cell's trainer holds the weights of the open step and will claim."""

    cell: str
    member_epoch: int
    step: int
    attempt: int
    weights_hash: str


@event("claimed", topic="training", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed(Event):
    """A member asks for the next `count` free micro-steps; the fold says which (log-rules, 5)."""

    cell: str
    member_epoch: int
    step: int
    attempt: int
    count: int


@event("sealed", topic="training", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed(Event):
    """A member stopped writing; the buffer stands until the step commits (log-rules, 2)."""

    cell: str
    member_epoch: int
    step: int
    attempt: int
    micro_steps: tuple[str, ...]
    """In the order in which their gradients were added."""
    buffer_hash: str
    """sha256 of the buffer's bytes, hex."""
    descriptor: bytes
    """Where the core reads it (gyre_engine.transfer), msgpack."""
    loss_sum: float = 0.0
    tokens: int = 0
    packed_tokens: int = 0
    took_us: int = 0
    nonfinite: str = ""
    """The micro-step with which the sum ceased to be finite; empty: it is finite."""
    metrics: dict[str, float] = field(default_factory=dict)


@event("member-released", topic="training", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReleased(Event):
    """All uncommitted micro-steps of the member are free again; it may rejoin under a higher epoch (log-rules, 1)."""

    core_epoch: int
    cell: str
    member_epoch: int
    reason: str


@event("step-refused", topic="training", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class StepRefused(Event):
    """The merged gradient held NaN or infinity: no update was made, the weights are those of before."""

    core_epoch: int
    step: int
    attempt: int
    outcome: str
    """`stop` (the trainer ends with an error) or `skip` (the step is committed with unchanged weights): optimizer.nonfinite."""
    cells: tuple[str, ...]
    """Members whose sealed buffers are not finite; none where only their sum is not."""
    micro_steps: tuple[str, ...]
    """Those with which their sums ceased to be finite, as they noticed."""


@event("step-committed", topic="training", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommitted(Event):
    """The step is final: gradients were merged in this order, these are the weights now (log-rules, 3)."""

    core_epoch: int
    step: int
    attempt: int
    merge_order: tuple[tuple[str, int], ...]
    """(cell, member epoch)"""
    weights_hash: str
    executions: int
    grad_norm: float | None
    """Before clipping; none where the step was skipped."""
    loss: float | None
    """The members' sums over the step's divisor; none where they are not a number."""
    reward_mean: float
    metrics: dict[str, float] = field(default_factory=dict)


@event("published", topic="training", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class Published(Event):
    """A committed version can be read from an immutable buffer: a safetensors image with Hugging Face names (log-rules, 7)."""

    core_epoch: int
    version: int
    weights_hash: str
    """sha256 of the image, hex."""
    descriptor: bytes
    nbytes: int
    probe_ids: Int32
    probe_logprobs: Float32
    """The core's log-probabilities of `probe_ids[1:]` at this version: engines score the same ids (learning.md, 8)."""
    took_us: int = 0


@event("checkpointed", topic="training", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed(Event):
    """Weights and optimizer state of a committed step were stored."""

    core_epoch: int
    step: int
    weights_hash: str
    url: str


@event("checkpoint-passed-over", topic="training", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPassedOver(Event):
    """A core that recovered could not use a checkpoint that the ledger names, and goes on from an older one."""

    core_epoch: int
    step: int
    reason: str
    """What is wrong with it."""
    instead: int
    """The step of the checkpoint that it goes on from; 0: the initial weights."""


@event("waiting", topic="training", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Event):
    """The core has waited `waited_us` for what is named here (learning.md, 1: a straggler is named)."""

    core_epoch: int
    step: int
    waited_us: int
    waiting_for: tuple[str, ...]


@event("evaluation-reported", topic="training", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReported(Event):
    """An evaluation is complete (learning.md, 10)."""

    evaluation: str
    split: str
    version: int
    episodes: int
    failed: int
    mean: float
    low: float
    high: float
    """95 % interval of the mean."""
    pass_at_k: dict[str, float] = field(default_factory=dict)
