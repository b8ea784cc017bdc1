"""What the log says about this run's executions: a fold over `executions` that tells what to dispatch, start and try again.

A group has N places; a place has attempts, and each attempt is an execution. A place is settled by its first final end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gyre_engine.events import Event
from gyre_engine.events.executions import (
    Discarded,
    DiscardReason,
    Dispatched,
    Finished,
    Started,
    UnknownExecution,
    execution_name,
    place_of,
)
from producers.runner.endings import RESTART


class State(StrEnum):
    """Of the latest attempt at a place."""

    DISPATCHED = "dispatched"
    STARTED = "started"
    RETRY = "retry"
    """Discarded, and another attempt is to follow."""
    SETTLED = "settled"


@dataclass(slots=True)
class Place:
    """One of the N executions of a group. `before`: ends of earlier attempts by reason, the runner's own restarts left out."""

    latest: Dispatched
    state: State = State.DISPATCHED
    before: Counter[DiscardReason] = field(default_factory=Counter)
    finished: bool = False


class Board:
    """The fold. Events may come twice: what was applied once changes nothing more."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, int], Place] = {}
        self._by_state: dict[State, dict[tuple[str, int], Place]] = {state: {} for state in State}
        self._by_evaluation: dict[str, list[Place]] = {}
        self.groups: dict[str, Dispatched] = {}
        self.next_group = 0
        self.next_draw = 0

    def observe(self, event: Event) -> None:
        """Apply the next event of `executions`."""
        match event:
            case Dispatched():
                self._dispatched(event)
            case Started():
                self._advance(event.execution, State.STARTED)
            case Finished():
                if place := self._advance(event.execution, State.SETTLED):
                    place.finished = True
            case Discarded():
                self._discarded(event)

    def _dispatched(self, event: Dispatched) -> None:
        place = self.places.get((event.group, event.index))
        if place is None:
            self._add(event)
        elif event.attempt > place.latest.attempt:
            place.latest = event
            self._move(place, State.DISPATCHED)
        self.groups.setdefault(event.group, event)
        if event.evaluation is None:
            self.next_group = max(self.next_group, event.group_number + 1)
            self.next_draw = max(self.next_draw, event.draw + 1)

    def _add(self, event: Dispatched) -> None:
        place = self.places[event.group, event.index] = Place(event)
        self._by_state[place.state][event.group, event.index] = place
        if event.evaluation is not None:
            self._by_evaluation.setdefault(event.evaluation, []).append(place)

    def _move(self, place: Place, state: State) -> None:
        key = (place.latest.group, place.latest.index)
        self._by_state[state][key] = self._by_state[place.state].pop(key)
        place.state = state

    def _advance(self, execution: str, state: State) -> Place | None:
        """The place, where the event is about its latest attempt and that has not ended (the first terminal event wins)."""
        group, index, _ = place_of(execution)
        place = self.places.get((group, index))
        if place is None or place.latest.execution != execution or place.state in (State.RETRY, State.SETTLED):
            return None
        self._move(place, state)
        return place

    def _discarded(self, event: Discarded) -> None:
        place = self._advance(event.execution, State.SETTLED if event.final else State.RETRY)
        if place is not None and event.detail != RESTART:
            place.before[event.reason] += 1

    def of_state(self, state: State) -> list[Dispatched]:
        """Latest attempts in this state, in the order in which they are to run."""
        return sorted((place.latest for place in self._by_state[state].values()), key=run_order)

    def retries(self) -> Iterator[Dispatched]:
        """The attempts that are due: for places discarded without a successor. Versions are filled in by who dispatches."""
        for last in self.of_state(State.RETRY):
            yield attempt(last, last.index, last.attempt + 1)

    def missing(self) -> Iterator[Dispatched]:
        """First attempts at places of begun groups that were never dispatched (the runner died in the middle of a group)."""
        for group, first in list(self.groups.items()):
            for index in range(first.group_size):
                if (group, index) not in self.places:
                    yield attempt(first, index, 0)

    def open(self, *, evaluation: bool) -> int:
        """Places that are not settled, of evaluations or of training."""
        unsettled = (places for state, places in self._by_state.items() if state is not State.SETTLED)
        return sum((p.latest.evaluation is not None) == evaluation for places in unsettled for p in places.values())

    def of_evaluation(self, name: str) -> list[Place]:
        """The places of an evaluation."""
        return self._by_evaluation.get(name, [])

    def evaluation_of(self, execution: str) -> str | None:
        """The evaluation that an execution belongs to; None: it is training's, or unknown."""
        try:
            group = self.groups.get(place_of(execution)[0])
        except UnknownExecution:
            return None
        return group.evaluation if group else None

    def evaluations(self) -> list[str]:
        """Names of all evaluations that were begun."""
        return list(self._by_evaluation)


def attempt(like: Dispatched, index: int, number: int) -> Dispatched:
    """Attempt `number` at place `index` of the group that `like` belongs to."""
    return replace(like, execution=execution_name(like.group, index, number), index=index, attempt=number)


def run_order(execution: Dispatched) -> tuple[bool, int, int, str, int]:
    """Evaluations first (training is held for them), then class by class, group by group."""
    return (execution.evaluation is None, execution.class_number, execution.group_number, execution.group, execution.index)
