"""From the log into the tables: every event once, whatever is delivered twice, cut otherwise, killed or newer than this code."""

import dataclasses
import itertools
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import clickhouse_connect
import httpx
import hypothesis
import msgpack
import numpy as np
import pytest
from hypothesis import strategies as st

from consumers.analytics.ingest import Ingest
from consumers.analytics.process import serving
from consumers.analytics.query import running
from consumers.analytics.schema import tables
from consumers.analytics.settings import AnalyticsSettings
from consumers.analytics.store import RowsRefused, Store, StoreUnavailable
from gyre_engine.events import Recorded, encode
from gyre_engine.events.calls import Continuity, Finish, InputSpan, ModelCall, Provenance, WeightSpan
from gyre_engine.events.executions import Scored, ToolCalled
from gyre_engine.events.log import DeadLetter, RunStarted
from gyre_engine.log.memory import MemoryLog
from tests.unit.analytics.event_strategies import events

ROOT = Path(__file__).parents[2]
RUNS = itertools.count()


def call(number, tokens=10):
    return ModelCall(
        execution=f"g.{number % 5}.0",
        call=f"call-{number}",
        number=number,
        owner_epoch=1,
        parent=None,
        prefix_len=4,
        prefix_hash=b"\x00\xff",
        new_input_ids=np.arange(6, dtype=np.int32),
        output_ids=np.arange(tokens, dtype=np.int32),
        logprobs=np.full(tokens, -0.5, dtype=np.float32),
        weight_spans=(WeightSpan(0, 3, "cell-0"),),
        input_spans=(InputSpan(0, Provenance.USER),),
        finish=Finish.STOP,
        continuity=Continuity.ROOT,
        dialect="chat",
        temperature=1.0,
        top_p=1.0,
        max_tokens=64,
        tools=1,
        messages=2,
        shape="s",
        finished_at=1_700_000_000_000_007,
    )


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return AnalyticsSettings(path=tmp_path_factory.mktemp("analytics") / "data", port=0, password="p", insert_retry_seconds=2.0)


@pytest.fixture(scope="module")
def address(settings):
    with serving(settings) as at:
        yield at


@pytest.fixture(scope="module")
def store(address):
    opened = Store(address)
    opened.prepare()
    yield opened
    opened.close()


@pytest.fixture
def ask(address):
    client = clickhouse_connect.get_client(host=address.host, port=address.port)
    yield lambda sql, **parameters: client.query(sql, parameters=parameters).result_rows
    client.close()


def recorded(log, topic):
    return list(log.read(topic))


def test_c44_a_hundred_calls_twice_in_other_batches_count_once(store, ask):
    """C44: Call n has n + 1 output tokens: 1 + 2 + ... + 100 = 5,050."""
    log = MemoryLog(run="c44")
    for n in range(100):
        log.append(call(n, tokens=n + 1), id=f"e{n}")
    records = recorded(log, "model-calls")
    for size in (10, 7):
        for start in range(0, 100, size):
            store.insert("model-calls", records[start : start + size])
    found = ask("SELECT count(), sum(output_tokens), sum(prompt_tokens) FROM model_calls WHERE run = 'c44'")
    assert found == [(100, 5050, 1000)]
    a_second = ask("SELECT sum(calls), sum(sampled), sum(prompted) FROM tokens_per_second WHERE run = 'c44'")
    assert [round(value * 10) for value in a_second[0]] == [100, 5050, 1000]


def test_a_batch_that_is_sent_again_is_dropped_by_its_token(store, ask):
    log = MemoryLog(run="again")
    log.append_all([call(n) for n in range(20)])
    for _ in range(3):
        store.insert("model-calls", recorded(log, "model-calls"))
    assert ask("SELECT count() FROM model_calls_raw WHERE run = 'again'") == [(20,)]


def test_tables_of_an_older_version_get_their_new_columns(store, ask, address):
    admin = clickhouse_connect.get_client(host=address.host, port=address.port, username="writer", password="p", database="gyre")
    admin.command("ALTER TABLE cells_raw DROP COLUMN weights_hash")
    admin.close()
    store.prepare()
    assert ask("SELECT type FROM system.columns WHERE table = 'cells_raw' AND name = 'weights_hash'") == [("Nullable(String)",)]
    assert ask("SELECT count(weights_hash) FROM cells") == [(0,)]


def test_an_event_that_stands_twice_on_the_log_counts_once(store, settings, ask):
    log = MemoryLog(run="twice")
    for _ in range(2):
        log.append(call(1), id="the same")
    ingest = Ingest(log, store, settings)
    ingest.run_to_end()
    assert ask("SELECT count(), max(offset) FROM model_calls WHERE run = 'twice'") == [(1, 1)]


def test_a_restart_goes_on_where_the_tables_end(store, settings, ask):
    log = MemoryLog(run="restart")
    log.append_all([call(n) for n in range(50)])
    Ingest(log, store, settings).run_to_end()
    log.append_all([call(n) for n in range(50, 60)])
    second = Ingest(log, store, settings)
    second.run_to_end()
    assert second.inserted == 10
    assert ask("SELECT count(), uniqExact(partition, offset) FROM model_calls_raw WHERE run = 'restart'") == [(60, 60)]


