"""What a stream is, apart from Kafka and Faust: a pure fold from records to derived events.

A derivation reads no clock and draws no random number. The id of what it derives is a hash of the causes (log-rules,
15), so deriving it twice makes the same event.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from gyre_engine.events import CodecError, Event, Recorded, decode, derived_id, event_types
from gyre_engine.events.calls import Quarantined
from gyre_engine.events.codec import unpack
from gyre_engine.log.intake import letter, letter_id
from gyre_engine.log.port import Raw

_KNOWN = frozenset(event_types())
Position = tuple[str, int]
"""(topic, partition)"""


@dataclass(frozen=True, slots=True)
class Derived:
    """An event to append."""

    event: Event
    id: str
    cause: str | None
    at: int


class Derivation(Protocol):
    """A fold over some topics. Records of one partition come in their order; between partitions there is none."""

    name: str
    sources: tuple[str, ...]
    decisive: tuple[type[Event], ...]
    """What others wait for: a start makes sure that the log holds each of these."""
    whole: bool
    """Whether it needs every partition of its sources: then only one worker may run it."""

    def begin(self, event: Event) -> None:
        """Before anything else: an event of a decisive type that stands on the log already."""

    def observe(self, raw: Raw) -> Sequence[Derived]:
        """What follows from the next record. Raises CodecError (a bad record), UnreadableEvent (stop)."""

    def reject(self, raw: Raw, reason: str) -> Sequence[Derived]:
        """What follows from a record that cannot be read or applied: a dead letter, and its execution's quarantine."""


def dead_letter(raw: Raw, reader: str, reason: str) -> Derived:
    """The record and why it was passed over."""
    event = letter(raw, reader, reason)
    return Derived(event, letter_id(event), None, raw.at_ms * 1000)


def quarantine(raw: Raw, event: Quarantined, config_hash: str) -> Derived:
    """The execution of a bad record leaves training (log-rules, 16)."""
    id = derived_id(raw.place.parts, event.TYPE, event.VERSION, config_hash)
    return Derived(event, id, None, raw.at_ms * 1000)


def wanted(raw: Raw, types: Collection[str]) -> Recorded | None:
    """The event of a record, None where it is a known type but none of `types`. Raises CodecError."""
    if raw.value is None:
        raise CodecError("a null value")
    kind = unpack(raw.value).get("type")
    if kind in _KNOWN and kind not in types:
        return None
    return decode(raw.value, topic=raw.topic, partition=raw.partition, offset=raw.offset)


def execution_of(raw: Raw) -> str | None:
    """The execution that keys a record, None where the key is missing or no text."""
    try:
        return raw.key.decode() if raw.key else None
    except UnicodeDecodeError:
        return None
