"""Events on `cells`, `commands` and `water-level`: who samples, who trains, and who decided it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gyre_engine.events.envelope import Event, event


class CellRole(StrEnum):
    """What a cell does. `switching`: it serves nobody until the switch is done. `left`: it is no longer of the run."""

    SAMPLING = "sampling"
    TRAINING = "training"
    SWITCHING = "switching"
    LEFT = "left"


class LifeState(StrEnum):
    """Where a cell stands in its life (gyre_engine.scheduling.life)."""

    STARTING = "starting"
    SAMPLING = "sampling"
    FINISHING = "finishing-calls"
    DRAINING = "draining"
    EXPORTING = "exporting-kv"
    JOINING = "joining"
    TRAINING = "training"
    SEALING = "sealing"
    REFRESHING = "refreshing-weights"
    LOST = "lost"
    GONE = "gone"


class LifeTrigger(StrEnum):
    """What moves a cell on in its life."""

    TOLD_TO_TRAIN = "told-to-train"
    TOLD_TO_SAMPLE = "told-to-sample"
    PUBLISHED = "published"
    FINISHED = "finished"
    TOLD_TO_LEAVE = "told-to-leave"
    LET_GO = "let-go"
    DRAINED = "drained"
    EXPORTED = "exported"
    JOINED = "joined"
    STEP_OVER = "step-over"
    LEFT = "left"
    REFRESHED = "refreshed"
    TIMED_OUT = "timed-out"
    ENGINE_LOST = "engine-lost"
    BACK_TO_SAMPLE = "back-to-sample"
    BACK_TO_TRAIN = "back-to-train"


@event("cell-started", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class CellStarted(Event):
    """A cell's agent is up and its engine answers. A new start of the same cell replaces the old one."""

    cell: str
    position: int
    """Place in the fixed order of cells; 0 is the core."""
    incarnation: str
    engine: str
    """Kind of engine: native, sglang, scripted."""
    engine_url: str
    capacity: int
    """Executions that it serves at once (C_e)."""
    role: CellRole
    weight_version: int


