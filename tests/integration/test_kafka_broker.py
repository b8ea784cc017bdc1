"""The embedded broker: its life, its ports, and what it says when something is missing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gyre_engine.events.executions import Started
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.log.topics import ensure_topics
from infra.broker.broker import Broker, BrokerError, BrokerSettings, serves
from infra.broker.jars import PINNED, kafka_jars, pinned_sums
from infra.supervisor.children import alive, start_ticks
from infra.supervisor.supervisor import Supervisor

ROOT = Path(__file__).parents[2]


def test_a_port_in_use_is_named_with_the_remedy(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BrokerError, match=rf"port {port} on 127.0.0.1 cannot be used.*a free one is taken"):
            Broker(BrokerSettings(tmp_path, port=port)).start()


def test_every_jar_is_pinned_and_verified(broker: Broker, tmp_path: Path) -> None:
    jars = kafka_jars()
    assert [jar.name for jar in jars] == sorted(pinned_sums()) and len(jars) == len(PINNED.read_text().splitlines())
    assert {"kafka-clients-4.3.1.jar", "kafka_2.13-4.3.1.jar", "log4j-slf4j-impl-2.25.4.jar"} <= {jar.name for jar in jars}
    folder = tmp_path / jars[0].parent.name
    folder.mkdir()
    for jar in jars:
        (folder / jar.name).symlink_to(jar)
    (folder / "kafka-raft-4.3.1.jar").unlink()
    (folder / "kafka-raft-4.3.1.jar").write_bytes(b"something else")
    with pytest.raises(BrokerError, match=r"the jar kafka-raft-4.3.1.jar in .* is not the one that was pinned"):
        kafka_jars(tmp_path)


def test_data_survive_a_stop_and_other_ports_and_the_run_of_a_supervisor(tmp_path: Path) -> None:
    first = Broker(BrokerSettings(tmp_path / "kafka")).start()
    settings = KafkaSettings(first.bootstrap_servers)
    ensure_topics(settings, "r")
    log = KafkaLog(settings, "r")
    log.append(Started(execution="k")).result(20)
    log.close()
    first.stop()
    second = Broker(BrokerSettings(tmp_path / "kafka"))
    assert second.port != first.port
    supervisor = Supervisor(tmp_path / "stack")
    supervisor.start(second.spec())
    supervisor.wait_ready(["broker"], 120)
    log = KafkaLog(KafkaSettings(second.bootstrap_servers), "r")
    assert [r.event for r in log.read("executions")] == [Started(execution="k")]
    log.close()
    supervisor.stop()
    assert supervisor.statuses()[0].last_exit == "ended with status 143"  # the JVM's way to say that it obeyed SIGTERM


def test_a_broker_in_the_foreground_dies_with_whoever_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "infra.broker", str(tmp_path / "kafka")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        servers, jvm = words[3].rstrip(","), int(words[5].rstrip(","))
        assert serves(servers)
        started = start_ticks(jvm)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        limit = time.monotonic() + 10
        while alive(jvm, started):
            assert time.monotonic() < limit
            time.sleep(0.02)
    assert not serves(servers)
