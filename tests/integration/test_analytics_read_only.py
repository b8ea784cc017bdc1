"""A reader reads, and nothing else: each way around it that is known is refused, by code."""

import clickhouse_connect
import httpx
import pytest

from consumers.analytics.embedded.engine import EngineSettings, Limits
from consumers.analytics.embedded.request import Users
from consumers.analytics.embedded.service import Embedded

PASSWORD = "a-password"
READONLY, DENIED, SYNTAX = "164", "497", "62"


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    path = tmp_path_factory.mktemp("outside") / "secret.txt"
    path.write_text("hunter2")
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clickhouse")
    settings = EngineSettings(folder / "data", reader=Limits(seconds=2, result_rows=100_000, result_bytes=8 << 20))
    with Embedded(settings, Users(PASSWORD)) as embedded:
        post(embedded, "CREATE TABLE kept (n Int64) ENGINE = MergeTree ORDER BY n", writer=True)
        post(embedded, "INSERT INTO kept VALUES (1)", writer=True)
        yield embedded


def post(server, sql, writer=False, **params):
    auth = ("writer", PASSWORD) if writer else ("reader", "")
    return httpx.post(server.url, content=sql, params=params, auth=auth, timeout=30)


def refused(found):
    return found.headers.get("x-clickhouse-exception-code", f"not refused: {found.text!r}")


WRITES = [
    "INSERT INTO kept VALUES (2)",
    "INSERT INTO kept FORMAT TSV 2",
    "INSERT INTO kept SELECT 2",
    "CREATE TABLE other (n Int64) ENGINE = MergeTree ORDER BY n",
    "CREATE TEMPORARY TABLE other (n Int64)",
    "CREATE VIEW other AS SELECT 1",
    "CREATE DATABASE other",
    "CREATE FUNCTION f AS x -> x",
    "ALTER TABLE kept ADD COLUMN m Int64",
    "ALTER TABLE kept DELETE WHERE 1",
    "DELETE FROM kept WHERE 1",
    "TRUNCATE TABLE kept",
    "DROP TABLE kept",
    "RENAME TABLE kept TO lost",
    "OPTIMIZE TABLE kept FINAL",
    "SYSTEM STOP MERGES",
    "KILL QUERY WHERE 1",
    "SET max_threads = 8",
    "SET readonly = 0",
    "DETACH TABLE kept",
    "BACKUP TABLE kept TO File('/tmp/backup')",
    "SELECT 1 INTO OUTFILE '/tmp/stolen.txt'",
    "SELECT 1 SETTINGS readonly = 0",
    "SELECT 1 SETTINGS max_execution_time = 1000",
    "SELECT * FROM executable('id', 'TSV', 'x String')",
    "SELECT * FROM loop(kept) LIMIT 1",
]


@pytest.mark.parametrize("sql", WRITES)
def test_a_reader_cannot_change_anything(server, sql):
    assert refused(post(server, sql)) in (READONLY, DENIED)
    assert post(server, "SELECT count(), sum(n) FROM kept").text == "1\t1\n"


FILES = [
    "SELECT file('{path}')",
    "SELECT FILE('{path}')",
    "SELECT \"file\"('{path}')",
    "SELECT `f\\x69le`('{path}')",
    "SELECT \u201cfile\u201d('{path}')",
    "SELECT /* a */ file /* b */ ('{path}')",
    "SELECT * APPLY(file) FROM (SELECT '{path}')",
    "SELECT arrayMap(file, ['{path}'])",
    "SELECT arrayMap(x -> file(x), ['{path}'])",
    "WITH file('{path}') AS x SELECT x",
    "SELECT 1 WHERE 'a' = file('{path}')",
    "SELECT 1 IN file('{path}')",
    "EXPLAIN SELECT file('{path}')",
    "SELECT * FROM file('{path}')",
    "SELECT * FROM file('{path}', 'TSV', 'x String')",
    "DESCRIBE file('{path}')",
    "DESCRIBE TABLE file('{path}', 'TSV')",
    "SELECT * FROM '{path}'",
    'SELECT * FROM "{path}"',
    'SELECT * FROM default."{path}"',
    "SELECT * FROM fileCluster('default', '{path}')",
    "SELECT * FROM filesystem('{path}')",
    "SELECT * FROM sqlite('{path}', 't')",
    "SELECT * FROM merge('default', '.*secret.*')",
    "SELECT * FROM eval('SELECT file(''{path}'')')",
    "SELECT * FROM viewExplain('EXPLAIN', '', (SELECT file('{path}')))",
    "SELECT * FROM viewIfPermitted(SELECT file('{path}') AS x ELSE null('x String'))",
    "SELECT * FROM icebergLocal('{path}')",
    "SELECT * FROM deltaLakeLocal('{path}')",
]


@pytest.mark.parametrize("sql", FILES)
def test_a_reader_cannot_read_files(server, secret, sql):
    found = post(server, sql.replace("{path}", str(secret)))
    assert found.status_code >= 400, found.text
    assert "hunter2" not in found.text


