"""Admission: a group is admitted once each of its places is decided.

reads     executions, trees, scores (by execution); trajectories at a start (what is decided already)
writes    trajectories (by group); trees (quarantines) and dead-letters for records that cannot be read
promises  one decision a group, and it never changes; only the pinned scorer and version count; evaluation executions never

A group's executions lie on several partitions, so one worker must read all of them. To scale it, key a topic of
decided executions by group and let that topic's partitions be shared out.
"""

from __future__ import annotations

from collections.abc import Sequence

from gyre_engine.admission import Admission, AdmissionSettings
from gyre_engine.events import CodecError, Event
from gyre_engine.events.calls import Quarantined, TreeClosed
from gyre_engine.events.executions import Discarded, Dispatched, EvaluationFailed, Finished, Scored, UnknownExecution
from gyre_engine.events.training import GroupAdmitted
from gyre_engine.log.port import Raw
from streams.derivation import Derived, dead_letter, execution_of, quarantine, wanted

_WANTED = frozenset(cls.TYPE for cls in (Dispatched, Finished, Discarded, TreeClosed, Quarantined, Scored, EvaluationFailed))


class AdmissionStream:
    """The derivation around gyre_engine.admission."""

    name = "admission"
    sources: tuple[str, ...] = ("executions", "trees", "scores")
    decisive: tuple[type[Event], ...] = (GroupAdmitted,)
    whole = True

    def __init__(self, settings: AdmissionSettings) -> None:
        self.settings = settings
        self.admission = Admission(settings)

    def begin(self, event: Event) -> None:
        """A group that the log holds a decision on."""
        if isinstance(event, GroupAdmitted):
            self.admission.decided(event.group)

    def observe(self, raw: Raw) -> Sequence[Derived]:
        """The decision that follows, if any."""
        record = wanted(raw, _WANTED)
        if record is None:
            return ()
        try:
            admitted = self.admission.observe(record)
        except UnknownExecution as error:
            raise CodecError(str(error)) from error
        if admitted is None:
            return ()
        return (Derived(admitted.event, admitted.id, admitted.cause, admitted.at),)

    def reject(self, raw: Raw, reason: str) -> Sequence[Derived]:
        """A dead letter, and the quarantine of the execution that keys the record: it comes back on `trees`."""
        letter = dead_letter(raw, self.name, reason)
        execution = execution_of(raw)
        if execution is None:
            return (letter,)
        event = Quarantined(execution=execution, reason=f"{raw.topic}: {reason}")
        return letter, quarantine(raw, event, self.settings.config_hash)
