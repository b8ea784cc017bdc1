"""The embedded ClickHouse through clients that know nothing of it: clickhouse-connect (sync and async), plain HTTP, tools' formats."""

import gzip
import io
import json
import re
import threading

import clickhouse_connect
import httpx
import lz4.frame
import pyarrow.parquet
import pytest
import zstandard
from clickhouse_connect.driver.exceptions import DatabaseError

from consumers.analytics.embedded.engine import EngineSettings, Limits
from consumers.analytics.embedded.request import Users
from consumers.analytics.embedded.service import Embedded

PASSWORD = "a-password"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clickhouse")
    settings = EngineSettings(folder / "data", reader=Limits(seconds=5, result_rows=500_000, result_bytes=32 << 20))
    with Embedded(settings, Users(PASSWORD)) as embedded:
        yield embedded


@pytest.fixture
def writer(server):
    client = clickhouse_connect.get_client(host=server.host, port=server.port, username="writer", password=PASSWORD)
    yield client
    client.close()


@pytest.fixture
def reader(server):
    client = clickhouse_connect.get_client(host=server.host, port=server.port)
    yield client
    client.close()


@pytest.fixture
def numbers(writer):
    writer.command("CREATE OR REPLACE TABLE numbers_1000 (n Int64, s String) ENGINE = MergeTree ORDER BY n")
    writer.insert("numbers_1000", [[n, f"row {n}"] for n in range(1000)], column_names=["n", "s"])
    return "numbers_1000"


def ask(server, sql, writer=False, **request):
    headers = {"X-ClickHouse-User": "writer", "X-ClickHouse-Key": PASSWORD} if writer else {}
    headers |= request.pop("headers", {})
    return httpx.post(server.url, content=sql, headers=headers, timeout=30, **request)


def test_ping_and_the_root_answer_ok(server):
    assert httpx.get(f"{server.url}/ping").text == "Ok.\n"
    assert httpx.get(server.url).text == "Ok.\n"


def test_a_client_connects_and_reads_back_what_it_wrote(writer, reader, numbers):
    """0 + 1 + ... + 999 = 499,500."""
    assert reader.query(f"SELECT count(), sum(n), max(s) FROM {numbers}").result_rows == [(1000, 499_500, "row 999")]


@pytest.mark.parametrize("value", ["a\tb", "a\\b", "a'b", 'a"b`c', "a\nb", "", "日本", None, "{x:String}"])
def test_parameters_pass_unchanged(reader, value):
    assert reader.query("SELECT {v:Nullable(String)}", parameters={"v": value}).result_rows == [(value,)]


def test_parameters_of_other_types(reader, numbers):
    found = reader.query(f"SELECT n FROM {numbers} WHERE n IN {{a:Array(Int64)}} ORDER BY n", parameters={"a": [7, 3, 5000]})
    assert found.result_rows == [(3,), (7,)]


async def test_the_async_client(server, numbers):
    client = await clickhouse_connect.get_async_client(host=server.host, port=server.port)
    assert (await client.query(f"SELECT count() FROM {numbers}")).result_rows == [(1000,)]
    await client.close()


def test_an_empty_result_has_its_columns(reader, numbers):
    found = reader.query(f"SELECT n, s FROM {numbers} WHERE n < 0")
    assert (found.column_names, found.result_rows) == (("n", "s"), [])


def test_streams_of_rows(reader):
    """0 + ... + 299,999 = 299,999 x 150,000."""
    with reader.query_rows_stream("SELECT number FROM numbers(300000)") as rows:
        assert sum(row[0] for row in rows) == 44_999_850_000


def test_a_stream_that_is_left_in_the_middle_hangs_nobody(reader, server):
    with reader.query_row_block_stream("SELECT number, randomPrintableASCII(30) FROM numbers(400000)") as blocks:
        assert len(next(iter(blocks))) > 0
    assert ask(server, "SELECT 1").text == "1\n"


