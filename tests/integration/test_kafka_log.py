"""The log on a real Kafka broker: what only a broker can show."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as Client
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import ConfigResource

from gyre_engine.events import Recorded, encode, new_id
from gyre_engine.events.calls import ModelCall
from gyre_engine.events.cells import SchedulerElected
from gyre_engine.events.executions import Scored, Started, ToolCalled
from gyre_engine.events.log import RunEnded, RunStarted
from gyre_engine.log.brokers import Severity, TooFewReplicas, check_brokers, require_safe
from gyre_engine.log.consumer import Consumer, HandlingFailed, Reading
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.port import EventTooLarge, LogUnavailable, UnknownTopic
from gyre_engine.log.runs import NoSuchRun, end_run, find_run, forget_run, list_runs, start_run
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.log.topics import TopicMismatch, admin, delete_run, ensure_topics
from infra.broker.broker import Broker, BrokerSettings

Open = Callable[..., KafkaLog]


def transaction(log: KafkaLog, numbers: range, *, commit: bool) -> None:
    """Put SchedulerElected events on `commands` in one transaction, and commit or abort it."""
    producer = Producer(
        {"bootstrap.servers": log.settings.bootstrap_servers, "transactional.id": new_id(), "partitioner": "murmur2_random"}
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    for n in numbers:
        value = encode(Recorded(new_id(), log.run, 0, None, SchedulerElected(epoch=n, holder="s")))
        producer.produce(log.places.name("commands"), value, log.run.encode())
    producer.flush(20)
    producer.commit_transaction(20) if commit else producer.abort_transaction(20)


def ends_at(log: KafkaLog, end: int) -> None:
    """Wait until `commands` ends there: the markers of a transaction are written a little after its end is answered."""
    limit = time.monotonic() + 20
    while log.ends(["commands"]) != {("commands", 0): end}:
        assert time.monotonic() < limit, log.ends(["commands"])
        time.sleep(0.01)


def numbers(records: list[Recorded]) -> list[int]:
    return [r.event.epoch for r in records if isinstance(r.event, SchedulerElected)]


def test_readers_get_past_aborted_transactions(kafka_log: KafkaLog) -> None:
    """C42: 10 aborted, 1 committed, then 10 aborted at the partition's end."""
    transaction(kafka_log, range(10), commit=False)
    transaction(kafka_log, range(10, 11), commit=True)
    transaction(kafka_log, range(20, 30), commit=False)
    # 10 + abort marker + 1 + commit marker + 10 + abort marker
    ends_at(kafka_log, 24)
    follower = kafka_log.follow(["commands"], group="g")
    got: list[Recorded] = []
    while not follower.at_end():
        got += follower.poll(1.0)
    assert numbers(got) == [10] and follower.lag() == 0
    transaction(kafka_log, range(30, 32), commit=False)
    ends_at(kafka_log, 27)
    follower.mark_end()
    while not follower.at_end():
        assert follower.poll(1.0) == []
    follower.commit()
    follower.close()
    again = kafka_log.follow(["commands"], group="g")
    assert again.positions() == {("commands", 0): 27} and again.lag() == 0
    again.close()
    assert numbers(list(kafka_log.read("commands"))) == [10]


@pytest.mark.parametrize(("start", "end", "expected"), [(0, 5, []), (3, 12, [10]), (12, 20, []), (5, 24, [10]), (0, 99, [10])])
def test_a_replay_over_a_range_with_holes_ends(open_log: Open, start: int, end: int, expected: list[int]) -> None:
    """C42: any range of offsets, whether it begins or ends in a hole or beyond the end."""
    log = open_log()
    transaction(log, range(10), commit=False)
    transaction(log, range(10, 11), commit=True)
    transaction(log, range(20, 30), commit=False)
    ends_at(log, 24)
    read = log.read("commands", start={("commands", 0): start}, end={("commands", 0): end})
    assert numbers(list(read)) == expected


