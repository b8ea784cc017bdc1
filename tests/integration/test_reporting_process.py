"""The reporting process as a run starts it, over real Kafka: killed between two steps, ended by SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gyre_engine.config import Config, to_json
from gyre_engine.events.reports import StepReported
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.settings import KafkaSettings
from infra.stack.health import reported
from infra.stack.launch import Launch
from infra.stack.layout import StackFolder
from infra.stack.ports import free_ports
from tests.unit.reports import story

LIMIT_S = 60.0
ENTRY = "import sys; from infra.stack.entries import reporting; reporting(sys.argv[1])"


def stack_of(folder: Path, log: KafkaLog, kafka: KafkaSettings) -> tuple[StackFolder, str]:
    stack, url = StackFolder(folder), f"http://127.0.0.1:{free_ports(1)[0]}/metrics"
    Launch(
        run=log.run, config=to_json(Config()), bootstrap_servers=kafka.bootstrap_servers, prefix=kafka.prefix,
        partitions=kafka.partitions, replication=1, proxy_url="", cells=(), clickhouse_url="", metrics_url=url,
    ).save(stack)  # fmt: skip
    return stack, url


@contextmanager
def life(stack: StackFolder) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", ENTRY, str(stack.root)])
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_S)


def served(url: str, line: str) -> str:
    """What is served once it holds `line`."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5.0) as answer:
                text: str = answer.read().decode()
        except (urllib.error.URLError, OSError):
            text = ""
        if line in text.splitlines():
            return text
        time.sleep(0.05)
    raise AssertionError(f"{url} never said {line}")


def test_killed_between_two_steps_it_reports_and_shows_each_once(
    tmp_path: Path, kafka_log: KafkaLog, kafka_settings: KafkaSettings
) -> None:
    stack, url = stack_of(tmp_path, kafka_log, kafka_settings)
    kafka_log.append_all([*story.TREES, *story.DECISIONS, *story.LEDGER])
    run = f'run="{kafka_log.run}"'
    with life(stack) as first:
        assert f"gyre_tokens_sampled{{{run}}} 28.0" in served(url, f"gyre_step{{{run}}} 1.0")
        first.kill()
        first.wait(LIMIT_S)
    kafka_log.append_all(story.SECOND_STEP)
    with life(stack) as second:
        text = served(url, f"gyre_step{{{run}}} 2.0")
        second.send_signal(signal.SIGTERM)
        assert second.wait(LIMIT_S) == 0
    assert f'gyre_run_tokens_total{{kind="sampled",{run}}} 40.0' in text
    found = [r.event.step for r in kafka_log.read("training") if isinstance(r.event, StepReported)]
    assert found == [1, 2]
    assert reported(stack.health)["reporting"].failure == ""
    board = EventAccumulator(str(stack.boards / kafka_log.run))
    board.Reload()
    assert [(s.step, s.value) for s in board.Scalars("tokens/sampled")] == [(1, 28.0), (2, 12.0)]
