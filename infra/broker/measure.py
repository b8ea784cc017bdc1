"""`python -m infra.broker.measure [--bootstrap HOST:PORT]`: what the log costs; the last line is one JSON object.

Latencies are from `append` to the acknowledged future, in milliseconds; rates in events a second. Without `--bootstrap` a broker of
its own is started in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from gyre_engine.events import new_id
from gyre_engine.events.executions import ToolReturned
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.port import Place
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.log.topics import delete_run, ensure_topics
from infra.broker.broker import Broker, BrokerSettings


def event(number: int, size: int) -> ToolReturned:
    """An event of about `size` bytes for one of 64 executions."""
    return ToolReturned(execution=f"g{number % 64}.0.0", tool_call=str(number), source="proxy", content="x" * size, nbytes=size)


def one_by_one(log: KafkaLog, count: int, size: int) -> list[float]:
    """Each append waits for the last."""
    took = []
    for number in range(count):
        begun = time.perf_counter()
        log.append(event(number, size)).result(30)
        took.append(time.perf_counter() - begun)
    return took


def at_rate(log: KafkaLog, count: int, size: int, rate: float) -> list[float]:
    """Appends at fixed times, whatever the last ones do; latency from the time it was due."""
    took: list[float] = []
    done = threading.Semaphore(0)
    begun = time.perf_counter()
    for number in range(count):
        due = begun + number / rate
        time.sleep(max(0.0, due - time.perf_counter()))

        def acknowledged(future: Future[Place], due: float = due) -> None:
            future.result()
            took.append(time.perf_counter() - due)
            done.release()

        log.append(event(number, size)).add_done_callback(acknowledged)
    for _ in range(count):
        done.acquire(timeout=30)
    return took


def throughput(log: KafkaLog, count: int, size: int) -> dict[str, float]:
    """Appends as fast as they are taken, then reads all of it."""
    begun = time.perf_counter()
    for number in range(count):
        log.append(event(number, size))
    log.flush(60)
    produced = time.perf_counter() - begun
    follower = log.follow(["tool-events"])
    begun, got = time.perf_counter(), 0
    while not follower.at_end():
        got += len(follower.poll(1.0, 5000))
    consumed = time.perf_counter() - begun
    follower.close()
    return {"produced_per_s": round(count / produced), "consumed_per_s": round(got / consumed)}


def percentiles(took: Sequence[float]) -> dict[str, float]:
    """p50 and p99 in milliseconds."""
    ordered = sorted(took)
    return {f"p{p}_ms": round(1000 * ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 2) for p in (50, 99)}


def measure(bootstrap_servers: str) -> dict[str, object]:
    """All figures, on a run of its own that is deleted afterwards."""
    settings, run = KafkaSettings(bootstrap_servers), f"measure-{new_id()[:8]}"
    ensure_topics(settings, run)
    log = KafkaLog(settings, run)
    one_by_one(log, 1000, 300)  # warms the JVM
    figures: dict[str, object] = {
        "alone_300_bytes": percentiles(one_by_one(log, 1000, 300)),
        "at_200_per_s_300_bytes": percentiles(at_rate(log, 2000, 300, 200)),
        "alone_64_kb": percentiles(one_by_one(log, 300, 64 * 1024)),
        "alone_512_kb": percentiles(one_by_one(log, 100, 512 * 1024)),
    }
    figures["throughput_300_bytes"] = throughput(log, 50_000, 300)
    log.close()
    delete_run(settings, run)
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m infra.broker.measure", description="What the log costs.")
    parser.add_argument("--bootstrap", default="", help="a broker to measure (default: one of its own)")
    asked = parser.parse_args().bootstrap
    if asked:
        print(json.dumps(measure(asked)))
        return
    with tempfile.TemporaryDirectory() as folder, Broker(BrokerSettings(Path(folder) / "kafka")) as broker:
        print(json.dumps(measure(broker.bootstrap_servers)))


if __name__ == "__main__":
    main()
