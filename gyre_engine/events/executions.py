"""Events on `executions`, `tool-events` and `scores`: what happens to one execution outside the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gyre_engine.events.envelope import Event, event


class Ending(StrEnum):
    """How an execution ended by itself; each is scored (learning.md, 4)."""

    COMPLETED = "completed"
    HARNESS_TIMEOUT = "harness-timeout"
    TURN_BUDGET = "turn-budget"
    TOKEN_BUDGET = "token-budget"
    CONTEXT_LIMIT = "context-limit"
    HARNESS_CRASHED = "harness-crashed"


class DiscardReason(StrEnum):
    """Why an execution leaves training."""

    OVERALL_TIMEOUT = "overall-timeout"
    CANCELLED = "cancelled"
    ENVIRONMENT = "environment"
    LOST = "lost"
    CRASHED_WITHOUT_WORK = "crashed-without-work"


class UnknownExecution(ValueError):
    """An execution's name is not `<group>.<index>.<attempt>`; the text shows it."""


def execution_name(group: str, index: int, attempt: int) -> str:
    """The name of an attempt at a place of a group: each attempt is an execution of its own."""
    return f"{group}.{index}.{attempt}"


def place_of(execution: str) -> tuple[str, int, int]:
    """(group, index, attempt) of an execution. Raises UnknownExecution."""
    parts = execution.rsplit(".", 2)
    if len(parts) != 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
        raise UnknownExecution(f"execution {execution!r} is not named <group>.<index>.<attempt>")
    return parts[0], int(parts[1]), int(parts[2])


@event("dispatched", topic="executions", key="execution")
@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched(Event):
    """An attempt at one of the N executions of a group is handed to a harness."""

    execution: str
    """`<group>.<index>.<attempt>`: each attempt is an execution of its own."""
    group: str
    index: int
    attempt: int
    group_size: int
    group_number: int
    """Running number of the group in this run: the order of dispatch."""
    class_number: int
    """Which boundary dispatched the group (learning.md, 1)."""
    query: str
    source: str
    split: str
    harness: str
    weight_version: int
    evaluation: str | None = None
    """The evaluation that this execution belongs to; such an execution is never trained on."""
    draw: int = -1
    """Position of the task in the order of draws (learning.md, 11), from which a resumed run goes on; -1 in evaluations."""


@event("started", topic="executions", key="execution")
@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Event):
    """The environment is up and the harness runs."""

    execution: str


@event("finished", topic="executions", key="execution")
@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """The harness ended; the work product is kept and will be scored."""

    execution: str
    ending: Ending
    work_url: str
    """fsspec URL of the work product (a tar of the workspace)."""
    work_hash: str
    """sha256 of that tar, hex."""
    did_work: bool
    served_us: int
    """Wall clock less what the proxy held the agent up (learning.md, 3)."""
    wall_us: int
    exit_code: int | None = None
    detail: str = ""


@event("discarded", topic="executions", key="execution")
@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded(Event):
    """The execution leaves training without a score. `final`: no further attempt at this place of the group follows."""

    execution: str
    reason: DiscardReason
    final: bool
    wall_us: int
    detail: str = ""


@event("tool-called", topic="tool-events", key="execution")
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled(Event):
    """The policy asked for a tool. `arguments` is the text as sampled, cut at 16 kB."""

    execution: str
    call: str
    """The model call that asked."""
    tool_call: str
    """The call id on the wire, unique in the execution."""
    name: str
    arguments: str


@event("tool-returned", topic="tool-events", key="execution")
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturned(Event):
    """A tool's result: as seen by the proxy in a later request (`source` proxy) or by the runner (`source` runner)."""

    execution: str
    tool_call: str
    source: str
    content: str
    nbytes: int
    """Size of the whole result; `content` is cut at 16 kB."""
    failed: bool = False
    took_us: int = 0


@event("upstream-answered", topic="tool-events", key="execution")
@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamAnswered(Event):
    """Another model than the policy was asked, at an upstream, and has answered or failed: its words are context, never trained."""

    execution: str
    call: str
    """Names the answer: the ids of its tool calls begin with it."""
    model: str
    """The name that the agent asked for."""
    host: str
    """The upstream's host and port, without credentials and path."""
    input_tokens: int
    """As the upstream counts them; 0 where it does not say."""
    output_tokens: int
    status: int
    """Of HTTP; 0 where no answer came: out of reach, too late, or nobody waited any more."""
    took_us: int


@event("scored", topic="scores", key="execution")
@dataclass(frozen=True, slots=True, kw_only=True)
class Scored(Event):
    """An execution's reward by one scorer."""

    execution: str
    scorer: str
    scorer_version: str
    evaluation_attempt: int
    reward: float
    rewards: dict[str, float] = field(default_factory=dict)
    """The keys of reward.json where it has several; `reward` is their weighted sum."""
    placeholder: bool = False
    """Nothing could be evaluated since the environment never came up: 0, outside baseline and training."""
    flags: tuple[str, ...] = ()
    """What the scorer noticed, e.g. attempts to write the reward."""
    took_us: int = 0


@event("evaluation-failed", topic="scores", key="execution")
@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFailed(Event):
    """The evaluation broke (not: the work is bad). `final`: the budget of retries is spent, the execution leaves training."""

    execution: str
    scorer: str
    scorer_version: str
    evaluation_attempt: int
    reason: str
    final: bool
    took_us: int = 0