def test_c49_a_query_beside_an_open_stream_is_answered(server, reader, numbers):
    """C49: a count while a stream over the 1,000 rows is open."""
    with httpx.stream("POST", server.url, content=f"SELECT n, repeat(s, 2000) FROM {numbers}, numbers(3)") as stream:
        pieces = stream.iter_raw()
        next(pieces)
        assert reader.query(f"SELECT count() FROM {numbers}").result_rows == [(1000,)]


def test_c49_a_second_folder_in_one_process_is_refused_by_name(server, tmp_path):
    """C49: chDB can hold one folder a process."""
    with pytest.raises(RuntimeError, match="can hold only one"):
        Embedded(EngineSettings(tmp_path / "other"), Users(PASSWORD))


def test_a_folder_that_is_open_is_refused_by_name(server):
    with pytest.raises(RuntimeError, match="is open already"):
        Embedded(server.engine.settings, Users(PASSWORD))


def test_formats_that_tools_read(server, numbers):
    sql = f"SELECT n, s FROM {numbers} WHERE n < 2 ORDER BY n FORMAT "
    assert ask(server, sql + "TSV").text == "0\trow 0\n1\trow 1\n"
    assert ask(server, sql + "CSVWithNames").text == '"n","s"\n0,"row 0"\n1,"row 1"\n'
    assert ask(server, sql + "JSON").json()["data"] == [{"n": 0, "s": "row 0"}, {"n": 1, "s": "row 1"}]
    assert [json.loads(line)["n"] for line in ask(server, sql + "JSONEachRow").text.splitlines()] == [0, 1]
    parquet = pyarrow.parquet.read_table(io.BytesIO(ask(server, sql + "Parquet").content))
    assert parquet.to_pydict()["n"] == [0, 1]


def test_arrow_through_the_client(reader, numbers):
    assert reader.query_arrow(f"SELECT sum(n) AS total FROM {numbers}").to_pydict() == {"total": [499_500]}


def test_a_format_may_come_from_the_url(server, numbers):
    found = ask(server, f"SELECT count() AS c FROM {numbers}", params={"default_format": "JSONCompact"})
    assert found.json()["data"] == [[1000]]


@pytest.mark.parametrize(
    ("encoding", "decode"),
    [
        ("gzip", gzip.decompress),
        ("zstd", lambda b: zstandard.ZstdDecompressor().decompressobj().decompress(b)),
        ("lz4", lz4.frame.decompress),
    ],
)
def test_answers_are_compressed_when_asked(server, numbers, encoding, decode):
    with httpx.stream(
        "POST",
        server.url,
        content=f"SELECT n FROM {numbers} ORDER BY n",
        params={"enable_http_compression": "1"},
        headers={"Accept-Encoding": encoding},
    ) as answer:
        assert answer.headers["content-encoding"] == encoding
        body = b"".join(answer.iter_raw())
    assert decode(body).decode().split() == [str(n) for n in range(1000)]


@pytest.mark.parametrize(
    ("encoding", "encode"), [("gzip", gzip.compress), ("zstd", zstandard.compress), ("lz4", lz4.frame.compress)]
)
def test_inserts_may_be_compressed(server, writer, encoding, encode):
    writer.command("CREATE OR REPLACE TABLE packed (n Int64) ENGINE = MergeTree ORDER BY n")
    body = encode(b"".join(b"%d\n" % n for n in range(5000)))
    found = ask(
        server, body, writer=True, params={"query": "INSERT INTO packed FORMAT TSV"}, headers={"Content-Encoding": encoding}
    )
    assert found.status_code == 200, found.text
    assert json.loads(found.headers["x-clickhouse-summary"])["written_rows"] == "5000"
    assert writer.query("SELECT sum(n) FROM packed").result_rows == [(12_497_500,)]


