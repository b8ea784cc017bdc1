"""The one test of the Log port: memory and Kafka keep the same promises."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gyre_engine.events import Recorded, decode
from gyre_engine.events.cells import SchedulerElected
from gyre_engine.events.executions import Scored, Started
from gyre_engine.events.log import DeadLetter
from gyre_engine.log.memory import MemoryLog, MemoryStore
from gyre_engine.log.micro_steps import LoggedMicroSteps
from gyre_engine.log.names import full_name, partition_of
from gyre_engine.log.port import Follower, Log, UnreadableEvent
from tests.unit.training.test_trainers_protocol import micro_step

PARTITIONS = 2
Put = Callable[[str, bytes, bytes | None], None]


@pytest.fixture(scope="session")
def kafka_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from gyre_engine.log.settings import KafkaSettings
    from infra.broker.broker import Broker, BrokerSettings

    folder: Path = tmp_path_factory.mktemp("broker")
    with Broker(BrokerSettings(folder)) as running:
        yield KafkaSettings(running.bootstrap_servers, partitions=PARTITIONS)


@pytest.fixture(params=["memory", "kafka"])
def open_log(request: pytest.FixtureRequest) -> Iterator[Callable[[], Log]]:
    """Opens handles on one fresh run."""
    opened: list[Log] = []
    if request.param == "memory":
        store = MemoryStore(PARTITIONS)
        make: Callable[[], Log] = lambda: MemoryLog(store)  # noqa: E731
    else:
        make = _kafka_maker(request.getfixturevalue("kafka_settings"))

    def open_handle() -> Log:
        opened.append(make())
        return opened[-1]

    yield open_handle
    for log in opened:
        log.close()


def _kafka_maker(settings: Any) -> Callable[[], Log]:
    from gyre_engine.log.kafka import KafkaLog
    from gyre_engine.log.topics import ensure_topics

    run = f"t{uuid.uuid4().hex[:8]}"
    ensure_topics(settings, run)
    return lambda: KafkaLog(settings, run)


@pytest.fixture
def log(open_log: Callable[[], Log]) -> Log:
    return open_log()


def put_raw(log: Any, topic: str, key: bytes, value: bytes | None) -> None:
    if isinstance(log, MemoryLog):
        log.store.put(full_name(log.prefix, log.run, topic), topic, key, value)
    else:
        log.produce_raw(topic, key, value).result(10)


def drain(follower: Follower, limit: int = 1000) -> list[Recorded]:
    """Everything up to the marked end; the test's time-out bounds it."""
    got: list[Recorded] = []
    while not follower.at_end():
        got += follower.poll(1.0, limit)
    return got


def started(count: int, first: int = 0) -> list[Started]:
    return [Started(execution=f"g{n}.0.0") for n in range(first, first + count)]


def names(records: list[Recorded]) -> list[str]:
    return sorted(record.event.execution for record in records)  # type: ignore[attr-defined]


def test_what_was_acknowledged_is_read_back_with_its_envelope_and_place(log: Log) -> None:
    place = log.append(Started(execution="g.0.0"), cause="c", id="the-id", at=1_700_000_000_000_001).result(10)
    (record,) = log.read("executions")
    assert record == Recorded(
        "the-id", log.run, 1_700_000_000_000_001, "c", Started(execution="g.0.0"), place.topic, place.partition, place.offset
    )


def test_a_key_stays_on_the_partition_that_murmur2_says(log: Log) -> None:
    places = log.append_all(started(12))
    expected = [partition_of(f"g{n}.0.0".encode(), PARTITIONS) for n in range(12)]
    assert [place.partition for place in places] == expected
    assert set(expected) == {0, 1}


def test_one_execution_keeps_its_order(log: Log) -> None:
    scores = [Scored(execution="g.0.0", scorer="s", scorer_version="1", evaluation_attempt=n, reward=0.0) for n in range(300)]
    log.append_all(scores)
    read = [record.event for record in log.read("scores")]
    assert read == scores


def test_reading_goes_partition_by_partition_and_ends_at_the_end_of_the_call(log: Log) -> None:
    log.append_all(started(20))
    reading = log.read("executions")
    log.append_all(started(5, first=20))
    read = list(reading)
    assert names(read) == names_of(20)
    assert [r.partition for r in read] == sorted(r.partition for r in read)


def names_of(count: int) -> list[str]:
    return sorted(f"g{n}.0.0" for n in range(count))


