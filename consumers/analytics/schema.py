"""The tables, derived from the event types: one a topic, one column a field, the union over the topic's types.

`model_calls_raw` holds what was read from the log, and may hold an event twice; `model_calls` gives every event once. Rules:

- plain fields become nullable columns (null where the event's type has no such field), enums too;
- arrays of token ids become their length (`output_ids` -> `output_tokens`, `logprobs` -> `logprobs_len`); the ids stand in `raw`;
- tuples, records and dicts become Array, Tuple and Map; bytes become hex; times (`*_at`, microseconds) become DateTime64(6, 'UTC');
- `version` of an event is a version of weights and becomes `weight_version`; `version` of a row is the version of its event type.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any

from gyre_engine.events import Event, event_types

ENVELOPE: tuple[tuple[str, str], ...] = (
    ("run", "LowCardinality(String)"),
    ("topic", "LowCardinality(String)"),
    ("partition", "Int32"),
    ("offset", "Int64"),
    ("event_id", "String"),
    ("type", "LowCardinality(String)"),
    ("version", "UInt16"),
    ("at", "DateTime64(6, 'UTC')"),
    ("cause", "Nullable(String)"),
)
TAIL: tuple[tuple[str, str], ...] = (
    ("unknown_fields", "Array(LowCardinality(String))"),
    ("raw", "String CODEC(ZSTD(3))"),
    ("ingested_at", "DateTime64(6, 'UTC') DEFAULT now64(6, 'UTC')"),
)
RENAMED = {
    "version": "weight_version",
    "topic": "source_topic",
    "partition": "source_partition",
    "offset": "source_offset",
    "run": "run_name",
    "type": "kind",
    "cause": "caused_by",
}
"""Fields whose names the envelope has taken."""
COMPUTED: dict[str, tuple[tuple[str, str], ...]] = {"model-calls": (("prompt_tokens", "prefix_len + new_input_tokens"),)}
"""Columns that only the deduplicated view has."""
DEDUPLICATION_WINDOW = 10_000
"""Inserts a table remembers by their token."""


class SchemaError(TypeError):
    """An event type that no column can hold; the text names the field."""


class Form(enum.Enum):
    """How a field's value becomes a column's."""

    SAME = "same"
    LENGTH = "length"
    TIME = "time"
    FLOATS = "floats"
    """A number, or numbers inside of something, that JSON may have no form for (nan, inf)."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a topic's table and the field that fills it."""

    name: str
    type: str
    field: str
    form: Form


@dataclass(frozen=True, slots=True)
class Table:
    """A topic's table: its payload columns, and for each event type which of them it fills."""

    topic: str
    columns: tuple[Column, ...]
    filled: dict[str, tuple[Column, ...]]

    @property
    def name(self) -> str:
        """The deduplicated view, the name that people use."""
        return self.topic.replace("-", "_")

    @property
    def raw_name(self) -> str:
        """The table that is written to."""
        return self.name + "_raw"

    def definitions(self) -> tuple[tuple[str, str], ...]:
        """Every column with its type, in order."""
        return (*ENVELOPE, *((c.name, c.type) for c in self.columns), *TAIL)

    def create(self) -> str:
        """DDL of the table. An event id once is enough, wherever and however often it stands on the log."""
        columns = ", ".join(f"`{name}` {kind}" for name, kind in self.definitions())
        return (
            f"CREATE TABLE IF NOT EXISTS `{self.raw_name}` ({columns}) ENGINE = ReplacingMergeTree(offset) ORDER BY (run, event_id) "
            f"SETTINGS non_replicated_deduplication_window = {DEDUPLICATION_WINDOW}"
        )

    def create_view(self) -> str:
        """DDL of the deduplicated view."""
        columns = ", ".join(f"`{name}`" for name, _ in self.definitions())
        computed = "".join(f", {expression} AS `{name}`" for name, expression in COMPUTED.get(self.topic, ()))
        select = f"SELECT {columns}{computed} FROM `{self.raw_name}` FINAL"  # noqa: S608 - names of our own
        return f"CREATE OR REPLACE VIEW `{self.name}` AS {select}"


