"""From records to events, the same for every implementation of the port.

A record that cannot be read (bytes that are no event, a null value, an unknown type or version) stops the reader on a STRICT topic.
Elsewhere it goes to `dead-letters` with its place and the reason, is counted, and is passed over (log-rules, 16). Two exceptions:
a null value on `runs` is a tombstone, and a dead letter that cannot be read is only counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future

from gyre_engine.events import CodecError, Recorded, decode, derived_id, encode
from gyre_engine.events.log import DeadLetter
from gyre_engine.log.names import RUNS
from gyre_engine.log.port import STRICT, Log, OnDeadLetter, Place, Raw, UnreadableEvent

DEAD_LETTERS = "dead-letters"
VALUE_LIMIT = 64 * 1024
log = logging.getLogger(__name__)


class Intake:
    """Decodes one reader's records, and sends on those that cannot be read."""

    def __init__(self, to: Log, reader: str, on_dead_letter: OnDeadLetter | None = None) -> None:
        self._log = to
        self._reader = reader
        self._on_dead_letter = on_dead_letter
        self._unacknowledged: list[Future[Place]] = []
        self._stopped: UnreadableEvent | None = None
        self.dead_lettered = 0

    def take_all(self, records: Iterable[Raw], positions: dict[tuple[str, int], int]) -> list[Recorded]:
        """The events of `records` in order, moving `positions` past them. Where one stops the reader, what came before it is
        returned first and the next call raises."""
        if self._stopped is not None:
            raise self._stopped
        events: list[Recorded] = []
        for raw in records:
            try:
                event = self.take(raw)
            except UnreadableEvent as error:
                self._stopped = error
                break
            positions[raw.topic, raw.partition] = raw.offset + 1
            if event is not None:
                events.append(event)
        if self._stopped is not None and not events:
            raise self._stopped
        return events

    def take(self, raw: Raw) -> Recorded | None:
        """The event of a record, or None where it is passed over. Raises UnreadableEvent on a STRICT topic."""
        if raw.value is None and raw.topic == RUNS:
            return None
        try:
            return decode(raw.value, topic=raw.topic, partition=raw.partition, offset=raw.offset)
        except CodecError as error:
            self._pass_over(raw, str(error))
            return None

    def settle(self, timeout: float) -> None:
        """Wait until every dead letter is acknowledged: only then may the positions past it be committed."""
        while self._unacknowledged:
            self._unacknowledged[0].result(timeout)
            self._unacknowledged.pop(0)

    def _pass_over(self, raw: Raw, reason: str) -> None:
        if raw.topic in STRICT:
            raise unreadable(raw, self._reader, reason)
        self.dead_lettered += 1
        log.warning("%s passes over %s: %s", self._reader, raw.place, reason)
        if raw.topic == DEAD_LETTERS:
            return
        passed = letter(raw, self._reader, reason)
        self._unacknowledged.append(_send(self._log, passed, raw.at_ms * 1000))
        if self._on_dead_letter is not None:
            self._on_dead_letter(passed)


def unreadable(raw: Raw, reader: str, reason: str) -> UnreadableEvent:
    """What stops a reader at a record of a STRICT topic."""
    return UnreadableEvent(f"{raw.place}: {reason}. {reader} stops here: every reader of {raw.topic} must see the same.")


def letter(raw: Raw, reader: str, reason: str) -> DeadLetter:
    """The record and why `reader` passed over it."""
    return DeadLetter(
        topic=raw.topic,
        partition=raw.partition,
        offset=raw.offset,
        reader=reader,
        reason=reason,
        message_key=raw.key or b"",
        value=(raw.value or b"")[:VALUE_LIMIT],
    )


def letter_id(letter: DeadLetter) -> str:
    """Of its place and its reader: sent twice, it is the same event."""
    return derived_id((*Place.of(letter).parts, letter.reader), DeadLetter.TYPE, DeadLetter.VERSION)


def bury(to: Log, record: Recorded, reader: str, reason: str) -> Future[Place]:
    """Send an event that could be read but not handled to `dead-letters`."""
    raw = Raw(record.topic, record.partition, record.offset, None, encode(record), record.at // 1000)
    return _send(to, letter(raw, reader, reason), record.at, cause=record.id)


def _send(to: Log, letter: DeadLetter, at: int, cause: str | None = None) -> Future[Place]:
    return to.append(letter, cause=cause, id=letter_id(letter), at=at)
