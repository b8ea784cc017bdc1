"""The log and the streams on it: bytes a token, events a second live and in replay, the time to come back.

Real ModelCall events on a real broker of its own. The last line is one JSON object:

bytes_per_unique_token        bytes that Kafka keeps on disk for one execution (200 calls, 100,000 unique tokens) / its tokens
faust_events_per_s            model-calls through the live trajectory-trees worker: median of ten windows
faust_passthrough_events_per_s  the same records through a Faust worker that only sends them on, acknowledged in the same way
replay_events_per_s           log -> trees on the replay path, of executions that do not train: median of the repeats
replay_whole_events_per_s     the same of executions that train: their calls are kept with all tokens
consume_events_per_s          a bare consume() loop over the same records: median of the repeats
faust_restart_s               kill -9 after all events, then from the start of the process to its next output: median of the repeats
faust_latency_ms              from an append to the node on `trees`, one event at a time: [median, 95th percentile]
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from consumers.replay.derive import Sources
from gyre_engine.events.calls import Continuity, Finish, InputSpan, ModelCall, NodeGrown, Provenance, WeightSpan
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.names import full_name
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.log.topics import ensure_topics
from infra.broker.broker import Broker, BrokerSettings

CALLS = 200
EXECUTIONS = int(os.environ.get("EXECUTIONS", "500"))
REPEATS = 3
WINDOWS = 10
LIMIT_S = 240.0
GROUP = "streams-trajectory-trees"

WORKER = """
import sys
from gyre_engine.admission import AdmissionSettings
from gyre_engine.log.settings import KafkaSettings
from streams.process import run
from streams.settings import StreamsSettings
servers, name, data = sys.argv[1:]
run(StreamsSettings(KafkaSettings(servers), name, AdmissionSettings("verifier", "1"), ("trajectory-trees",), data=data))
"""

PASS_THROUGH = """
import asyncio, sys
from collections import deque
import faust
from gyre_engine.admission import AdmissionSettings
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.names import full_name
from gyre_engine.log.settings import KafkaSettings
from streams.app import configuration
from streams.settings import StreamsSettings

servers, name, data = sys.argv[1:]
settings = StreamsSettings(KafkaSettings(servers), name, AdmissionSettings("", ""), data=data)
log = KafkaLog(settings.kafka, settings.run)
app = faust.App(settings.app_id + "-pass", **{**configuration(settings), "consumer_group_instance_id": "pass"})
source = app.topic(full_name("gyre", settings.run, "model-calls"), key_type=bytes, value_type=bytes)

@app.agent(source)
async def send_on(stream):
    pending = deque()
    async for event in stream.noack().events():
        pending.append((event, log.produce_raw("tool-events", event.message.key, event.message.value)))
        while pending and pending[0][1].done():
            pending.popleft()[0].ack()

async def main():
    app.finalize()
    await app.start()
    await asyncio.Event().wait()

asyncio.run(main())
"""


def model_call(execution: str, number: int, new: int, out: int, random: np.random.Generator) -> ModelCall:
    """The n-th call of a chain with ids and log-probabilities at random."""
    return ModelCall(
        execution=execution,
        call=f"{execution}-{number:08x}",
        number=number,
        owner_epoch=1,
        parent=f"{execution}-{number - 1:08x}" if number else None,
        prefix_len=number * (new + out),
        prefix_hash=random.bytes(16),
        new_input_ids=random.integers(0, 150_000, new, dtype=np.int32),
        output_ids=random.integers(0, 150_000, out, dtype=np.int32),
        logprobs=-random.random(out, dtype=np.float32),
        weight_spans=(WeightSpan(0, 3, "cell-1"),),
        input_spans=(InputSpan(0, Provenance.TOOL),),
        finish=Finish.TOOL_CALLS,
        continuity=Continuity.BRIDGED if number else Continuity.ROOT,
        dialect="messages",
        temperature=1.0,
        top_p=1.0,
        max_tokens=4096,
        tools=12,
        messages=2 + 2 * number,
        shape="5f2a77c1",
        requested_at=1_700_000_000_000_000,
        first_token_at=1_700_000_000_100_000,
        finished_at=1_700_000_002_000_000,
    )


def bytes_per_token(settings: KafkaSettings, folder: Path) -> float:
    """What one execution of 200 calls and 100,000 tokens takes on disk."""
    ensure_topics(settings, "bytes")
    log = KafkaLog(settings, "bytes")
    random = np.random.default_rng(0)
    log.append_all([model_call("g0.0.0", number, 300, 200, random) for number in range(CALLS)])
    log.close()
    files = [path for path in folder.rglob("*.log") if path.parent.name.startswith("gyre.bytes.model-calls-")]
    return sum(path.stat().st_size for path in files) / (CALLS * 500)


def fill(log: KafkaLog) -> int:
    """500 executions of 200 calls side by side, as live runs write them; how many events."""
    random = np.random.default_rng(1)
    for number in range(CALLS):
        log.append_all([model_call(f"g{e}.0.0", number, 60, 40, random) for e in range(EXECUTIONS)])
    return CALLS * EXECUTIONS


@contextmanager
def working(code: str, log: KafkaLog) -> Iterator[subprocess.Popen[bytes]]:
    """A worker on the log's run, with a data folder of its own; it is ended afterwards where it still lives."""
    with tempfile.TemporaryDirectory() as data:
        worker = subprocess.Popen([sys.executable, "-c", code, log.settings.bootstrap_servers, log.run, data])
        try:
            yield worker
        finally:
            worker.terminate()
            worker.wait(60)


