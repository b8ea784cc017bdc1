"""`gyre score` and then `gyre sql`, where no stack runs: the scores are there."""

import dataclasses
import io
import os

import pytest

from consumers.analytics.embedded.engine import EngineSettings
from consumers.analytics.embedded.request import Users
from consumers.analytics.embedded.service import Embedded
from consumers.analytics.query import Output, query, reader_address
from consumers.analytics.settings import url_file
from consumers.scoring.port import Score, ScoredExecution
from gyre_engine.config import Config, config_hash, to_json
from gyre_engine.config.schema import ClickHouseConfig, RunnerConfig
from gyre_engine.events.executions import Dispatched, Ending, Finished
from gyre_engine.events.log import RunStarted
from gyre_engine.log.runs import RunInfo
from infra.cli.asking import ask
from infra.cli.attach import Attached
from infra.cli.errors import CommandError
from infra.cli.judging import score
from infra.stack.layout import StackFolder
from infra.supervisor.children import start_ticks
from infra.supervisor.spec import ProcessStatus, State
from infra.supervisor.state import write_state

ASKED = "select scorer, count(), avg(reward) from scores group by scorer"


class Number:
    """An execution's reward is its index."""

    name, version = "number", "1"

    async def score(self, execution: ScoredExecution) -> Score:
        return Score(float(execution.dispatched.index))


SCORER = f"{__name__}:Number"


@pytest.fixture
def folder(tmp_path):
    made = StackFolder(tmp_path / ".gyre")
    made.secret()
    return made


@pytest.fixture
def attached(open_log, kafka_settings):
    """A run with three finished executions, and what its config says of ClickHouse."""

    def of(clickhouse: ClickHouseConfig = ClickHouseConfig()) -> Attached:  # noqa: B008 - frozen
        config = to_json(dataclasses.replace(Config(), clickhouse=clickhouse, runner=RunnerConfig(sandbox="none")))
        log = open_log()
        for index in range(3):
            log.append_all(finished(f"g.{index}.0", index))
        started = RunStarted(
            run=log.run, config=config, config_hash=config_hash(config), versions={}, partitions={}, fingerprint={},
            initial_weights="", initial_weights_hash="", topic_prefix="gyre",
        )  # fmt: skip
        return Attached(kafka_settings, RunInfo(log.run, 1, started))

    return of


def finished(execution, index):
    return [
        Dispatched(
            execution=execution, group="g", index=index, attempt=0, group_size=3, group_number=0, class_number=0, query="q",
            source="s", split="train", harness="h", weight_version=0,
        ),
        Finished(execution=execution, ending=Ending.COMPLETED, work_url="", work_hash="", did_work=True, served_us=1, wall_us=1),
    ]  # fmt: skip


def test_the_tables_of_a_stopped_stack_have_what_was_just_scored(attached, folder, capfdbinary):
    assert score(attached(), SCORER, folder, follow=False) == "number 1: 3 scored, 0 failed, 0 scored before"
    assert ask(folder, ASKED, None) == 0
    assert capfdbinary.readouterr().out == b"number\t3\t1\n"


def test_a_server_that_serves_the_folder_is_told_and_not_shut_out(attached, folder):
    """As where another run of this folder goes on."""
    with Embedded(EngineSettings(folder.clickhouse), Users(folder.password())) as server:
        url_file(folder.clickhouse).write_text(f"{server.url}\n")
        score(attached(), SCORER, folder, follow=False)
        assert answer(server) == b"number\t3\t1\n"


def test_the_clickhouse_of_gyre_up_is_told(attached, folder):
    with Embedded(EngineSettings(folder.clickhouse), Users(folder.password())) as server:
        me = ProcessStatus("clickhouse", State.RUNNING, os.getpid(), start_ticks(os.getpid()))
        write_state(folder.root, {"clickhouse_url": server.url}, [me])
        score(attached(), SCORER, folder, follow=False)
        assert answer(server) == b"number\t3\t1\n"


def test_a_run_that_its_stack_has_is_left_to_the_analytics_process_of_that(attached, folder):
    run = attached()
    me = ProcessStatus("analytics", State.RUNNING, os.getpid(), start_ticks(os.getpid()))
    write_state(folder.root, {"run": run.info.run, "clickhouse_url": "http://127.0.0.1:1"}, [me])
    assert "3 scored" in score(run, SCORER, folder, follow=False)
    assert not folder.clickhouse.exists()


def test_the_server_of_the_config_is_told_with_the_password_that_the_folder_keeps(attached, folder, tmp_path):
    with Embedded(EngineSettings(tmp_path / "elsewhere"), Users("pw")) as server:
        at = f"{server.host}:{server.port}"
        folder.keep_private({"clickhouse.url": f"http://writer:pw@{at}"})
        score(attached(ClickHouseConfig(url=f"http://writer:pw@{at}")), SCORER, folder, follow=False)
        assert answer(server) == b"number\t3\t1\n"
    assert not folder.clickhouse.exists()


def test_where_the_tables_cannot_be_had_it_says_that_the_scores_are_on_the_log(attached, folder):
    run = attached(ClickHouseConfig(url="http://127.0.0.1:1"))
    with pytest.raises(CommandError, match=r"3 scored, 0 failed, 0 scored before\n.*not in the tables yet.*127.0.0.1:1"):
        score(run, SCORER, folder, follow=False)
    with pytest.raises(CommandError, match="0 scored, 0 failed, 3 scored before"):
        score(run, SCORER, folder, follow=False)


def test_a_run_without_analytics_is_scored_all_the_same(attached, folder):
    assert "3 scored" in score(attached(ClickHouseConfig(enabled=False)), SCORER, folder, follow=False)
    assert not folder.clickhouse.exists()


def answer(server):
    rows, errors = io.BytesIO(), io.StringIO()
    assert query(reader_address(server.url), ASKED, None, Output(rows, errors, False)) == 0, errors.getvalue()
    return rows.getvalue()
