"""What every event has in common: its type, its version, its envelope, and how old versions are lifted.

An event on the wire is one msgpack map: the envelope's fields, and the body under `body`. Type and version also stand in the
Kafka headers, so that a reader can pass over what it does not want without decoding it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from gyre_engine.events.codec import CodecError, Fields, from_fields, pack, to_fields, unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The base of every event. Subclasses are frozen, slotted, and carry only plain values, records and arrays."""

    TYPE: ClassVar[str]
    VERSION: ClassVar[int]
    TOPIC: ClassVar[str]
    KEY: ClassVar[str]

    def key(self, run: str) -> str:
        """The Kafka key: the value of the field that KEY names, or the run."""
        return run if self.KEY == "run" else str(getattr(self, self.KEY))


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event with its envelope, and where it stands on the log (partition -1, offset -1: not there yet)."""

    id: str
    run: str
    at: int
    """Microseconds since the epoch, by the producer's clock."""
    cause: str | None
    event: Event
    topic: str = ""
    partition: int = -1
    offset: int = -1
    extra: Fields = field(default_factory=dict, compare=False)
    """Fields of the body that this version of the type does not have, as a newer producer wrote them."""


class UnknownEvent(CodecError):
    """A type or version that this code does not know: skipped by most readers, a stop on the ledger and the commands."""


E = TypeVar("E", bound=type[Event])
Upcaster = Callable[[Fields], Fields]

_TYPES: dict[str, type[Event]] = {}
_UPCASTERS: dict[tuple[str, int], Upcaster] = {}


def event(type_name: str, *, topic: str, key: str, version: int = 1) -> Callable[[E], E]:
    """Register an event type: its name on the wire, its topic, the field that keys it, its schema version."""

    def register(cls: E) -> E:
        if type_name in _TYPES and _TYPES[type_name].__qualname__ != cls.__qualname__:
            raise ValueError(f"event type {type_name!r} is registered twice")
        cls.TYPE, cls.TOPIC, cls.KEY, cls.VERSION = type_name, topic, key, version
        _TYPES[type_name] = cls
        return cls

    return register


def upcast(cls: type[Event], *, from_version: int) -> Callable[[Upcaster], Upcaster]:
    """Register how the fields of `from_version` become those of the next version."""

    def register(lift: Upcaster) -> Upcaster:
        _UPCASTERS[cls.TYPE, from_version] = lift
        return lift

    return register


def event_types() -> dict[str, type[Event]]:
    """Every registered event type by its name on the wire."""
    return dict(sorted(_TYPES.items()))


def now_us() -> int:
    """The producer's clock in microseconds. Only producers of original events read it, never a derivation."""
    return time.time_ns() // 1000


def new_id() -> str:
    """An id for an original event."""
    return uuid.uuid4().hex


def derived_id(causes: tuple[str, ...], derivation: str, version: int, config_hash: str = "", index: int = 0) -> str:
    """The id of a derived event: a hash of what it is derived from and how (log-rules 15)."""
    parts = [*causes, derivation, str(version), config_hash, str(index)]
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(4, "little") + encoded)
    return digest.hexdigest()


def encode(record: Recorded) -> bytes:
    """The bytes of an event with its envelope."""
    body = record.event
    envelope: dict[str, Any] = {
        "id": record.id,
        "type": body.TYPE,
        "v": body.VERSION,
        "run": record.run,
        "at": record.at,
        "cause": record.cause,
        "body": to_fields(body),
    }
    return pack(envelope)


def decode(data: bytes | None, *, topic: str = "", partition: int = -1, offset: int = -1) -> Recorded:
    """The event that `data` holds. Raises CodecError (what is wrong) or UnknownEvent (type or version not known here)."""
    if data is None:
        raise CodecError("a null value")
    envelope = unpack(data)
    try:
        type_name, version, body = envelope["type"], envelope["v"], envelope["body"]
        head = (envelope["id"], envelope["run"], envelope["at"], envelope["cause"])
    except KeyError as error:
        raise CodecError(f"the envelope has no {error}") from error
    cls = _TYPES.get(type_name)
    if cls is None:
        raise UnknownEvent(f"unknown event type {type_name!r}")
    fields = lift(cls, version, body)
    extra = {name: fields[name] for name in unknown_fields(cls, fields)}
    return Recorded(*head, from_fields(cls, fields), topic, partition, offset, extra)


def lift(cls: type[Event], version: int, body: Fields) -> Fields:
    """The fields of `version` lifted to the current version, one upcaster after the other."""
    if not isinstance(version, int) or version > cls.VERSION or version < 1:
        raise UnknownEvent(f"{cls.TYPE} has version {version!r}; this code knows 1 to {cls.VERSION}")
    for step in range(version, cls.VERSION):
        if (cls.TYPE, step) not in _UPCASTERS:
            raise UnknownEvent(f"{cls.TYPE}: no upcaster from version {step}")
        body = _UPCASTERS[cls.TYPE, step](dict(body))
    return body


def unknown_fields(cls: type[Event], body: Fields) -> tuple[str, ...]:
    """Names in `body` that this version of the type does not have (a newer producer wrote them)."""
    return tuple(sorted(body.keys() - _known_fields(cls.TYPE)))


@functools.cache
def _known_fields(type_name: str) -> frozenset[str]:
    return frozenset(f.name for f in dataclasses.fields(_TYPES[type_name]))