def windows(log: KafkaLog, topic: str, count: int) -> list[float]:
    """Events a second in each of the windows, by the clock of a follower of `topic`."""
    marks = {count * part // WINDOWS for part in range(WINDOWS + 1)} | {1}
    times: dict[int, float] = {}
    for seen in _counted(log, topic, count):
        if seen in marks:
            times[seen] = time.monotonic()
    at = sorted(times.items())
    return [(b[0] - a[0]) / (b[1] - a[1]) for a, b in itertools.pairwise(at)]


def _counted(log: KafkaLog, topic: str, count: int) -> Iterator[int]:
    told = {"bootstrap.servers": log.settings.bootstrap_servers, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**told, "auto.offset.reset": "earliest"})
    name = full_name(log.settings.prefix, log.run, topic)
    consumer.assign([TopicPartition(name, number, 0) for number in range(log.settings.partitions)])
    limit = time.monotonic() + LIMIT_S
    seen = 0
    while seen < count:
        if time.monotonic() > limit:
            raise TimeoutError(f"{topic} of {log.run} holds {seen} of {count} events after {LIMIT_S:.0f} s")
        for message in consumer.consume(1000, 0.2):
            if message.error() is None:
                seen += 1
                yield seen
    consumer.close()


def live(log: KafkaLog, code: str, topic: str, count: int) -> float:
    """Median events a second of a worker over everything that stands on the log."""
    with working(code, log):
        return statistics.median(windows(log, topic, count))


def restarts(log: KafkaLog) -> tuple[list[float], list[float]]:
    """Seconds from the start after a kill to the next output, and latencies in milliseconds of the last worker alive."""
    random = np.random.default_rng(2)
    follower = log.follow(["trees"], from_end=True)
    took: list[float] = []
    for repeat in range(REPEATS):
        since = time.monotonic()
        with working(WORKER, log) as worker:
            _round_trip(log, follower, model_call(f"r{repeat}.0.0", 0, 60, 40, random))
            took.append(time.monotonic() - since)
            _until_committed(log)
            if repeat == REPEATS - 1:
                latencies = [1000 * _round_trip(log, follower, model_call(f"l{n}.0.0", 0, 60, 40, random)) for n in range(200)]
            worker.kill()
    follower.close()
    return took, latencies


def _until_committed(log: KafkaLog) -> None:
    """Wait until the worker's group holds the positions of all calls: the next one begins there."""
    until = time.monotonic() + LIMIT_S
    while (left := _uncommitted(log)) > 0:
        if time.monotonic() > until:
            raise TimeoutError(f"the group {GROUP} has {left} events uncommitted after {LIMIT_S:.0f} s")
        time.sleep(0.05)


def _uncommitted(log: KafkaLog) -> int:
    at = log.follow(["model-calls"], group=GROUP)
    try:
        return at.lag()
    finally:
        at.close()


def _round_trip(log: KafkaLog, follower: object, call: ModelCall) -> float:
    """Seconds from the append of a call to its node."""
    since = time.monotonic()
    log.append(call)
    while time.monotonic() - since < LIMIT_S:
        for record in follower.poll(0.5):  # type: ignore[attr-defined]
            if isinstance(record.event, NodeGrown) and record.event.node == call.call:
                return time.monotonic() - since
    raise TimeoutError(f"no node for {call.call} within {LIMIT_S:.0f} s")


def consumed(log: KafkaLog, count: int) -> float:
    since = time.monotonic()
    for _ in _counted(log, "model-calls", count):
        pass
    return count / (time.monotonic() - since)


def replayed(log: KafkaLog, count: int, whole: bool = False) -> float:
    """Events a second of a replay that reads the calls of every execution on the log; `whole`: with their tokens."""
    executions = {raw.key.decode() for raw in log.read_raw("model-calls") if raw.key}
    sources = Sources()
    since = time.monotonic()
    assert sources.read_calls(log, executions, executions if whole else set()) >= count
    took = time.monotonic() - since
    assert sum(len(tree.calls) for tree in sources.forest.trees.values()) >= count
    return count / took


def say(name: str, value: object) -> None:
    print(f"{name}: {value}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Broker(BrokerSettings(Path(folder))) as broker:
        settings = KafkaSettings(broker.bootstrap_servers)
        result: dict[str, object] = {"bytes_per_unique_token": round(bytes_per_token(settings, Path(folder)), 2)}
        ensure_topics(settings, "bench")
        log = KafkaLog(settings, "bench")
        since = time.monotonic()
        count = fill(log)
        say("events appended", f"{count} in {time.monotonic() - since:.1f} s")
        result["consume_events_per_s"] = round(statistics.median(consumed(log, count) for _ in range(REPEATS)))
        for name, whole in (("replay_events_per_s", False), ("replay_whole_events_per_s", True)):
            result[name] = round(statistics.median(replayed(log, count, whole) for _ in range(REPEATS)))
        say("reading", result)
        result["faust_passthrough_events_per_s"] = round(live(log, PASS_THROUGH, "tool-events", count))
        result["faust_events_per_s"] = round(live(log, WORKER, "trees", count))
        say("live", result)
        took, latencies = restarts(log)
        say("restarts", took)
        result["faust_restart_s"] = round(statistics.median(took), 2)
        result["faust_latency_ms"] = [round(float(np.percentile(latencies, q)), 1) for q in (50, 95)]
        log.close()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
