"""Tables and rows, derived from the event types."""

import dataclasses
import json
import subprocess
import sys
import typing
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given

from consumers.analytics.rows import insert_body, row, timestamp
from consumers.analytics.schema import SchemaError, column_type, columns_of, tables
from consumers.analytics.settings import address
from gyre_engine.events import Event, Recorded, decode, encode, event_types
from gyre_engine.events.calls import ModelCall, Role
from gyre_engine.events.executions import Scored, ToolCalled
from gyre_engine.events.log import DeadLetter
from gyre_engine.events.training import MicroStep, Published
from gyre_engine.log.port import TOPICS
from tests.unit.analytics.event_strategies import DTYPES, events


def test_every_topic_has_a_table_and_every_type_is_filled():
    assert set(tables()) == {*TOPICS, "runs"}
    filled = {name for table in tables().values() for name in table.filled}
    assert filled == set(event_types())


def test_the_names_of_the_tables():
    assert sorted(table.name for table in tables().values()) == [
        "cells", "commands", "dead_letters", "executions", "micro_steps", "model_calls", "runs", "scores", "tool_events",
        "training", "trajectories", "trees", "water_level",
    ]  # fmt: skip


def test_no_table_has_a_column_twice():
    for table in tables().values():
        names = [name for name, _ in table.definitions()]
        assert len(names) == len(set(names)), table.name


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        (str, "Nullable(String)"),
        (int | None, "Nullable(Int64)"),
        (bool, "Nullable(Bool)"),
        (Role, "LowCardinality(Nullable(String))"),
        (tuple[str, ...], "Array(String)"),
        (tuple[tuple[str, int], ...], "Array(Tuple(String, Int64))"),
        (dict[str, float], "Map(String, Float64)"),
    ],
)
def test_column_types(hint, kind):
    assert column_type(hint) == kind


def test_a_type_without_a_column_is_named():
    with pytest.raises(SchemaError, match="complex"):
        column_type(complex)


def test_arrays_become_lengths_and_times_become_times():
    columns = {c.field: (c.name, c.type) for c in columns_of(ModelCall)}
    assert columns["output_ids"] == ("output_tokens", "Nullable(UInt32)")
    assert columns["logprobs"] == ("logprobs_len", "Nullable(UInt32)")
    assert columns["finished_at"] == ("finished_at", "Nullable(DateTime64(6, 'UTC'))")


def test_names_that_the_envelope_has_taken_are_changed():
    assert [c.name for c in columns_of(DeadLetter)][:3] == ["source_topic", "source_partition", "source_offset"]
    assert "weight_version" in {c.name for c in columns_of(Published)}


@given(events())
def test_every_event_makes_a_row_of_its_tables_columns(event: Event):
    record = Recorded("id", "run", 1, None, event, event.TOPIC, 0, 7)
    table = tables()[event.TOPIC]
    found = json.loads(insert_body([record]))
    assert set(found) <= {name for name, _ in table.definitions()}
    assert json.loads(found["raw"])["type"] == event.TYPE


@given(events())
def test_raw_holds_every_field(event: Event):
    raw = json.loads(row(Recorded("id", "run", 1, None, event, event.TOPIC, 0, 7))["raw"])
    assert set(raw["body"]) == {f.name for f in dataclasses.fields(event)}


def test_token_ids_stand_in_raw_except_for_micro_steps():
    def only(cls):
        hints = typing.get_type_hints(cls, include_extras=True)
        arrays = {
            n: np.array([3, 1, 4], dtype=DTYPES[h.__metadata__[0]])
            for n, h in hints.items()
            if typing.get_origin(h) is typing.Annotated
        }
        plain = {str: "x", int: 1, float: 1.0, bool: True, bytes: b"\x01\xff"}
        rest = {n: plain.get(h, ()) for n, h in hints.items() if n not in arrays and n not in ("TYPE", "VERSION", "TOPIC", "KEY")}
        return Recorded("i", "r", 1, None, cls(**arrays, **rest), cls.TOPIC, 0, 0)

    call = json.loads(row(only(ModelCall))["raw"])["body"]
    assert (call["output_ids"], call["prefix_hash"]) == ([3, 1, 4], "01ff")
    assert call["routed_experts"] == {"length": 3}
    assert json.loads(row(only(MicroStep))["raw"])["body"]["ids"] == {"length": 3}


def test_c46_fields_of_a_newer_producer_are_kept_and_named():
    old = ToolCalled(execution="e", call="c", tool_call="t", name="bash", arguments="{}")
    envelope = msgpack.unpackb(encode(Recorded("i", "r", 1, None, old)))
    envelope["body"]["probe_x"] = {"deep": [1, 2]}
    record = decode(msgpack.packb(envelope), topic="tool-events", partition=0, offset=0)
    found = row(record)
    assert found["unknown_fields"] == ["probe_x"]
    assert json.loads(found["raw"])["body"]["probe_x"] == {"deep": [1, 2]}


def test_numbers_that_json_has_not_are_kept():
    scored = Scored(execution="e", scorer="s", scorer_version="1", evaluation_attempt=0, reward=float("inf"))
    assert row(Recorded("i", "r", 1, None, scored, "scores", 0, 0))["reward"] == "inf"


def test_times_are_utc_to_the_microsecond():
    """1,700,000,000 s after the epoch is 2023-11-14 22:13:20 UTC."""
    assert timestamp(1_700_000_000_000_007) == "2023-11-14 22:13:20.000007"
    assert timestamp(-1) == "1970-01-01 00:00:00.000000"


def test_addresses():
    at = address("https://me:s%40crit@db.example/mine", user="u", password="p", database="gyre")
    assert (at.host, at.port, at.secure, at.user, at.password, at.database) == ("db.example", 8443, True, "me", "s@crit", "mine")
    assert "s@crit" not in repr(at)
    at = address("http://127.0.0.1:9123", user="u", password="p", database="gyre")
    assert (at.port, at.user, at.password, at.database) == (9123, "u", "p", "gyre")
    with pytest.raises(ValueError, match=r"clickhouse\.url"):
        address("127.0.0.1:8123", user="u", password="p", database="gyre")


def test_analytics_imports_nothing_heavy():
    heavy = ("torch", "transformers", "megatron", "pandas", "chdb")
    code = f"import sys, consumers.analytics.process, consumers.analytics.query; print([m for m in {heavy} if m in sys.modules])"
    root = Path(__file__).parents[3]
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert found.stdout.strip() == "[]"
