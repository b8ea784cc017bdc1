"""The life of a cell: one explicit state machine (method.md, 2 and 3). Pure; docs/cells.md is drawn from it.

    sampling -> draining -> exporting KV -> joining -> training -> sealing -> refreshing weights -> sampling, and lost;
    with publish.inflight = "drain" also sampling -> finishing calls -> refreshing weights -> sampling

promises  the table is the whole of it: what it does not list cannot happen; every state but those in which a cell rests has a limit,
          and the table says what follows when it is over; from every state a cell can leave the run, and nothing follows that
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gyre_engine.events.cells import CellRole, LifeState, LifeTrigger, Move

S, T = LifeState, LifeTrigger

TABLE: Mapping[LifeState, Mapping[LifeTrigger, LifeState]] = MappingProxyType(
    {
        S.STARTING: {T.BACK_TO_SAMPLE: S.REFRESHING, T.BACK_TO_TRAIN: S.JOINING, T.TOLD_TO_LEAVE: S.GONE},
        S.SAMPLING: {T.TOLD_TO_TRAIN: S.DRAINING, T.TOLD_TO_LEAVE: S.DRAINING, T.PUBLISHED: S.FINISHING, T.ENGINE_LOST: S.LOST},
        S.FINISHING: {
            T.FINISHED: S.REFRESHING,
            T.TOLD_TO_TRAIN: S.DRAINING,
            T.TOLD_TO_LEAVE: S.DRAINING,
            T.ENGINE_LOST: S.LOST,
            T.TIMED_OUT: S.SAMPLING,
        },
        S.DRAINING: {T.DRAINED: S.EXPORTING, T.ENGINE_LOST: S.LOST, T.TIMED_OUT: S.LOST},
        S.EXPORTING: {T.EXPORTED: S.JOINING, T.LET_GO: S.GONE, T.ENGINE_LOST: S.LOST, T.TIMED_OUT: S.JOINING},
        S.JOINING: {T.JOINED: S.TRAINING, T.TOLD_TO_SAMPLE: S.REFRESHING, T.TOLD_TO_LEAVE: S.SEALING, T.ENGINE_LOST: S.LOST},
        S.TRAINING: {T.STEP_OVER: S.JOINING, T.TOLD_TO_SAMPLE: S.SEALING, T.TOLD_TO_LEAVE: S.SEALING, T.ENGINE_LOST: S.LOST},
        S.SEALING: {T.LEFT: S.REFRESHING, T.LET_GO: S.GONE, T.ENGINE_LOST: S.LOST, T.TIMED_OUT: S.LOST},
        S.REFRESHING: {
            T.REFRESHED: S.SAMPLING,
            T.TOLD_TO_TRAIN: S.JOINING,
            T.TOLD_TO_LEAVE: S.GONE,
            T.ENGINE_LOST: S.LOST,
            T.TIMED_OUT: S.LOST,
        },
        S.LOST: {T.BACK_TO_SAMPLE: S.REFRESHING, T.BACK_TO_TRAIN: S.JOINING, T.TOLD_TO_LEAVE: S.GONE},
        S.GONE: {},
    }
)

MEANING: Mapping[LifeState, str] = MappingProxyType(
    {
        S.STARTING: "the agent waits for its engine",
        S.SAMPLING: "the engine serves; new weights are loaded in place, or once its calls have ended (`publish.inflight`)",
        S.FINISHING: "no new calls come; those in flight end under the weights that they began with, unless the limit is over",
        S.DRAINING: "no new calls come; what is in flight is aborted and hands over its partial output",
        S.EXPORTING: "the KV of interrupted requests is read by the cells where they go on; for longer where it is worth it",
        S.JOINING: "the trainer waits for a step, pulls the weights and joins",
        S.TRAINING: "the trainer claims micro-steps",
        S.SEALING: "the trainer claims no more, seals what it has and keeps it until the core has it",
        S.REFRESHING: "the engine gets the weights to sample with",
        S.LOST: "the engine is away, or a limit is over; the cell serves nobody",
        S.GONE: "the cell has left the run, and its processes end",
    }
)


LONGEST_EXPORT_S = 120.0
"""However much KV that moves is worth: meanwhile its cell neither samples nor trains."""


@dataclass(frozen=True, slots=True)
class LifeLimits:
    """Seconds that a cell may be in a state. Sampling, joining and training end by command alone.

    sealing is that long because the core may be merging; refreshing because a new core may have to publish first.
    finishing: `publish.drain_s` of the config; exporting: where no move is worth more.
    """

    finishing: float = 60.0
    draining: float = 10.0
    exporting: float = 5.0
    sealing: float = 600.0
    refreshing: float = 600.0
    starting: float = 600.0

    def of(self, state: LifeState) -> float | None:
        """The limit of a state, None where there is none."""
        return {
            S.FINISHING: self.finishing,
            S.DRAINING: self.draining,
            S.EXPORTING: self.exporting,
            S.SEALING: self.sealing,
            S.REFRESHING: self.refreshing,
            S.STARTING: self.starting,
            S.LOST: self.starting,
        }.get(state)

    def exporting_of(self, moves: Iterable[Move]) -> float:
        """The limit of exporting once these were decided: as long as the KV of any of them is waited for."""
        longest = max((move.wait_us / 1e6 for move in moves if move.with_kv), default=0.0)
        return max(self.exporting, min(longest, LONGEST_EXPORT_S))


class IllegalTransition(RuntimeError):
    """Somebody pulled a trigger that the state does not have: a fault in the agent's code."""


def after(state: LifeState, trigger: LifeTrigger) -> LifeState:
    """The next state. Raises IllegalTransition."""
    try:
        return TABLE[state][trigger]
    except KeyError:
        known = ", ".join(sorted(TABLE[state])) or "nothing any more"
        raise IllegalTransition(f"a cell that is {state} cannot be {trigger}; it can be {known}") from None


def role_of(state: LifeState) -> CellRole:
    """What the rest of the system sees of a state."""
    return _ROLES.get(state, CellRole.SWITCHING)


_ROLES = MappingProxyType(
    {
        S.SAMPLING: CellRole.SAMPLING,
        S.JOINING: CellRole.TRAINING,
        S.TRAINING: CellRole.TRAINING,
        S.GONE: CellRole.LEFT,
    }
)
