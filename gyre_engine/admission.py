"""Admission: a group is admitted once each of its places is decided (method.md, 4; learning.md, 4; log-rules, 6, 11
and 12).

A place of a group is decided when an attempt at it has ended, its tree is closed and the pinned scorer has scored it,
or when it has left training for good: discarded with no further attempt, its evaluation failed for good, or
quarantined. Then the group's advantages are computed over the executions that count, and each gives its selected
trajectories. Events may come in any order between topics. A decision never changes: what comes after it is ignored,
and all that is kept of a group is its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gyre_engine.events import Event, Recorded, derived_id
from gyre_engine.events.calls import Quarantined, TreeClosed
from gyre_engine.events.executions import Discarded, Dispatched, EvaluationFailed, Finished, Scored, execution_name, place_of
from gyre_engine.events.training import AdmittedExecution, GroupAdmitted, LeftOut
from gyre_engine.losses.advantages import GroupAdvantages, group_advantages
from gyre_engine.trees.select import Selection, SelectionSettings, select

DERIVATION = "admission"
DERIVATION_VERSION = 2


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """What a run pins (log-rules, 15).

    scorer, scorer_version:  the only scorer whose scores count
    group_min:               executions that must count for a group to train
    deviation_floor:         of the advantage's divisor, as a share of reward_range
    scaled:                  whether advantages are divided by the deviation at all
    config_hash:             of the run's config: part of the ids of what is derived
    """

    scorer: str
    scorer_version: str
    selection: SelectionSettings = field(default_factory=SelectionSettings)
    group_min: int = 2
    reward_range: float = 1.0
    deviation_floor: float = 1e-2
    config_hash: str = ""
    scaled: bool = True


@dataclass(frozen=True, slots=True)
class Admitted:
    """A decision: the event, its id, and the event that it follows from (the latest of its causes)."""

    event: GroupAdmitted
    id: str
    cause: str
    at: int


@dataclass(slots=True)
class _Attempt:
    """What is known of one execution."""

    dispatched: Dispatched | None = None
    ended: Finished | Discarded | None = None
    selection: Selection | None = None
    sampled: int = 0
    score: Scored | EvaluationFailed | None = None
    score_id: str = ""
    quarantined: str | None = None
    causes: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Group:
    attempts: dict[tuple[int, int], _Attempt] = field(default_factory=dict)


class Admission:
    """The fold over `executions`, `trees` and `scores` of one run."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self.settings = settings
        self._groups: dict[str, _Group] = {}
        self._decided: set[str] = set()

    def decided(self, group: str) -> None:
        """The log holds a decision on this group already: never decide it again."""
        self._decided.add(group)
        self._groups.pop(group, None)

    def observe(self, record: Recorded) -> Admitted | None:
        """What is decided by the next event, if anything. Raises UnknownExecution."""
        event = record.event
        execution = getattr(event, "execution", None)
        if execution is None or not _concerns(event, self.settings):
            return None
        name, index, attempt = place_of(execution)
        if name in self._decided:
            return None
        if isinstance(event, Dispatched) and event.evaluation is not None:
            self.decided(name)
            return None
        group = self._groups.setdefault(name, _Group())
        if not self._note(group.attempts.setdefault((index, attempt), _Attempt()), execution, record):
            return None
        return self._decide(name, group)

    def _note(self, attempt: _Attempt, execution: str, record: Recorded) -> bool:
        """Whether the event says something new: the first of its kind counts (log-rules, 11)."""
        event = record.event
        if isinstance(event, Dispatched) and attempt.dispatched is None:
            attempt.dispatched = event
        elif isinstance(event, Finished | Discarded) and attempt.ended is None:
            attempt.ended = event
        elif isinstance(event, TreeClosed) and attempt.selection is None:
            attempt.selection = select(execution, event.nodes, self.settings.selection)
            attempt.sampled = event.sampled_tokens
        elif isinstance(event, Scored | EvaluationFailed) and attempt.score is None:
            attempt.score, attempt.score_id = event, record.id
        elif isinstance(event, Quarantined) and attempt.quarantined is None:
            attempt.quarantined = event.reason
        else:
            return False
        attempt.causes.append((record.at, record.id))
        return True

    def _decide(self, name: str, group: _Group) -> Admitted | None:
        first = min((a.dispatched for a in group.attempts.values() if a.dispatched), key=_place, default=None)
        if first is None:
            return None
        places = [_decided_attempt(group, index) for index in range(first.group_size)]
        settled = [attempt for attempt in places if attempt is not None]
        if len(settled) < first.group_size:
            return None
        self.decided(name)
        causes = sorted(cause for attempt in group.attempts.values() for cause in attempt.causes)
        ids = tuple(sorted(cause for _, cause in causes))
        id = derived_id(ids, DERIVATION, DERIVATION_VERSION, self.settings.config_hash)
        return Admitted(_admit(name, group, first, settled, self.settings), id, causes[-1][1], causes[-1][0])


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an admitted execution's events say: its dispatch, its end, its closed tree, and the score that was counted."""

    dispatched: Dispatched
    ended: Finished
    tree: TreeClosed
    score: Scored
    score_id: str