def test_type_version_and_time_stand_on_the_record(kafka_log: KafkaLog) -> None:
    kafka_log.append(SchedulerElected(epoch=0, holder="s"), at=1_700_000_000_123_456).result(10)
    client = Client({"bootstrap.servers": kafka_log.settings.bootstrap_servers, "group.id": "raw"})
    client.assign([TopicPartition(kafka_log.places.name("commands"), 0, 0)])
    (message,) = client.consume(1, 10)
    assert dict(message.headers() or []) == {"type": b"scheduler-elected", "version": b"1"}
    assert message.timestamp()[1] == 1_700_000_000_123  # milliseconds: Kafka reads microseconds as the year 55840
    client.close()


def test_whoever_gives_up_an_append_breaks_nobody_else_s(kafka_log: KafkaLog) -> None:
    """Its acknowledgement comes all the same: the thread that hears it goes on."""
    given_up = [kafka_log.append(SchedulerElected(epoch=n, holder="s")) for n in range(50)]
    assert any(append.cancel() for append in given_up)
    [place] = kafka_log.append_all([SchedulerElected(epoch=50, holder="s")], timeout=20)
    assert place.offset == 50 and numbers(list(kafka_log.read("commands"))) == list(range(51))


def test_large_events_pass_and_too_large_ones_are_named(kafka_log: KafkaLog) -> None:
    import numpy as np

    ids = np.arange(1_500_000, dtype=np.int32)
    call = ModelCall(
        execution="g.0.0", call="c", number=0, owner_epoch=1, parent=None, prefix_len=0, prefix_hash=b"",
        new_input_ids=ids, output_ids=ids[:5], logprobs=np.zeros(5, np.float32), weight_spans=(), input_spans=(),
        finish="stop", continuity="root", dialect="chat", temperature=1.0, top_p=1.0, max_tokens=1, tools=0, messages=1,
        shape="s",
    )  # fmt: skip
    fine = replace(call, finish=_finish("stop"), continuity=_continuity("root"))
    kafka_log.append(fine).result(20)
    (read,) = kafka_log.read("model-calls")
    assert isinstance(read.event, ModelCall) and np.array_equal(read.event.new_input_ids, ids)
    with pytest.raises(EventTooLarge, match="a model-call event of 24,000,"):
        kafka_log.append(replace(fine, new_input_ids=np.zeros(6_000_000, np.int32)))


def _finish(value: str) -> Any:
    from gyre_engine.events.calls import Finish

    return Finish(value)


def _continuity(value: str) -> Any:
    from gyre_engine.events.calls import Continuity

    return Continuity(value)


def test_a_run_is_a_plain_word(kafka_settings: KafkaSettings) -> None:
    for name in ("a.b", "", "a/b"):
        with pytest.raises(ValueError, match="run .*use letters, digits"):
            ensure_topics(kafka_settings, name)


def test_a_run_without_topics_is_named(broker: Broker) -> None:
    log = KafkaLog(KafkaSettings(broker.bootstrap_servers), "nowhere")
    with pytest.raises(UnknownTopic, match="has no topic gyre.nowhere.executions"):
        log.append(Started(execution="k")).result(20)
    with pytest.raises(UnknownTopic, match="no topic gyre.nowhere.trees"):
        log.follow(["trees"])
    log.close()


class Collector(Consumer):
    """Collects scores; fails once at the number it is told."""

    name = "collector"
    topics = ("commands",)

    def __init__(self, log: KafkaLog, fail_at: int, results: list[int]) -> None:
        super().__init__(log, Reading(poll_seconds=0.05, commit_seconds=0.0))
        self.fail_at = fail_at
        self.results = results

    def handle(self, record: Recorded) -> None:
        assert isinstance(record.event, SchedulerElected)
        if record.event.epoch == self.fail_at:
            raise ValueError("not today")
        self.results.append(record.event.epoch)
        if len(self.results) == 9:
            self.stop()