def test_a_log_that_was_made_anew_under_the_same_name_is_read_from_its_beginning(store, settings, ask):
    log = MemoryLog(run="anew")
    log.append_all([call(n) for n in range(40)])
    Ingest(log, store, settings).run_to_end()
    other = MemoryLog(run="anew")
    other.append_all([call(n) for n in range(5)])
    Ingest(other, store, settings).run_to_end()
    assert ask("SELECT count() FROM model_calls WHERE run = 'anew'") == [(45,)]


def test_c46_newer_fields_stop_nothing_and_are_counted(store, settings, ask):
    """C46: 10 events of this version, then 10 with the field `probe_x`."""
    log = MemoryLog(run="c46")
    for n in range(20):
        event = ToolCalled(execution="g.0.0", call="c", tool_call=f"t{n}", name="bash", arguments="ls")
        envelope = msgpack.unpackb(encode(Recorded(f"e{n}", "c46", 1, None, event)))
        if n >= 10:
            envelope["body"]["probe_x"] = n
        log.store.put("gyre.c46.tool-events", "tool-events", b"g.0.0", msgpack.packb(envelope))
    Ingest(log, store, settings).run_to_end()
    assert ask("SELECT count() FROM tool_events WHERE run = 'c46'") == [(20,)]
    assert ask("SELECT topic, type, field, events FROM unknown_fields WHERE run = 'c46'") == [
        ("tool-events", "tool-called", "probe_x", 10)
    ]
    values = ask("SELECT JSONExtractInt(raw, 'body', 'probe_x') AS x FROM tool_events WHERE run = 'c46' AND x > 0 ORDER BY x")
    assert [x for (x,) in values] == list(range(10, 20))


def test_c49_keys_with_dots_read_back_unchanged(store, settings, ask):
    """C49: the key `a.b` beside an `a` that holds a `b`, in a config and in a map."""
    config = '{"a.b":1,"a":{"b":2}}'
    log = MemoryLog(run="c49")
    log.append(
        RunStarted(
            run="c49",
            config=config,
            config_hash="h",
            versions={"a.b": "1", "a": "2"},
            partitions={},
            fingerprint={},
            initial_weights="",
            initial_weights_hash="",
            topic_prefix="gyre",
        )
    )
    log.append(
        Scored(execution="e", scorer="s", scorer_version="1", evaluation_attempt=0, reward=1.0, rewards={"a.b": 0.25, "a": 0.5})
    )
    Ingest(log, store, settings).run_to_end()
    assert ask("SELECT config, versions FROM runs WHERE run = 'c49'") == [(config, {"a.b": "1", "a": "2"})]
    (raw,) = ask("SELECT raw FROM scores WHERE run = 'c49'")[0]
    assert json.loads(raw)["body"]["rewards"] == {"a.b": 0.25, "a": 0.5}


def test_an_event_of_each_kind_of_field_reads_back(store, settings, ask):
    log = MemoryLog(run="fields")
    log.append(call(7, tokens=3), at=1_700_000_000_000_001, cause="before")
    Ingest(log, store, settings).run_to_end()
    columns = "at, cause, type, version, number, parent, output_tokens, finish, temperature, prefix_hash, finished_at"
    columns += ", weight_spans.version"
    found = ask(f"SELECT {columns}, JSONExtract(raw, 'body', 'output_ids', 'Array(Int32)') FROM model_calls WHERE run = 'fields'")
    (at, cause, kind, version, number, parent, tokens, finish, temperature, prefix, finished, spans, ids) = found[0]
    assert (at.microsecond, cause, kind, version, number, parent) == (1, "before", "model-call", 1, 7, None)
    assert (tokens, finish, temperature, prefix, finished.microsecond, spans, ids) == (3, "stop", 1.0, "00ff", 7, [3], [0, 1, 2])


def test_what_analytics_cannot_read_comes_as_a_dead_letter(store, settings, ask):
    log = MemoryLog(run="broken")
    log.store.put("gyre.broken.scores", "scores", b"k", b'{"v":')
    log.append(Scored(execution="e", scorer="s", scorer_version="1", evaluation_attempt=0, reward=1.0))
    ingest = Ingest(log, store, settings)
    ingest.run_to_end()
    ingest.run_to_end()
    assert ask("SELECT count() FROM scores WHERE run = 'broken'") == [(1,)]
    assert ask("SELECT source_topic, source_offset, reader FROM dead_letters WHERE run = 'broken'") == [
        ("scores", 0, "analytics")
    ]


