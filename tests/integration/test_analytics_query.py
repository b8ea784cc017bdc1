"""What `gyre sql` prints, and with which exit code."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from consumers.analytics.embedded.engine import EngineSettings
from consumers.analytics.embedded.request import Users
from consumers.analytics.embedded.service import Embedded
from consumers.analytics.ingest import Ingest
from consumers.analytics.process import serving
from consumers.analytics.query import Output, ask, embedded_query, query, reader_address, running
from consumers.analytics.settings import AnalyticsSettings, url_file
from consumers.analytics.store import Store
from gyre_engine.events.executions import Scored
from gyre_engine.events.training import RunStarted
from gyre_engine.log.memory import MemoryLog

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A stack's folder with two runs, the second started later, and three scores in each."""
    path = tmp_path_factory.mktemp("stack") / "data"
    settings = AnalyticsSettings(path=path, port=0, password="p")
    with serving(settings) as at:
        store = Store(at)
        store.prepare()
        for number, run in enumerate(("first", "second")):
            log = MemoryLog(run=run)
            log.append(started(run), at=1_700_000_000_000_000 + number)
            rewards = [
                Scored(execution=f"e{n}", scorer="s", scorer_version="1", evaluation_attempt=0, reward=n / 2) for n in range(3)
            ]
            log.append_all(rewards)
            Ingest(log, store, settings).run_to_end()
        store.close()
    return path


def started(run):
    return RunStarted(
        run=run,
        config="{}",
        config_hash="c",
        versions={},
        partitions={},
        fingerprint={},
        initial_weights="",
        initial_weights_hash="",
        topic_prefix="gyre",
    )


@pytest.fixture
def asked(folder):
    def ask(sql, form=None, terminal=False):
        rows, errors = io.BytesIO(), io.StringIO()
        code = embedded_query(folder, sql, form, Output(rows, errors, terminal))
        return code, rows.getvalue().decode(), errors.getvalue()

    return ask


def test_bare_rows_into_a_pipe(asked):
    found = asked("SELECT execution, reward FROM scores WHERE run = {latest:String} ORDER BY execution;")
    assert found == (0, "e0\t0\ne1\t0.5\ne2\t1\n", "")


def test_latest_is_the_run_that_started_last(asked):
    assert asked("SELECT {latest:String}") == (0, "second\n", "")


def test_a_table_on_a_terminal(asked):
    code, text, _ = asked("SELECT execution, reward FROM scores WHERE run = 'first' ORDER BY execution", terminal=True)
    lines = [line.split() for line in text.splitlines()]
    assert (code, lines) == (0, [["execution", "reward"], ["e0", "0"], ["e1", "0.5"], ["e2", "1"], ["3", "rows"]])


def test_a_format_by_its_short_name_and_by_clickhouses(asked):
    assert asked("SELECT 1 AS a", "csv")[1] == '"a"\n1\n'
    assert asked("SELECT 1 AS a", "JSONEachRow")[1] == '{"a":1}\n'
    assert json.loads(asked("SELECT 1 AS a FORMAT JSON", terminal=True)[1])["data"] == [{"a": 1}]


def test_an_error_is_clickhouses_text_and_exit_code_1(asked):
    code, rows, errors = asked("SELECT nope FROM scores")
    assert (code, rows) == (1, "")
    assert errors.startswith("gyre: Code: 47. DB::Exception: ")
    assert "UNKNOWN_IDENTIFIER" in errors


def test_an_unknown_format_is_an_error(asked):
    assert "UNKNOWN_FORMAT" in asked("SELECT 1", "NoSuchFormat")[2]


def test_nobody_can_write_this_way(asked):
    code, _, errors = asked("INSERT INTO scores_raw (run) VALUES ('x')")
    assert code == 1
    assert "READONLY" in errors


def test_a_folder_that_is_not_there_is_named(tmp_path):
    errors = io.StringIO()
    assert embedded_query(tmp_path / "none", "SELECT 1", None, Output(io.BytesIO(), errors, False)) == 1
    assert "no ClickHouse folder" in errors.getvalue()


def test_a_server_that_is_not_there_is_named():
    errors = io.StringIO()
    assert query(reader_address("http://127.0.0.1:1"), "SELECT 1", None, Output(io.BytesIO(), errors, False)) == 1
    assert errors.getvalue() == (
        "gyre: no ClickHouse answers at 127.0.0.1:1 (OperationalError): start the stack (gyre up), or set clickhouse.url\n"
    )


def test_a_stack_that_runs_is_asked_and_one_that_was_killed_is_not(folder):
    def answer():
        rows = io.BytesIO()
        assert ask(folder, "SELECT count() FROM scores", None, Output(rows, io.StringIO(), False)) == 0
        return rows.getvalue()

    url_file(folder).write_text("http://127.0.0.1:1\n")
    assert running(folder) is None
    assert answer() == b"6\n"
    with Embedded(EngineSettings(folder), Users(None)) as server:
        url_file(folder).write_text(f"{server.url}\n")
        assert running(folder) == server.url
        assert answer() == b"6\n"
    url_file(folder).unlink()


def test_the_server_as_a_program_is_read_only_without_a_password_and_ends_on_sigterm(folder):
    command = [sys.executable, "-m", "infra.clickhouse.server", str(folder), "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        url = child.stdout.readline().split()[-1]
        rows, errors = io.BytesIO(), io.StringIO()
        assert query(reader_address(url), "SELECT count() FROM scores", None, Output(rows, errors, False)) == 0
        assert rows.getvalue() == b"6\n"
        child.terminate()
        assert child.wait(30) == 0