def test_an_event_whose_handling_raised_is_handled_after_the_restart(kafka_log: KafkaLog) -> None:
    """C38: 9 events, the handler raises once at the 5th; nothing is committed past it before it succeeded."""
    kafka_log.append_all([SchedulerElected(epoch=n, holder="s") for n in range(1, 10)])
    results: list[int] = []
    with pytest.raises(
        HandlingFailed, match=r"collector could not handle scheduler-elected \(commands, partition 0, offset 4, id .*not today"
    ):
        Collector(kafka_log, 5, results).run()
    assert results == [1, 2, 3, 4]
    at = kafka_log.follow(["commands"], group="collector")
    assert at.positions() == {("commands", 0): 4}
    at.close()
    consumer = Collector(kafka_log, 0, results)
    consumer.run()
    assert results == list(range(1, 10))
    health = consumer.health()
    assert (health.handled, health.lag, health.running, health.dead_lettered) == (5, 0, False, 0)


def test_topics_are_declared_as_the_rules_say(kafka_log: KafkaLog, kafka_settings: KafkaSettings) -> None:
    client = admin(kafka_settings)
    kept = _configs(client, kafka_log.places.name("executions"))
    assert (kept["cleanup.policy"], kept["retention.ms"], kept["retention.bytes"]) == ("delete", "-1", "-1")
    assert kept["max.message.bytes"] == str(16 * 1024 * 1024)
    assert _configs(client, "gyre.runs")["cleanup.policy"] == "compact"
    known = client.list_topics(timeout=10).topics
    assert [len(known[kafka_log.places.name(t)].partitions) for t in ("executions", "trees", "training", "commands")] == [
        2,
        2,
        1,
        1,
    ]
    with pytest.raises(TopicMismatch, match="2 partitions, the configuration says 3"):
        ensure_topics(replace(kafka_settings, partitions=3), kafka_log.run)
    assert ensure_topics(kafka_settings, kafka_log.run)["scores"] == 2


def _configs(client: Any, topic: str) -> dict[str, str]:
    (answer,) = client.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in answer.result(10).items()}


def test_one_broker_is_refused_where_three_replicas_are_asked_for(kafka_settings: KafkaSettings) -> None:
    three = replace(kafka_settings, replication=3)
    with pytest.raises(TooFewReplicas, match=r"1 broker\(s\) cannot hold 3 replicas"):
        require_safe(three)
    found = {finding.what: finding.severity for finding in check_brokers(kafka_settings)}
    assert found == {
        "replication": Severity.REFUSE,
        "min.insync.replicas": Severity.WARN,
        "offsets.topic.replication.factor": Severity.WARN,
    }


def test_runs_are_listed_found_ended_and_forgotten(open_log: Open, kafka_settings: KafkaSettings) -> None:
    one, two = open_log(), open_log("second")
    for log in (one, two):
        start_run(log, _started(log.run))
    assert find_run(one).run == "second" and find_run(one, one.run).ended is None
    end_run(one, RunEnded(run=one.run, outcome="completed", reason="", steps=3))
    info = find_run(two, one.run)
    assert info.ended is not None and info.ended.steps == 3 and info.started.config == "{}"
    assert [i.run for i in list_runs(one) if i.run in (one.run, "second")] == [one.run, "second"]
    assert len(delete_run(kafka_settings, one.run)) == 12
    forget_run(two, info)
    with pytest.raises(NoSuchRun, match="newest: .*second"):
        find_run(two, "none-of-this-name")