def test_reading_takes_a_start_and_an_end(log: Log) -> None:
    log.append_all([SchedulerElected(epoch=n, holder="s") for n in range(10)])
    read = log.read("commands", start={("commands", 0): 3}, end={("commands", 0): 7})
    assert [r.event.epoch for r in read] == [3, 4, 5, 6]  # type: ignore[attr-defined]


def test_micro_steps_are_found_a_step_at_a_time_behind_reads_that_broke_off(log: Log) -> None:
    """A step's are asked for long after those of the step before, and again, and once from behind what was read."""
    works = {step: [micro_step(step, k) for k in range(3)] for step in (2, 1, 3)}
    log.append_all([event for events in works.values() for event in events])
    reader = LoggedMicroSteps(log)
    for step in (1, 2, 1, 3):
        asked = [event.micro_step for event in works[step]]
        assert {name: event.step for name, event in reader.of(asked).items()} == dict.fromkeys(asked, step)
    assert reader.of(["another"]) == {}


def test_raw_reading_gives_every_record_as_it_stands_each_partition_in_its_order(log: Log) -> None:
    log.append_all(started(20))
    put_raw(log, "executions", b"k", b"no event")
    put_raw(log, "executions", b"k", None)
    reading = log.read_raw("executions")
    put_raw(log, "executions", b"k", b"too late")
    read = list(reading)
    assert len(read) == 22
    for partition in range(PARTITIONS):
        own = [raw for raw in read if raw.partition == partition]
        assert [raw.offset for raw in own] == list(range(len(own)))
    assert [raw.value for raw in read if raw.key == b"k"] == [b"no event", None]
    events = {raw.key: decode(raw.value) for raw in read if raw.key != b"k"}
    assert {key: record.event for key, record in events.items()} == {
        f"g{n}.0.0".encode(): Started(execution=f"g{n}.0.0") for n in range(20)
    }
    assert log.dead_lettered == 0


def test_raw_reading_to_an_end_reads_only_the_partitions_that_it_names(log: Log) -> None:
    log.append_all(started(20))
    read = log.read_raw("executions", start={("executions", 1): 2}, end={("executions", 1): 5})
    assert [(raw.partition, raw.offset) for raw in read] == [(1, 2), (1, 3), (1, 4)]
    assert list(log.read_raw("executions", start={("executions", 1): 5}, end={("executions", 1): 5})) == []


def test_an_empty_topic_reads_as_nothing_and_ends_at_zero(log: Log) -> None:
    assert list(log.read("trees")) == []
    assert log.ends(["trees", "training"]) == {("trees", 0): 0, ("trees", 1): 0, ("training", 0): 0}


def test_another_handle_follows_what_this_one_appends(open_log: Callable[[], Log]) -> None:
    writer, reader = open_log(), open_log()
    follower = reader.follow(["executions", "commands"])
    writer.append_all([*started(3), SchedulerElected(epoch=0, holder="s")])
    follower.mark_end()
    got = drain(follower)
    assert sorted(r.event.TYPE for r in got) == ["scheduler-elected", "started", "started", "started"]
    assert follower.lag() == 0
    follower.close()


def test_a_poll_returns_no_more_than_its_limit_and_loses_nothing(log: Log) -> None:
    log.append_all(started(50))
    follower = log.follow(["executions"])
    sizes, got = [], []
    while not follower.at_end():
        got.append(follower.poll(1.0, limit=7))
        sizes.append(len(got[-1]))
    assert max(sizes) <= 7
    assert names([record for batch in got for record in batch]) == names_of(50)
    follower.close()


def test_following_from_the_end_sees_only_what_comes(log: Log) -> None:
    log.append_all(started(4))
    follower = log.follow(["executions"], from_end=True)
    assert follower.at_end() and follower.lag() == 0
    log.append(Started(execution="new.0.0")).result(10)
    assert follower.lag() == 1
    follower.mark_end()
    assert names(drain(follower)) == ["new.0.0"]
    follower.close()


def test_a_group_goes_on_behind_what_it_committed_and_begins_at_the_beginning(open_log: Callable[[], Log]) -> None:
    log = open_log()
    log.append_all(started(6))
    first = log.follow(["executions"], group="g")
    assert names(drain(first)) == names_of(6)
    first.commit()
    first.close()
    log.append_all(started(2, first=6))
    second = open_log().follow(["executions"], group="g")
    assert second.lag() == 2
    assert names(drain(second)) == ["g6.0.0", "g7.0.0"]
    second.close()
    other = log.follow(["executions"], group="h")
    assert len(drain(other)) == 8
    other.close()