def test_a_reader_cannot_name_the_function_by_a_parameter(server, secret):
    found = post(server, f"SELECT arrayMap({{f:Identifier}}, ['{secret}'])", param_f="file")
    assert refused(found) == DENIED
    found = post(server, "SELECT * FROM {t:Identifier}", param_t=str(secret))
    assert found.status_code >= 400
    assert "hunter2" not in found.text


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM url('http://127.0.0.1:1/', 'TSV', 'x String')",
        "SELECT * FROM s3('http://127.0.0.1:1/bucket/key.tsv', 'TSV', 'x String')",
        "SELECT * FROM remote('127.0.0.1', 'system', 'one')",
        "SELECT * FROM mysql('127.0.0.1:1', 'd', 't', 'u', 'p')",
        "SELECT * FROM postgresql('127.0.0.1:1', 'd', 't', 'u', 'p')",
        "SELECT * FROM mongodb('127.0.0.1:1', 'd', 't', 'u', 'p', 'x String')",
        "SELECT * FROM redis('127.0.0.1:1', 'k', 'k String, v String')",
        "SELECT * FROM Python(secret)",
        "SELECT * FROM python('secret')",
        "SELECT * FROM arrowstream('secret')",
        "SELECT aiGenerate('x')",
        "SELECT AIGenerate('x')",
        "SELECT aiEmbed('x')",
        "SELECT * APPLY(aiTranslate) FROM (SELECT 'x')",
    ],
)
def test_a_reader_reaches_nothing_outside(server, sql):
    assert refused(post(server, sql)) in (DENIED, READONLY)


def test_a_reader_may_tighten_limits_and_never_lift_them(server):
    assert post(server, "SELECT 1", max_execution_time="1").text == "1\n"
    assert refused(post(server, "SELECT 1", max_execution_time="3")) == READONLY
    assert refused(post(server, "SELECT 1", max_execution_time="0")) == READONLY
    assert refused(post(server, "SELECT 1", readonly="0")) == READONLY
    assert refused(post(server, "SELECT 1", allow_experimental_eval_table_function="1")) == READONLY
    assert refused(post(server, "SELECT 1", **{"a b": "1"})) == "115"


def test_limits_hold(server):
    assert refused(post(server, "SELECT count() FROM numbers(1000000000000)")) == "159"
    # What streams is refused before the first block or after some, as it comes.
    assert "TOO_MANY_ROWS_OR_BYTES" in post(server, "SELECT number FROM numbers(200000)").text
    assert refused(post(server, "SELECT repeat('x', 1000000), number FROM numbers(20) FORMAT JSON")) == "396"
    assert refused(post(server, "SELECT repeat('x', 1000000) FROM numbers(20) FORMAT JSON")) == "396"
    assert "TOO_MANY_ROWS_OR_BYTES" in post(server, "SELECT repeat('x', 1000000) FROM numbers(20)").text
    assert refused(post(server, "SELECT groupArray(number) FROM numbers(500000000)")) in ("241", "159", "396")


def test_text_that_only_looks_forbidden_is_answered(server):
    assert post(server, "SELECT 'file(x) INTO OUTFILE', 1 AS profile, 2 AS aim -- file('/etc/passwd')").text.startswith("file(x)")
    assert post(server, "SELECT {s:String}", param_s="a file of mine").text == "a file of mine\n"


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE leak (x String DEFAULT file('{path}'), n Int8) ENGINE = MergeTree ORDER BY n",
        "CREATE VIEW leak AS SELECT file('{path}')",
        "INSERT INTO kept SELECT length(file('{path}'))",
        "INSERT INTO kept VALUES (length(file('{path}')))",
        "INSERT INTO kept FROM INFILE '{path}' FORMAT TSV",
        "INSERT INTO FUNCTION file('{path}.out') SELECT 1",
        "CREATE TABLE leak (x String) ENGINE = File(TSV)",
        "CREATE TABLE leak ENGINE = URL('http://127.0.0.1:1/', 'TSV') AS SELECT 1",
        "CREATE DICTIONARY leak (k UInt64) PRIMARY KEY k SOURCE(FILE(path '{path}' format 'TSV')) LAYOUT(FLAT()) LIFETIME(1)",
        "BACKUP TABLE kept TO File('{path}.backup')",
        "SET async_insert = 1",
        "SYSTEM SHUTDOWN",
    ],
)
def test_the_writer_reaches_nothing_outside_either(server, secret, sql):
    found = post(server, sql.replace("{path}", str(secret)), writer=True)
    assert found.status_code >= 400, found.text
    assert "hunter2" not in found.text
    assert not list(secret.parent.glob("secret.txt?*"))
    assert post(server, "SELECT sum(n) FROM kept").text == "1\n"


def test_values_are_never_evaluated(server, secret):
    found = post(server, f"INSERT INTO kept VALUES (length(concat('{secret}', 'x')))", writer=True)
    assert found.status_code >= 400
    assert post(server, "SELECT count() FROM kept").text == "1\n"


def test_a_client_as_reader_works_under_these_rules(server):
    client = clickhouse_connect.get_client(host=server.host, port=server.port, username="reader")
    assert client.query("SELECT n FROM kept").result_rows == [(1,)]
    assert client.query("SELECT name FROM system.tables WHERE database = 'gyre'").result_rows == [("kept",)]
    client.close()
