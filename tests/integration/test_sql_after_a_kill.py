"""`gyre sql` where a run's stack was killed: the tables are brought to the end of its log first, once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from consumers.analytics.settings import url_file
from gyre_engine.config import Config, to_json
from gyre_engine.config.schema import KafkaConfig
from gyre_engine.events.training import StepCommitted
from infra.cli.asking import ask
from infra.stack.launch import Launch
from infra.stack.layout import StackFolder
from infra.supervisor.state import StackLock

STEPS = "select max(step) from reward_by_step"


@pytest.fixture
def killed(open_log: Any, kafka_settings: Any, tmp_path: Path) -> StackFolder:
    """Three steps on a log, none in the tables, and the address that an analytics process left behind which was killed."""
    log, folder = open_log(), StackFolder(tmp_path / ".gyre")
    log.append_all([committed(step) for step in (1, 2, 3)])
    folder.secret()
    folder.clickhouse.mkdir(parents=True)
    url_file(folder.clickhouse).write_text("http://127.0.0.1:1\n")
    own = KafkaConfig(bootstrap_servers=kafka_settings.bootstrap_servers, prefix=kafka_settings.prefix, allow_weak=True)
    Launch(
        run=log.run, config=to_json(dataclasses.replace(Config(), kafka=own)), bootstrap_servers=kafka_settings.bootstrap_servers,
        prefix=kafka_settings.prefix, partitions=kafka_settings.partitions, replication=1, proxy_url="", cells=(),
        clickhouse_url="http://127.0.0.1:1",
    ).save(folder)  # fmt: skip
    return folder


def committed(step: int) -> StepCommitted:
    return StepCommitted(
        core_epoch=1, step=step, attempt=1, merge_order=(), weights_hash="", executions=1, grad_norm=0.0, loss=0.0,
        reward_mean=0.5,
    )  # fmt: skip


def test_what_the_killed_process_had_not_inserted_is_there_and_the_log_is_read_for_it_once(
    killed: StackFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ask(killed, STEPS, None) == 0
    first = capfd.readouterr()
    assert first.out == "3\n" and "was killed: its tables are brought to the end of its log first" in first.err
    assert ask(killed, STEPS, None) == 0
    assert capfd.readouterr() == ("3\n", "")


def test_where_the_log_cannot_be_read_the_question_is_answered_all_the_same_and_it_is_said(
    killed: StackFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    launch = Launch.load(killed)
    dataclasses.replace(launch, config=to_json(Config())).save(killed)
    killed.kafka.mkdir()
    reader = StackLock(killed.root)
    try:
        assert ask(killed, "select 1", None) == 0
    finally:
        reader.release()
    said = capfd.readouterr()
    assert said.out == "1\n"
    assert f"of {launch.run} may be missing here" in said.err and "another gyre reads the log" in said.err
