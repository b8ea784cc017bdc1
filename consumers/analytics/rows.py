"""A row of an event, as JSON: the envelope, the columns that its type fills, and the whole event in `raw`.

Nothing is lost but bulk: token ids stand in `raw` as numbers, except those of micro-steps, which only repeat what the calls hold.
Fields that this version of the code does not know stand in `raw` too and are named in `unknown_fields`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import orjson

from consumers.analytics.schema import Column, Form, Table, tables
from gyre_engine.events import Event, Recorded, event_types

BULK_TOPICS = frozenset({"micro-steps"})
"""Topics whose arrays `raw` gives only as lengths."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_US = 9_223_372_036_000_000
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def insert_body(records: Iterable[Recorded]) -> bytes:
    """The rows of `records`, all of one topic, as JSONEachRow."""
    return b"\n".join(orjson.dumps(row(record), default=_plain, option=_OPTIONS) for record in records) + b"\n"


def row(record: Recorded) -> dict[str, Any]:
    """Column -> value, ready for JSON."""
    event = record.event
    table = table_of(event)
    values: dict[str, Any] = {
        "run": record.run,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "event_id": record.id,
        "type": event.TYPE,
        "version": event.VERSION,
        "at": timestamp(record.at),
        "cause": record.cause,
        "unknown_fields": sorted(record.extra),
        "raw": raw(record).decode(),
    }
    for column in table.filled[event.TYPE]:
        values[column.name] = _value(column, getattr(event, column.field))
    return values


def table_of(event: Event) -> Table:
    """The table that an event's topic has."""
    return tables()[event.TOPIC]


def raw(record: Recorded) -> bytes:
    """The event as JSON: envelope and body, bytes as hex, unknown fields included."""
    event = record.event
    bulky = event.TOPIC in BULK_TOPICS
    body = {name: _without_bulk(getattr(event, name), bulky) for name in _fields(event.TYPE)}
    head = {"id": record.id, "type": event.TYPE, "v": event.VERSION, "run": record.run, "at": record.at, "cause": record.cause}
    return orjson.dumps({**head, "body": {**body, **record.extra}}, default=_plain, option=_OPTIONS)


def timestamp(at_us: int) -> str:
    """Microseconds since the epoch as ClickHouse reads them; times that DateTime64 cannot hold become its ends."""
    return (_EPOCH + timedelta(microseconds=min(max(at_us, 0), _LAST_US))).strftime("%Y-%m-%d %H:%M:%S.%f")


@functools.cache
def _fields(type_name: str) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(event_types()[type_name]))


def _value(column: Column, value: Any) -> Any:
    if value is None or column.form is Form.SAME:
        return value
    if column.form is Form.LENGTH:
        return len(value)
    if column.form is Form.TIME:
        return timestamp(value) if value else None
    return _finite(value)


def _finite(value: Any) -> Any:
    """The same with nan and inf as text, which ClickHouse reads and JSON can hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, tuple | list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {f.name: _finite(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def _without_bulk(value: Any, bulky: bool) -> Any:
    """Bytes of experts are many more than a call's tokens, on whatever topic."""
    return {"length": len(value)} if isinstance(value, np.ndarray) and (bulky or value.dtype == np.uint8) else value


def _plain(value: Any) -> Any:
    """What orjson does not know: bytes become hex, arrays in an odd layout lists, anything else (of unknown fields) its text."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return str(value)