def test_a_row_that_clickhouse_refuses_is_passed_over_alone(store, settings, ask):
    """An attempt that is no number fits no column; its 20 neighbours are kept."""
    log = MemoryLog(run="refused")
    events = [Scored(execution=f"e{n}", scorer="s", scorer_version="1", evaluation_attempt=n, reward=1.0) for n in range(20)]
    log.append_all(events)
    bad = recorded(log, "scores")[3]
    bad = dataclasses.replace(bad, id="bad", event=dataclasses.replace(bad.event, evaluation_attempt="no number"))
    with pytest.raises(RowsRefused):
        store.insert("scores", [bad])
    ingest = Ingest(log, store, settings)
    ingest.handle(bad)
    ingest.run_to_end()
    ingest.run_to_end()
    assert ingest.passed_over == 1
    assert ask("SELECT count() FROM scores WHERE run = 'refused'") == [(20,)]


def test_a_server_that_is_away_is_named_and_waited_for_within_a_limit(address):
    away = Store(address, retry_seconds=0.5)
    away._client.close()
    away._client = clickhouse_connect.get_client(host=address.host, port=address.port, username="writer", password="p")
    away._client._backend._base_url = "http://127.0.0.1:1/"
    log = MemoryLog(run="away")
    log.append(call(1))
    with pytest.raises(StoreUnavailable, match="did not take 1 rows of model_calls_raw"):
        away.insert("model-calls", recorded(log, "model-calls"))
    away.close()


@hypothesis.settings(max_examples=25, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(st.lists(events(), min_size=1, max_size=40))
def test_every_event_type_can_be_inserted(store, ask, found):
    run = f"h{next(RUNS)}"
    for topic in {event.TOPIC for event in found}:
        records = [
            Recorded(f"e{n}", run, 1_700_000_000_000_000, None, event, topic, 0, n)
            for n, event in enumerate(found)
            if topic == event.TOPIC
        ]
        store.insert(topic, records)
        assert ask(f"SELECT count() FROM {tables()[topic].name} WHERE run = {{run:String}}", run=run) == [(len(records),)]


def test_numbers_that_json_has_not_read_back(store, settings, ask):
    nan, inf = float("nan"), float("inf")
    log = MemoryLog(run="nan")
    log.append(
        Scored(execution="e", scorer="s", scorer_version="1", evaluation_attempt=0, reward=nan, rewards={"a": inf, "b": nan})
    )
    Ingest(log, store, settings).run_to_end()
    assert ask("SELECT isNaN(reward), rewards['a'], isNaN(rewards['b']) FROM scores WHERE run = 'nan'") == [(True, inf, True)]


def test_dead_letters_keep_bytes_as_hex(store, settings, ask):
    log = MemoryLog(run="hex")
    log.append(DeadLetter(topic="scores", partition=0, offset=1, reader="r", reason="x", message_key=b"k", value=b"\x00\xfe"))
    Ingest(log, store, settings).run_to_end()
    assert ask("SELECT message_key, value FROM dead_letters WHERE run = 'hex'") == [("6b", "00fe")]


@pytest.mark.slow
def test_kill_9_during_inserts_and_the_counts_are_exact(tmp_path):
    """3,000 events in batches of 40; killed after 400, 1,000 and 1,700 of its inserts were acknowledged, then left to finish."""
    folder = tmp_path / "data"
    for kill_after in (400, 600, 700):
        child = start_child(folder)
        for line in child.stdout:
            if int(line) >= kill_after:
                break
        child.send_signal(signal.SIGKILL)
        child.wait(30)
        child.stdout.close()
    child = start_child(folder)
    output, _ = child.communicate(timeout=120)
    assert child.returncode == 0
    inserted, events, rows, places, tokens = json.loads(output.splitlines()[-1])
    assert inserted < 3000, "the last run began anew"
    assert (events, rows, places) == (3000, 3000, 3000)
    assert tokens == 3000 * 10


def start_child(folder):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.integration.analytics_child", str(folder)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def test_the_process_serves_ingests_and_stops_with_everything_inserted(kafka_log, tmp_path):
    """On a real log: events become rows while it runs; what comes just before the stop is inserted before it ends."""
    path = tmp_path / "data"
    code = f"""
from pathlib import Path
from consumers.analytics.process import run
from consumers.analytics.query import running
from consumers.analytics.schema import tables
from consumers.analytics.settings import AnalyticsSettings
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.settings import KafkaSettings
settings = AnalyticsSettings(path=Path({str(path)!r}), password="p", flush_seconds=0.1)
run(settings, KafkaLog(KafkaSettings({kafka_log.settings.bootstrap_servers!r}, partitions=2), {kafka_log.run!r}))
"""
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        kafka_log.append_all([call(n) for n in range(30)])
        await_rows(path, child, 30)
        kafka_log.append_all([call(n) for n in range(30, 50)])
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
        assert running(path) is None
    finally:
        child.kill()
    again = subprocess.run(
        [sys.executable, "-m", "tests.integration.analytics_child", "--count", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(again.stdout) == 50


def await_rows(path, child, count):
    """Until that many rows are there; the test's own time limit bounds it."""
    gate = threading.Event()
    while child.poll() is None:
        try:
            url = running(path)
            if url and httpx.post(url, content="SELECT count() FROM model_calls").text.strip() == str(count):
                return
        except httpx.TransportError:
            pass
        gate.wait(0.1)
    raise AssertionError(f"analytics ended with {child.returncode}")