@event("cell-wanted", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class CellWanted(Event):
    """Somebody asked for one cell more on the run's own host (`gyre cells add`); whoever keeps the run's processes starts it."""

    cell: str
    position: int


@event("leave-wanted", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveWanted(Event):
    """Somebody asked that a cell leave the run (`gyre cells drain`, or the cell's host is going down); the scheduler commands it."""

    cell: str
    by: str


@event("cell-ended", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class CellEnded(Event):
    """A cell's processes have ended, by word of who kept them, or of the host that resumes a run: other hosts' cells end with it."""

    cell: str
    incarnation: str


@event("role-changed", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChanged(Event):
    """A cell has obeyed a SwitchRole."""

    cell: str
    incarnation: str
    role: CellRole
    command_epoch: int
    command_number: int
    aborted_requests: int = 0
    took_us: int = 0


@event("life-changed", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class LifeChanged(Event):
    """A cell went from one state of its life to the next."""

    cell: str
    incarnation: str
    before: LifeState
    trigger: LifeTrigger
    after: LifeState
    took_us: int = 0
    """How long it was in `before`."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A request that was in flight when its cell was drained. tokens: of its prompt and what it had sampled."""

    execution: str
    rid: str
    tokens: int


@event("drained", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class Drained(Event):
    """A cell has stopped sampling; its interrupted requests have handed over what they had, and their KV is still there."""

    cell: str
    incarnation: str
    command_epoch: int
    command_number: int
    weight_version: int
    requests: tuple[Interrupted, ...]

    @property
    def command(self) -> tuple[int, int]:
        """(epoch, number) of the switch-role that drained it."""
        return self.command_epoch, self.command_number


@event("kv-exported", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class KvExported(Event):
    """The KV of an interrupted request can be read from its cell until `kv-imported`, or the lease's end."""

    cell: str
    incarnation: str
    command_epoch: int
    command_number: int
    execution: str
    rid: str
    destination: str
    tokens: int
    nbytes: int
    weight_version: str
    ticket: bytes
    """gyre_engine.sampling.kv.KvTicket; empty where nothing was cached."""
    took_us: int


OTHER_WEIGHTS = "it was computed under other weights"
"""The reason of an import that fetched nothing, and cost nothing."""


@event("kv-imported", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class KvImported(Event):
    """The destination is done with an export: it holds `tokens` of it (0: none, and `reason`), and the source may free its pages."""

    cell: str
    incarnation: str
    source: str
    command_epoch: int
    command_number: int
    execution: str
    rid: str
    tokens: int
    nbytes: int
    took_us: int
    reason: str = ""


@event("cell-health", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class CellHealth(Event):
    """A cell's health or load changed, or its period came round."""

    cell: str
    incarnation: str
    healthy: bool
    reason: str = ""
    running: int = 0
    waiting: int = 0
    kv_tokens: int = 0
    generated_tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    prefills: tuple[tuple[int, int, int], ...] = ()
    """Of the newest prefills: tokens that stood already, tokens after it, microseconds of computing."""


@event("weights-loaded", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsLoaded(Event):
    """The cell's engine samples with this version from now on."""

    cell: str
    incarnation: str
    version: int
    weights_hash: str
    took_us: int = 0


@event("weights-held", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsHeld(Event):
    """The cell's agent has this version whole and passes it on (gyre_engine.scheduling.broadcast)."""

    cell: str
    incarnation: str
    version: int
    weights_hash: str
    descriptor: bytes
    """Where others read it (gyre_engine.transfer), msgpack."""


@event("probe-gap", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeGap(Event):
    """Engine and trainer scored the same probe at the same version (learning.md, 8)."""

    cell: str
    version: int
    tokens: int
    gap_max: float
    gap_mean: float
    kept_tokens: int = 0
    """So many of the probe's first tokens were KV of other weights (`kv.across_versions`): the tokens after them were scored."""


@event("kv-kept", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class KvKept(Event):
    """KV of one version is gone on from under another (`kv.across_versions = "keep"`); a `probe-gap` tells what that does."""

    cell: str
    incarnation: str
    from_version: int
    """Of the weights before; some of it may be older still."""
    to_version: int
    tokens: int
    source: str = ""
    """The cell that it was imported from; empty: it was the engine's own when the weights were loaded."""


@event("scheduler-elected", topic="commands", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerElected(Event):
    """A scheduler takes over; commands of lower epochs are ignored from here on (log-rules, 8)."""

    epoch: int
    holder: str


@event("switch-role", topic="commands", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRole(Event):
    """Cell `cell` is to change its role. `water_level` and `sampling_capacity` are what the decision saw."""

    epoch: int
    number: int
    cell: str
    to: CellRole
    reason: str
    water_level: int
    sampling_capacity: int


@dataclass(frozen=True, slots=True)
class Move:
    """Where an interrupted execution goes on, and whether its KV moves with it or is computed again there."""

    execution: str
    rid: str
    destination: str
    with_kv: bool
    wait_us: int = 2_000_000
    """How long KV that moves is worth waiting for; then the execution goes on without."""


@event("move-executions", topic="commands", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class MoveExecutions(Event):
    """What becomes of the requests that a cell interrupted. `drained`: (epoch, number) of the SwitchRole that drained it."""

    epoch: int
    number: int
    source: str
    drained: tuple[int, int]
    moves: tuple[Move, ...]


@event("cell-lost", topic="commands", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class CellLost(Event):
    """A cell has said nothing for `silent_us`: it counts as gone until it speaks again. Both topics have their own order, so it is
    told by what was heard of it, not by when.
    """

    epoch: int
    number: int
    cell: str
    incarnation: str
    """Empty: it has never started."""
    words: int
    """What was heard of this incarnation (gyre_engine.scheduling.cells); one word more, and it is not lost any more."""
    silent_us: int


@event("water-level-changed", topic="water-level", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class WaterLevelChanged(Event):
    """d(t), p(t), f(t), w = d - f, what can be served, and what is ready to be trained on."""

    dispatched: int
    started: int
    terminated: int
    level: int
    capacity_per_cell: int
    """C_e"""
    sampling_capacity: int
    """C_R: executions that the sampling cells can serve."""
    sampling_cells: tuple[str, ...]
    training_cells: tuple[str, ...]
    switching_cells: tuple[str, ...]
    ready_groups: int
    """Groups admitted (or skipped) and not yet consumed by a committed step."""
    committed_step: int