def test_what_was_not_committed_comes_again(log: Log) -> None:
    log.append_all(started(5))
    first = log.follow(["executions"], group="g")
    assert len(drain(first)) == 5
    first.close()
    second = log.follow(["executions"], group="g")
    assert len(drain(second)) == 5
    second.close()


def test_positions_given_to_commit_are_the_ones_stored(log: Log) -> None:
    log.append_all([SchedulerElected(epoch=n, holder="s") for n in range(5)])
    first = log.follow(["commands"], group="g")
    drain(first)
    first.commit({("commands", 0): 2})
    first.close()
    second = log.follow(["commands"], group="g")
    assert [r.event.epoch for r in drain(second)] == [2, 3, 4]  # type: ignore[attr-defined]
    second.close()


def test_committing_without_a_group_is_refused(log: Log) -> None:
    follower = log.follow(["executions"])
    with pytest.raises(ValueError, match="no group"):
        follower.commit()
    follower.close()


def test_bad_records_become_dead_letters_and_the_good_ones_pass(log: Log) -> None:
    """C39: good, cut-off JSON, null, unknown type, good."""
    import msgpack

    unknown = msgpack.packb({"id": "x", "type": "from-the-future", "v": 1, "run": log.run, "at": 1, "cause": None, "body": {}})
    log.append(Started(execution="k")).result(10)
    for value in (b'{"v":', None, unknown):
        put_raw(log, "executions", b"k", value)
    log.append(Started(execution="k")).result(10)
    heard: list[DeadLetter] = []
    follower = log.follow(["executions"], group="g", on_dead_letter=heard.append)
    assert names(drain(follower)) == ["k", "k"]
    follower.commit()
    assert follower.lag() == 0 and follower.dead_lettered == 3 and log.dead_lettered == 3
    letters = [r.event for r in log.read("dead-letters")]
    assert letters == heard
    partition = partition_of(b"k", PARTITIONS)
    assert [(d.topic, d.partition, d.offset, d.reader) for d in heard] == [
        ("executions", partition, offset, "g") for offset in (1, 2, 3)
    ]
    assert [d.message_key for d in heard] == [b"k"] * 3
    assert "not msgpack" in heard[0].reason and "null" in heard[1].reason and "from-the-future" in heard[2].reason
    assert [d.value for d in heard] == [b'{"v":', b"", unknown]
    follower.close()


def test_a_long_bad_value_is_cut_in_its_dead_letter(log: Log) -> None:
    put_raw(log, "executions", b"k", b"\xc1" * 100_000)
    assert list(log.read("executions")) == []
    (letter,) = (r.event for r in log.read("dead-letters"))
    assert isinstance(letter, DeadLetter) and letter.value == b"\xc1" * 65536


def test_an_unreadable_micro_step_stops_who_would_wait_for_it(log: Log) -> None:
    """Passed over, it is work that the ledger assigns and nobody can compute."""
    put_raw(log, "micro-steps", b"k", b"\xc1")
    with pytest.raises(UnreadableEvent, match="micro-steps, partition 0, offset 0"):
        list(log.read("micro-steps"))


@pytest.mark.parametrize("value", [b'{"v":', None], ids=["bytes", "null"])
def test_an_unreadable_event_on_the_ledger_stops_its_readers(log: Log, value: bytes | None) -> None:
    log.append(SchedulerElected(epoch=0, holder="s")).result(10)
    put_raw(log, "commands", b"k", value)
    log.append(SchedulerElected(epoch=1, holder="s")).result(10)
    follower = log.follow(["commands"])
    got: list[Recorded] = []
    with pytest.raises(UnreadableEvent, match="commands, partition 0, offset 1"):
        while True:
            got += follower.poll(1.0)
    assert [r.event.epoch for r in got] == [0]  # type: ignore[attr-defined]
    assert follower.positions() == {("commands", 0): 1}
    with pytest.raises(UnreadableEvent):
        list(log.read("commands"))
    follower.close()


def test_a_tombstone_on_runs_is_no_bad_event(log: Log) -> None:
    put_raw(log, "runs", f"{log.run}/run-started".encode(), None)
    assert [r for r in log.read("runs") if r.run == log.run] == []
    assert log.dead_lettered == 0


def test_a_closed_log_takes_nothing(log: Log) -> None:
    log.close()
    with pytest.raises(RuntimeError, match="closed"):
        log.append(Started(execution="k"))
