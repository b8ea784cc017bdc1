"""The streams worker as a process of its own, on a real broker: restarts, kills, bad records, a second worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from consumers.replay.derive import Sources
from gyre_engine.events import Event, Recorded, encode
from gyre_engine.events.calls import (
    Continuity,
    ExecutionClosed,
    Finish,
    ModelCall,
    NodeGrown,
    Quarantined,
    TreeClosed,
    WeightSpan,
)
from gyre_engine.events.executions import Dispatched, Ending, Finished, Scored
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.log.topics import admin, ensure_topics

PATIENCE = 60.0
WORKER = """
import asyncio, sys
from pathlib import Path
from gyre_engine.admission import AdmissionSettings
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.settings import KafkaSettings
from streams.process import derivations, end_process, run, serve
from streams.registry import ALL
from streams.settings import StreamsSettings

servers, partitions, name, instance, data, only, trap = sys.argv[1:]
kafka = KafkaSettings(servers, partitions=int(partitions))
chosen = tuple(only.split(",")) if only else ALL
settings = StreamsSettings(kafka, name, AdmissionSettings("verifier", "1"), chosen, instance, session_s=6.0, data=data)
if not trap:
    run(settings)
else:
    (trees,) = derivations(settings)
    observe = trees.observe

    def raise_once(raw):
        if raw.offset == 4 and not Path(trap).exists():
            Path(trap).touch()
            raise RuntimeError("the disk is on fire")
        return observe(raw)

    trees.observe = raise_once
    log = KafkaLog(kafka, name)
    asyncio.run(serve(settings, log, [trees], end_process))
    log.close()
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(kafka_settings: KafkaSettings, tmp_path: Path) -> Iterator[Start]:
    """Starts a worker on a run; whatever still lives is killed afterwards."""
    started: list[subprocess.Popen[str]] = []

    def begin(
        run: str, *, only: str = "", instance: str = "0", trap: Path | None = None, settings: KafkaSettings = kafka_settings
    ) -> subprocess.Popen[str]:
        told = [
            settings.bootstrap_servers,
            str(settings.partitions),
            run,
            instance,
            str(tmp_path / "faust"),
            only,
            str(trap or ""),
        ]
        started.append(subprocess.Popen([sys.executable, "-c", WORKER, *told], stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for worker in started:
        if worker.poll() is None:
            worker.kill()
        if worker.stderr is not None and not worker.stderr.closed:
            worker.communicate()


def stop(worker: subprocess.Popen[str]) -> None:
    worker.send_signal(signal.SIGTERM)
    _, errors = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 0, errors


def call(execution: str, number: int) -> ModelCall:
    """The n-th call of a chain: 3 tokens of input and 2 sampled ones each."""
    return ModelCall(
        execution=execution,
        call=f"{execution}/{number}",
        number=number,
        owner_epoch=1,
        parent=f"{execution}/{number - 1}" if number else None,
        prefix_len=5 * number,
        prefix_hash=b"",
        new_input_ids=np.arange(3, dtype=np.int32),
        output_ids=np.arange(2, dtype=np.int32),
        logprobs=np.zeros(2, np.float32),
        weight_spans=(WeightSpan(0, 0, "a"),),
        input_spans=(),
        finish=Finish.STOP,
        continuity=Continuity.BRIDGED,
        dialect="chat",
        temperature=1.0,
        top_p=1.0,
        max_tokens=8,
        tools=1,
        messages=2 + 2 * number,
        shape="agent",
    )


def closing(execution: str, calls: int) -> ExecutionClosed:
    return ExecutionClosed(execution=execution, owner_epoch=1, calls=calls, last_call=f"{execution}/{calls - 1}")


def ends(index: int, reward: float) -> list[Event]:
    """Everything of an execution but its calls."""
    execution = f"g.{index}.0"
    return [
        Dispatched(
            execution=execution,
            group="g",
            index=index,
            attempt=0,
            group_size=2,
            group_number=0,
            class_number=0,
            query="q",
            source="s",
            split="train",
            harness="h",
            weight_version=0,
        ),
        Finished(execution=execution, ending=Ending.COMPLETED, work_url="", work_hash="", did_work=True, served_us=1, wall_us=1),
        Scored(execution=execution, scorer="verifier", scorer_version="1", evaluation_attempt=0, reward=reward),
    ]


def until(log: KafkaLog, topic: str, enough: Callable[[list[Recorded]], bool]) -> list[Recorded]:
    """All records of a topic once there are enough."""
    follower = log.follow([topic])
    found: list[Recorded] = []
    limit = time.monotonic() + PATIENCE
    try:
        while not enough(found):
            assert time.monotonic() < limit, f"{topic} holds {[type(r.event).__name__ for r in found]}"
            found += follower.poll(0.5)
        return found + follower.poll(0.3)
    finally:
        follower.close()


def nodes(found: list[Recorded]) -> list[str]:
    return [record.event.node for record in found if isinstance(record.event, NodeGrown)]


def committed(log: KafkaLog, group: str, topic: str) -> dict[tuple[str, int], int]:
    follower = log.follow([topic], group=group)
    follower.close()
    return follower.positions()


def members_of(settings: KafkaSettings, group: str) -> int:
    """Workers that have joined a consumer group."""
    client = admin(settings)
    (answer,) = client.describe_consumer_groups([group]).values()
    return len(answer.result(PATIENCE).members)


TREES = "trajectory-trees"
GROUP = "streams-trajectory-trees"


def test_c36_a_clean_restart_handles_nothing_again(kafka_log: KafkaLog, start: Start) -> None:
    """C36: 5 events, stop, start, and the last one again under its own event id and under another."""
    kafka_log.append_all([call("g.0.0", number) for number in range(5)])
    worker = start(kafka_log.run, only=TREES)
    first = until(kafka_log, "trees", lambda found: len(nodes(found)) >= 5)
    stop(worker)
    assert committed(kafka_log, GROUP, "model-calls") == kafka_log.ends(["model-calls"])
    worker = start(kafka_log.run, only=TREES)
    again = max(kafka_log.read("model-calls"), key=lambda record: record.offset)
    kafka_log.append(again.event, id=again.id).result()
    kafka_log.append(again.event).result()
    kafka_log.append(closing("g.0.0", 5)).result()
    after = until(kafka_log, "trees", lambda found: any(isinstance(r.event, TreeClosed) for r in found))
    stop(worker)
    assert nodes(first) == nodes(after) == [f"g.0.0/{number}" for number in range(5)]
    assert committed(kafka_log, GROUP, "model-calls") == kafka_log.ends(["model-calls"])


def test_c36_a_second_worker_that_joins_midway_changes_no_tree(kafka_settings: KafkaSettings, start: Start) -> None:
    """C36: 4 partitions, a second worker midway."""
    four = replace(kafka_settings, partitions=4)
    ensure_topics(four, run := f"four-{os.getpid()}-{time.time_ns()}")
    log = KafkaLog(four, run)
    executions = [f"g.{index}.0" for index in range(8)]
    workers = [start(run, only=TREES, instance="0", settings=four)]
    log.append_all([call(execution, 0) for execution in executions])
    until(log, "trees", lambda found: len(nodes(found)) >= 8)
    workers.append(start(run, only=TREES, instance="1", settings=four))
    rounds, members = 1, 1
    while members < 2 or rounds % 10:
        log.append_all([call(execution, rounds) for execution in executions])
        rounds += 1
        members = max(members, members_of(four, f"{four.prefix}.{run}.{GROUP}"))
    log.append_all([closing(execution, rounds) for execution in executions])
    found = until(log, "trees", lambda found: len({r.id for r in found if isinstance(r.event, TreeClosed)}) >= 8)
    closed = {r.id: r.event for r in found if isinstance(r.event, TreeClosed)}
    assert sorted((tree.execution, len(tree.nodes)) for tree in closed.values()) == [(e, rounds) for e in executions]
    assert len(set(nodes(found))) == 8 * rounds and not [r for r in found if isinstance(r.event, Quarantined)]
    for worker in workers:
        stop(worker)
    log.close()


def test_c38_an_event_whose_handler_raised_is_handled_after_all(kafka_log: KafkaLog, start: Start, tmp_path: Path) -> None:
    """C38: 9 events, the handler raises once at the 5th."""
    kafka_log.append_all([call("g.0.0", number) for number in range(9)])
    place = kafka_log.ends(["model-calls"])
    worker = start(kafka_log.run, only=TREES, trap=tmp_path / "raised")
    _, errors = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 1 and "trajectory-trees cannot go on" in errors and "the disk is on fire" in errors
    assert max(committed(kafka_log, GROUP, "model-calls").values()) <= 4
    worker = start(kafka_log.run, only=TREES, trap=tmp_path / "raised")
    found = until(kafka_log, "trees", lambda found: len(set(nodes(found))) >= 9)
    stop(worker)
    assert sorted(set(nodes(found))) == [f"g.0.0/{number}" for number in range(9)]
    assert committed(kafka_log, GROUP, "model-calls") == place


def test_c39_bad_records_are_dead_letters_and_the_good_ones_go_on(kafka_log: KafkaLog, start: Start) -> None:
    """C39: a good event, `{"v":`, a null value, an unknown type, a good event."""
    unknown = encode(Recorded("i", kafka_log.run, 1, None, call("bad.0.0", 0))).replace(b"model-call", b"model-cell")
    kafka_log.append(call("g.0.0", 0)).result()
    for value in (b'{"v":', None, unknown):
        kafka_log.produce_raw("model-calls", b"bad.0.0", value).result()
    kafka_log.append(call("g.0.0", 1)).result()
    worker = start(kafka_log.run)
    letters = until(kafka_log, "dead-letters", lambda found: len(found) >= 3)
    found = until(kafka_log, "trees", lambda found: len(nodes(found)) >= 2)
    stop(worker)
    assert nodes(found) == ["g.0.0/0", "g.0.0/1"]
    assert [r.event.execution for r in found if isinstance(r.event, Quarantined)] == ["bad.0.0"]
    reasons = sorted(letter.event.reason for letter in letters)  # type: ignore[attr-defined]
    assert reasons == [
        "a null value",
        "not msgpack: unpack(b) received extra data.",
        "unknown event type 'model-cell'",
    ]
    assert len({(r.event.topic, r.event.partition, r.event.offset) for r in letters}) == 3  # type: ignore[attr-defined]
    assert committed(kafka_log, "streams", "model-calls") == kafka_log.ends(["model-calls"])


def test_a_killed_worker_loses_nothing_and_decides_nothing_twice(kafka_log: KafkaLog, start: Start) -> None:
    executions = ["g.0.0", "g.1.0"]
    worker = start(kafka_log.run)
    for number in range(150):
        kafka_log.append_all([call(execution, number) for execution in executions])
        if number in (40, 90):
            until(kafka_log, "trees", lambda found, number=number: len(set(nodes(found))) > number)
            worker.kill()
            worker.communicate()
            worker = start(kafka_log.run)
    kafka_log.append_all([*ends(0, 1.0), *ends(1, 0.0), *[closing(execution, 150) for execution in executions]])
    decided = until(kafka_log, "trajectories", lambda found: len(found) >= 1)
    found = until(kafka_log, "trees", lambda found: len(set(nodes(found))) >= 300)
    worker.kill()
    worker.communicate()
    worker = start(kafka_log.run)
    kafka_log.append(call("g.9.0", 0)).result()
    until(kafka_log, "trees", lambda found: "g.9.0/0" in nodes(found))
    assert until(kafka_log, "trajectories", lambda found: len(found) >= 1) == decided
    stop(worker)
    assert len({r.id for r in found if isinstance(r.event, NodeGrown)}) == 300
    (group,) = decided
    assert [(e.reward, e.advantage, e.trained_tokens) for e in group.event.executions] == [  # type: ignore[attr-defined]
        (1.0, 1.0, 300),
        (0.0, -1.0, 300),
    ]


def test_a_second_worker_with_admission_is_refused(kafka_log: KafkaLog, start: Start) -> None:
    first = start(kafka_log.run, instance="0")
    kafka_log.append(call("g.0.0", 0)).result()
    until(kafka_log, "trees", lambda found: len(nodes(found)) >= 1)
    second = start(kafka_log.run, instance="1")
    limit = time.monotonic() + PATIENCE
    while first.poll() is None and second.poll() is None:
        assert time.monotonic() < limit
        time.sleep(0.1)
    refused = first if first.poll() is not None else second
    _, errors = refused.communicate(timeout=PATIENCE)
    assert refused.returncode == 1 and "need all of them: stop the other worker" in errors


def test_the_replay_path_grows_the_trees_that_stand_on_the_log(kafka_log: KafkaLog) -> None:
    executions = [f"g.{index}.0" for index in range(6)]
    kafka_log.append_all([call(execution, number) for number in range(20) for execution in executions])
    kafka_log.produce_raw("model-calls", b"bad.0.0", b"{").result()
    kafka_log.append(closing("g.5.0", 20)).result()
    sources = Sources()
    assert sources.read_calls(kafka_log, {*executions, "bad.0.0"}, {"g.4.0"}) == 122
    assert {name: len(tree.calls) for name, tree in sources.forest.trees.items()} == dict.fromkeys(executions[:5], 20)
    assert sources.trees.keys() == {"g.5.0"}
    assert [len(sources.calls.of(execution)) for execution in executions] == [0, 0, 0, 0, 20, 0]
