"""The references of the config, the events and the life of a cell, rendered from the code itself."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from typing import Any

from gyre_engine.config import Config
from gyre_engine.events import Event, event_types
from gyre_engine.events.cells import LifeState
from gyre_engine.log import SINGLE_PARTITION
from gyre_engine.scheduling.life import MEANING, TABLE, LifeLimits, role_of


def config_page() -> str:
    """docs/config.md"""
    lines = [
        "# Config reference",
        "",
        "Generated from `gyre_engine/config` by `python -m infra.reference`. A config is one TOML file; any value can be",
        "set on the command line with `--set section.key=value`. Relative paths are taken from the file's folder.",
    ]
    hints = typing.get_type_hints(Config)
    for section in dataclasses.fields(Config):
        cls = _section_type(hints[section.name])
        title = f"[[{section.name}]]" if cls is not hints[section.name] else f"[{section.name}]"
        lines += ["", f"## {title}", "", _first_paragraph(cls), "", "| key | type | default | meaning |", "|---|---|---|---|"]
        lines += [_config_row(cls, f) for f in dataclasses.fields(cls)]
    return "\n".join(lines) + "\n"


def _section_type(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint


def _config_row(cls: Any, field: dataclasses.Field[Any]) -> str:
    hint = typing.get_type_hints(cls)[field.name]
    default = getattr(cls(), field.name)
    shown = json.dumps(list(default) if isinstance(default, tuple) else default)
    return f"| `{field.name}` | {_type_name(hint)} | `{shown}` | {field.metadata.get('doc', '')} |"


def events_page() -> str:
    """docs/events.md"""
    lines = [
        "# Events",
        "",
        "Generated from `gyre_engine/events/` by `python -m infra.reference`. On the wire an event is one msgpack map: `id`,",
        "`type`, `v` (schema version), `run`, `at` (microseconds), `cause` (id of the event it follows from) and `body` with the",
        "fields below; type and version also stand in the Kafka headers. Arrays are msgpack `bin`, little-endian.",
    ]
    topics: dict[str, list[type[Event]]] = {}
    for cls in event_types().values():
        topics.setdefault(cls.TOPIC, []).append(cls)
    for topic in sorted(topics):
        kind = "one partition" if topic in SINGLE_PARTITION else "partitioned by execution"
        lines += ["", f"## {topic}", "", f"Keyed by {topics[topic][0].KEY}, {kind}."]
        for cls in topics[topic]:
            lines += _event_section(cls)
    return "\n".join(lines) + "\n"


def _event_section(cls: type[Event]) -> list[str]:
    lines = [
        "",
        f"### {cls.TYPE} (version {cls.VERSION})",
        "",
        _first_paragraph(cls),
        "",
        "| field | type | meaning |",
        "|---|---|---|",
    ]
    hints, docs = typing.get_type_hints(cls, include_extras=True), _field_docs(cls)
    for field in dataclasses.fields(cls):
        lines.append(f"| `{field.name}` | {_type_name(hints[field.name])} | {docs.get(field.name, '')} |")
    return lines


def _field_docs(cls: type) -> dict[str, str]:
    """The text below each field in the class's source."""
    source = inspect.getsource(cls)
    found = re.findall(r'^    (\w+): [^\n]+\n    """(.+?)"""', source, flags=re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.split()) for name, text in found}


def _first_paragraph(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Annotated:
        return {"<i4": "int32 array", "<f4": "float32 array", "<f8": "float64 array", "u1": "uint8 array"}[hint.__metadata__[0]]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return f"list of {_type_name(args[0])}"
    if origin is tuple:
        return "(" + ", ".join(_type_name(a) for a in args) + ")"
    if origin is dict:
        return f"map of {_type_name(args[1])}"
    if args:
        return " or ".join("none" if a is type(None) else _type_name(a) for a in args)
    return str(hint.__name__)


def cells_page() -> str:
    """docs/cells.md"""
    lines = [
        "# The life of a cell",
        "",
        "Generated from `gyre_engine/scheduling/life.py` by `python -m infra.reference`. A cell is always in one of these states. Its",
        "agent does in each state one thing, and only what the table lists can follow; every change is a `life-changed` event.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> starting",
    ]
    lines += [f"    {_name(before)} --> {_name(state)}: {' / '.join(by)}" for (before, state), by in _arrows().items()]
    lines += ["```", "", "| state | what happens in it | seen by others as | limit | what may follow |", "|---|---|---|---|---|"]
    for state, exits in TABLE.items():
        limit = LifeLimits().of(state)
        then = ", ".join(f"{trigger}: {to}" for trigger, to in exits.items())
        lines.append(f"| {state} | {MEANING[state]} | {role_of(state)} | {'' if limit is None else f'{limit:g} s'} | {then} |")
    return "\n".join(lines) + "\n"


def _name(state: LifeState) -> str:
    return state.value.replace("-", "_")


def _arrows() -> dict[tuple[LifeState, LifeState], list[str]]:
    """The triggers between two states, in the table's order."""
    found: dict[tuple[LifeState, LifeState], list[str]] = {}
    for before, exits in TABLE.items():
        for trigger, state in exits.items():
            found.setdefault((before, state), []).append(trigger.value)
    return found