def _started(run: str) -> RunStarted:
    return RunStarted(
        run=run, config="{}", config_hash="", versions={}, partitions={}, fingerprint={}, initial_weights="",
        initial_weights_hash="", topic_prefix="gyre",
    )  # fmt: skip


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that the test may kill."""
    running = Broker(BrokerSettings(tmp_path / "kafka")).start()
    yield running
    running.stop()


def test_a_killed_broker_loses_nothing_that_was_acknowledged(own_broker: Broker, tmp_path: Path) -> None:
    settings = KafkaSettings(own_broker.bootstrap_servers, partitions=2, delivery_timeout_s=60)
    ensure_topics(settings, "r")
    log = KafkaLog(settings, "r")
    enough, stop, acknowledged = threading.Event(), threading.Event(), []

    def append() -> None:
        n = 0
        while not stop.is_set():
            futures = [
                log.append(ToolCalled(execution=f"g{i}", call="", tool_call=str(n + i), name="", arguments="")) for i in range(50)
            ]
            acknowledged.extend((str(n + i), future.result(60)) for i, future in enumerate(futures))
            n += 50
            if n >= 500:
                enough.set()

    writer = threading.Thread(target=append)
    writer.start()
    assert enough.wait(30)
    own_broker.kill()
    before = len(acknowledged)
    again = Broker(BrokerSettings(tmp_path / "kafka", port=own_broker.port)).start()
    limit = time.monotonic() + 60
    while len(acknowledged) <= before and time.monotonic() < limit:
        time.sleep(0.05)
    stop.set()
    writer.join(60)
    read = [(r.event.tool_call, r.partition, r.offset) for r in log.read("tool-events") if isinstance(r.event, ToolCalled)]
    assert len(acknowledged) > before
    assert {(name, place.partition, place.offset) for name, place in acknowledged} <= set(read)
    assert len({name for name, *_ in read}) == len(read)  # the idempotent producer wrote nothing twice
    log.close()
    again.stop()


def test_a_log_that_is_away_says_so_within_the_limit_and_once(
    own_broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = KafkaSettings(own_broker.bootstrap_servers, delivery_timeout_s=3.0, request_timeout_s=3.0)
    ensure_topics(settings, "r")
    log = KafkaLog(settings, "r")
    follower = log.follow(["executions"])
    log.append(Started(execution="k")).result(10)
    own_broker.kill()
    caplog.set_level(logging.INFO)
    begun = time.monotonic()
    with pytest.raises(
        LogUnavailable, match=f"{settings.bootstrap_servers} did not acknowledge an event for executions within 3 s"
    ):
        log.append(Started(execution="k")).result(10)
    assert time.monotonic() - begun < 5.0
    with pytest.raises(LogUnavailable, match="did not say where topics end"):
        log.ends(["executions"])
    follower.poll(2.0)
    lines = [r.getMessage() for r in caplog.records if r.name.startswith("gyre")]
    assert lines == [f"the log at {settings.bootstrap_servers} does not answer; trying again until it does"]
    again = Broker(BrokerSettings(tmp_path / "kafka", port=own_broker.port)).start()
    assert log.append(Started(execution="back")).result(20).topic == "executions"
    got: list[Recorded] = []
    while not got or got[-1].event != Started(execution="back"):
        got += follower.poll(5.0)
    lines = [r.getMessage() for r in caplog.records if r.name.startswith("gyre")]
    assert lines[1:] == [f"the log at {settings.bootstrap_servers} answers again"]
    assert capfd.readouterr().err == ""
    follower.close()
    log.close()
    again.stop()


def test_a_log_that_never_was_there_is_named(tmp_path: Path) -> None:
    settings = KafkaSettings("127.0.0.1:1", delivery_timeout_s=1.0, request_timeout_s=1.0)
    with pytest.raises(LogUnavailable, match="no Kafka answers at 127.0.0.1:1 within 1 s"):
        ensure_topics(settings, "r")
    log = KafkaLog(settings, "r")
    with pytest.raises(LogUnavailable, match="127.0.0.1:1 did not acknowledge"):
        log.append_all([Scored(execution="k", scorer="", scorer_version="", evaluation_attempt=0, reward=0.0)], timeout=10)
    log.close()