@functools.cache
def tables() -> dict[str, Table]:
    """The table of every topic that some event type names, by topic."""
    topics: dict[str, list[type[Event]]] = {}
    for cls in event_types().values():
        topics.setdefault(cls.TOPIC, []).append(cls)
    return {topic: _table(topic, classes) for topic, classes in sorted(topics.items())}


def _table(topic: str, classes: list[type[Event]]) -> Table:
    columns: dict[str, Column] = {}
    filled: dict[str, tuple[Column, ...]] = {}
    for cls in sorted(classes, key=lambda c: c.TYPE):
        own = tuple(_settle(columns, cls, column) for column in columns_of(cls))
        columns.update((column.name, column) for column in own)
        filled[cls.TYPE] = own
    return Table(topic, tuple(columns.values()), filled)


def _settle(columns: dict[str, Column], cls: type[Event], column: Column) -> Column:
    """The same name with another type (in another event type) gets the event type before it."""
    other = columns.get(column.name)
    if other is None or (other.type, other.form) == (column.type, column.form):
        return column
    return dataclasses.replace(column, name=f"{cls.TYPE.replace('-', '_')}_{column.name}")


def columns_of(cls: type[Event]) -> tuple[Column, ...]:
    """The columns that one event type fills, in the order of its fields."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(_column(cls, f.name, hints[f.name]) for f in dataclasses.fields(cls))


def _column(cls: type[Event], field: str, hint: Any) -> Column:
    name = RENAMED.get(field, field)
    if typing.get_origin(hint) is Annotated:
        return Column(_length_name(name), "Nullable(UInt32)", field, Form.LENGTH)
    if field.endswith("_at") and hint is int:
        return Column(name, "Nullable(DateTime64(6, 'UTC'))", field, Form.TIME)
    try:
        kind = column_type(hint)
        return Column(name, kind, field, Form.FLOATS if "Float" in kind else Form.SAME)
    except SchemaError as error:
        raise SchemaError(f"{cls.__name__}.{field}: {error}") from error


def _length_name(name: str) -> str:
    if name == "ids":
        return "tokens"
    return name[:-4] + "_tokens" if name.endswith("_ids") else name + "_len"


def column_type(hint: Any) -> str:
    """The column type of a field: nullable where ClickHouse allows it, so that another type's rows say null and not 0."""
    inner = _inner_type(hint)
    if inner.startswith(("Array", "Map", "Tuple")):
        return inner
    return f"LowCardinality(Nullable({inner}))" if _is_enum(_without_none(hint)) else f"Nullable({inner})"


_PLAIN = {str: "String", int: "Int64", float: "Float64", bool: "Bool", bytes: "String"}


def _inner_type(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    bare = _without_none(hint)
    if bare is not hint:
        return _inner_type(bare)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return f"Array({_element_type(args[0])})"
    if origin is tuple:
        return f"Tuple({', '.join(_element_type(a) for a in args)})"
    if origin is dict:
        return f"Map(String, {_element_type(args[1])})"
    if origin is Annotated:
        return "Array(Float64)" if "f" in hint.__metadata__[0] else "Array(Int64)"
    if dataclasses.is_dataclass(hint):
        return _record_type(typing.cast(type, hint))
    if _is_enum(hint):
        return "String"
    if hint not in _PLAIN:
        raise SchemaError(f"no column type for {hint!r}")
    return _PLAIN[hint]


def _element_type(hint: Any) -> str:
    inner = _inner_type(hint)
    return f"Nullable({inner})" if _without_none(hint) is not hint and not inner.startswith(("Array", "Map", "Tuple")) else inner


def _record_type(record: type) -> str:
    hints = typing.get_type_hints(record, include_extras=True)
    return f"Tuple({', '.join(f'`{f.name}` {_element_type(hints[f.name])}' for f in dataclasses.fields(record))})"


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, enum.Enum)


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint
    inner = [a for a in typing.get_args(hint) if a is not type(None)]
    return inner[0] if len(inner) == 1 else hint