def decide_again(
    group: GroupAdmitted, dispatched: Dispatched, evidence: Sequence[Evidence], settings: AdmissionSettings
) -> GroupAdmitted:
    """The decision that follows from the executions which `group` counted: what a replay compares with the log.

    dispatched: of any attempt of the group: all say the same of number, class and query

    Which attempts had been heard of, and how far, when the group was decided is the log's word (log-rules, 4): which count,
    `dispatched_version` and `left_out` are taken as they are. All else is derived.
    """
    places = [
        _Attempt(e.dispatched, e.ended, select(e.dispatched.execution, e.tree.nodes, settings.selection), 0, e.score, e.score_id)
        for e in evidence
    ]
    rewards = [e.score.reward for e in evidence]
    gained = _advantages(rewards, settings)
    executions = tuple(_execution(a, gain) for a, gain in zip(places, gained.advantages, strict=True))
    reason = _why_not(executions, gained, settings)
    return GroupAdmitted(
        group=dispatched.group, group_number=dispatched.group_number, class_number=dispatched.class_number,
        query=dispatched.query, dispatched_version=group.dispatched_version, mean=gained.baseline, deviation=gained.deviation,
        trains=not reason, reason=reason, executions=executions, left_out=group.left_out,
    )  # fmt: skip


def _place(dispatched: Dispatched) -> tuple[int, int]:
    return dispatched.index, dispatched.attempt


def _concerns(event: Event, settings: AdmissionSettings) -> bool:
    if isinstance(event, Scored | EvaluationFailed):
        pinned = (event.scorer, event.scorer_version) == (settings.scorer, settings.scorer_version)
        return pinned and (isinstance(event, Scored) or event.final)
    return isinstance(event, Dispatched | Finished | Discarded | TreeClosed | Quarantined)


def _decided_attempt(group: _Group, index: int) -> _Attempt | None:
    """The attempt that decides this place of the group: the first that counts, else the newest where it is out for good."""
    attempts = [attempt for place, attempt in sorted(group.attempts.items()) if place[0] == index]
    counting = next((attempt for attempt in attempts if _counts(attempt)), None)
    if counting is not None or not attempts:
        return counting
    return attempts[-1] if _out(attempts[-1]) else None


def _counts(attempt: _Attempt) -> bool:
    """In the baseline and in training."""
    scored = isinstance(attempt.score, Scored) and not attempt.score.placeholder
    done = isinstance(attempt.ended, Finished) and attempt.selection is not None
    return scored and done and attempt.dispatched is not None and attempt.quarantined is None


def _out(attempt: _Attempt) -> bool:
    """Out of training for good. A quarantined execution's end may be the very record that could not be read: do not
    wait for it, unless it is known and another attempt follows.
    """
    if isinstance(attempt.ended, Discarded):
        return attempt.ended.final
    if attempt.quarantined is not None:
        return True
    failed = isinstance(attempt.score, EvaluationFailed) or (isinstance(attempt.score, Scored) and attempt.score.placeholder)
    return failed and isinstance(attempt.ended, Finished)


def _admit(name: str, group: _Group, first: Dispatched, places: list[_Attempt], settings: AdmissionSettings) -> GroupAdmitted:
    counting = [attempt for attempt in places if _counts(attempt)]
    rewards = [attempt.score.reward for attempt in counting if isinstance(attempt.score, Scored)]
    gained = _advantages(rewards, settings)
    executions = tuple(_execution(a, gain) for a, gain in zip(counting, gained.advantages, strict=True))
    reason = _why_not(executions, gained, settings)
    dispatches = [a.dispatched.weight_version for a in group.attempts.values() if a.dispatched]
    return GroupAdmitted(
        group=name,
        group_number=first.group_number,
        class_number=first.class_number,
        query=first.query,
        dispatched_version=min(dispatches),
        mean=gained.baseline,
        deviation=gained.deviation,
        trains=not reason,
        reason=reason,
        executions=executions,
        left_out=tuple(
            _left_out(name, place, attempt)
            for place, attempt in sorted(group.attempts.items())
            if not any(attempt is other for other in counting)
        ),
    )


def _advantages(rewards: list[float], settings: AdmissionSettings) -> GroupAdvantages:
    if not rewards:
        return GroupAdvantages((), (), 0.0, 0.0, True)
    return group_advantages(rewards, reward_range=settings.reward_range, floor=settings.deviation_floor, scale=settings.scaled)


def _why_not(executions: tuple[AdmittedExecution, ...], gained: GroupAdvantages, settings: AdmissionSettings) -> str:
    if len(executions) < settings.group_min:
        return "too-few"
    if gained.zero_variance:
        return "zero-variance"
    return "" if any(execution.trained_tokens for execution in executions) else "nothing-to-train"


def _execution(attempt: _Attempt, advantage: float) -> AdmittedExecution:
    dispatched, selection, score = attempt.dispatched, attempt.selection, attempt.score
    if dispatched is None or selection is None or not isinstance(score, Scored):
        raise ValueError("an execution was taken as counting before it was dispatched, closed and scored")
    return AdmittedExecution(
        execution=dispatched.execution,
        index=dispatched.index,
        score=attempt.score_id,
        reward=score.reward,
        advantage=advantage,
        trained_tokens=selection.trained_tokens,
        trajectories=selection.trajectories,
        left_out=selection.left_out,
        min_version=selection.min_version if selection.min_version >= 0 else dispatched.weight_version,
    )


def _left_out(group: str, place: tuple[int, int], attempt: _Attempt) -> LeftOut:
    return LeftOut(execution_name(group, *place), _reason(attempt), attempt.sampled)


def _reason(attempt: _Attempt) -> str:
    if attempt.quarantined is not None:
        return f"quarantined: {attempt.quarantined}"
    if isinstance(attempt.ended, Discarded):
        return f"discarded: {attempt.ended.reason.value}"
    if isinstance(attempt.score, EvaluationFailed):
        return f"evaluation-failed: {attempt.score.reason}"
    if isinstance(attempt.score, Scored) and attempt.score.placeholder:
        return "placeholder: the environment never came up"
    return "superseded: another attempt counts"
