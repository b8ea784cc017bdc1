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
from gyre_engine.events.log import RunStarted
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


LISTS = 'gyre: `gyre sql "SHOW TABLES"` lists the tables\n'
COLUMNS = 'gyre: `gyre sql "DESCRIBE TABLE scores"` lists the columns\n'
READS = "`gyre sql` only reads: a statement begins with SELECT, WITH, SHOW, DESCRIBE, EXISTS or EXPLAIN\n"


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT rewrd FROM scores", f"gyre: no column 'rewrd' in scores. Did you mean reward?\n{COLUMNS}"),
        ("SELECT s.rewrd FROM scores s", f"gyre: no column 's.rewrd' in scores. Did you mean reward?\n{COLUMNS}"),
        ("SELECT rewrd", f"gyre: no column 'rewrd': the query names no table (FROM ...).\n{LISTS}"),
        ("SELECT * FROM model_cals", f"gyre: no table 'model_cals'. Did you mean model_calls?\n{LISTS}"),
        ("SELECT * FROM gyre.scors", f"gyre: no table 'gyre.scors'. Did you mean scores?\n{LISTS}"),
        ("SELECT * FROM zzzzzzzz", f"gyre: no table 'zzzzzzzz'.\n{LISTS}"),
        ("SELECT flor(1)", "gyre: no function 'flor'. Did you mean floor?\n"),
        ("SELCT 1", 'gyre: SQL syntax error at line 1, column 1, near "SELCT 1". Did you mean SELECT?\n'),
        (
            "SELECT 'ä'\nFRM scores s t",
            'gyre: SQL syntax error at line 2, column 5, near "scores s t". Did you mean FROM where "FRM" stands?\n',
        ),
        ("SELECT count( FROM scores", 'gyre: SQL syntax error at line 1, column 20, near "scores": a ( is never closed\n'),
        ("SELECT count(", "gyre: SQL syntax error at the end of the query: a ( is never closed\n"),
        ("SELECT 'a", "gyre: SQL syntax error at line 1, column 8, near \"'a\": a text that begins with ' has no end\n"),
        ("SELECT 1; SELECT 2", "gyre: one statement at a time: ask the second one in a call of its own\n"),
        ("", 'gyre: the query is empty: try `gyre sql "SHOW TABLES"`\n'),
        (" -- nothing\n;", 'gyre: the query is empty: try `gyre sql "SHOW TABLES"`\n'),
        ("SET x = 1", f"gyre: SET is no question. {READS}"),
        ("INSERT INTO scores_raw (run) VALUES ('x')", f"gyre: INSERT is no question. {READS}"),
        ("DROP TABLE scores_raw", f"gyre: DROP is no question. {READS}"),
        (
            "SELECT 1 SETTINGS max_threads = 4",
            "gyre: the setting max_threads cannot be changed here: leave SETTINGS max_threads out\n",
        ),
    ],
)
def test_what_is_wrong_where_and_what_to_do(asked, sql, said, terminal):
    assert asked(sql, terminal=terminal) == (1, "", said)


def test_any_other_error_is_clickhouses_text_on_one_line(asked):
    code, rows, errors = asked("SELECT run, count() FROM scores")
    assert (code, rows) == (1, "")
    assert errors.startswith("gyre: ClickHouse: Column ")
    assert "GROUP BY" in errors
    assert errors.count("\n") == 1
    assert "FORMAT" not in errors


@pytest.mark.parametrize(("sql", "form"), [("SELECT 1", "jsn"), ("SELECT 1 FORMAT jsn", None)])
def test_an_unknown_format_names_those_there_are(asked, sql, form):
    assert asked(sql, form)[2].splitlines() == [
        "gyre: no format 'jsn'. Did you mean json? There is: arrow, csv, json, jsonl, markdown, parquet, pretty, tsv, vertical",
        'gyre: `gyre sql "SELECT name FROM system.formats WHERE is_output"` lists those of ClickHouse, which can be named too',
    ]


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