def test_inserts_as_curl_makes_them(server, writer):
    writer.command("CREATE OR REPLACE TABLE by_hand (n Int64, format String) ENGINE = MergeTree ORDER BY n")
    assert ask(server, "INSERT INTO by_hand VALUES (1, 'FORMAT x'), (2, 'it''s')", writer=True).status_code == 200
    assert (
        ask(server, 'INSERT INTO by_hand (n, format) FORMAT JSONEachRow {"n":3,"format":"SELECT"}', writer=True).status_code
        == 200
    )
    assert ask(server, "INSERT INTO by_hand SELECT n + 10, format FROM by_hand", writer=True).status_code == 200
    assert writer.query("SELECT count(), sum(n) FROM by_hand").result_rows == [(6, 42)]


def test_a_broken_insert_leaves_nothing(server, writer):
    writer.command("CREATE OR REPLACE TABLE whole (n Int64) ENGINE = MergeTree ORDER BY n")
    answer = ask(server, b"1\n2\nno number\n", writer=True, params={"query": "INSERT INTO whole FORMAT TSV"})
    assert answer.status_code == 400
    assert answer.headers["x-clickhouse-exception-code"] == "27"
    assert writer.query("SELECT count() FROM whole").result_rows == [(0,)]


@pytest.mark.parametrize(
    ("sql", "code", "status"),
    [
        ("SELEC 1", 62, 400),
        ("SELECT nope", 47, 404),
        ("SELECT * FROM nope", 60, 404),
        ("SELECT 1; SELECT 2", 62, 400),
        ("", 62, 400),
        ("SELECT throwIf(1)", 395, 500),
        ("SELECT * FROM numbers(10) SETTINGS no_such_setting = 1", 115, 404),
        ("SELECT {x:Int64}", 456, 400),
    ],
)
def test_errors_carry_clickhouses_code_and_text(server, sql, code, status):
    found = ask(server, sql)
    assert (found.headers["x-clickhouse-exception-code"], found.status_code) == (str(code), status)
    assert found.text.startswith(f"Code: {code}. DB::Exception: ")
    assert "(version " in found.text


def test_a_client_raises_with_the_servers_text(reader):
    with pytest.raises(DatabaseError, match="UNKNOWN_TABLE"):
        reader.query("SELECT * FROM no_such_table")


def test_an_error_after_the_first_rows_reaches_the_client(reader):
    with (
        pytest.raises(Exception, match="throwIf"),
        reader.query_rows_stream("SELECT throwIf(number = 400000), repeat('x', 100) FROM numbers(450000)") as rows,
    ):
        for _ in rows:
            pass


def test_unknown_users_and_wrong_passwords_are_refused(server):
    for user, password in (("writer", "wrong"), ("writer", ""), ("nobody", ""), ("default", "x")):
        found = httpx.post(server.url, content="SELECT 1", auth=(user, password))
        assert (found.status_code, found.headers["x-clickhouse-exception-code"]) == (403, "516")
        assert PASSWORD not in found.text


def test_a_get_reads_only_even_for_the_writer(server):
    found = httpx.get(server.url, params={"query": "CREATE TABLE x (n Int8) ENGINE = Memory"}, auth=("writer", PASSWORD))
    assert found.headers["x-clickhouse-exception-code"] == "164"


def test_many_clients_at_once(server, numbers):
    answers = []

    def one():
        answers.append(ask(server, f"SELECT sum(n) FROM {numbers}").text)

    threads = [threading.Thread(target=one) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["499500\n"] * 24


def test_a_multipart_form_is_read(server):
    found = httpx.post(server.url, files={"query": (None, "SELECT {a:Int64} + 1"), "param_a": (None, "41")})
    assert found.text == "42\n"


def test_nothing_of_the_clients_settings_outlives_its_statement(server, writer):
    writer.command("SET max_threads = 2")
    assert ask(server, "SELECT getSetting('max_threads')", writer=True).text == "1\n"


@pytest.mark.parametrize("sql", ["SELECT 1 FORMAT nonsense", "SELECT * FROM nowhere", "SELCT 1"])
def test_an_error_has_the_name_of_its_code_once(server, sql):
    text = ask(server, sql).text
    assert len(re.findall(r"\([A-Z]+_[A-Z_]+\)", text)) == 1, text
