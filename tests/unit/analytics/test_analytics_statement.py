"""The scanner of statements."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from consumers.analytics.embedded.statement import data_insert, format_clause, names, tokens


def test_where_an_inserts_rows_begin():
    text = b"INSERT INTO t (a, b) FORMAT Native\n\x02\x01 \n"
    found = data_insert(text)
    assert (found.head, found.format, text[found.data_at :]) == ("INSERT INTO t (a, b)", "Native", b"\x02\x01 \n")


def test_rows_on_the_same_line():
    text = b'-- a comment; FORMAT x\nINSERT INTO `FORMAT` SETTINGS x = 1 FORMAT JSONEachRow {"a": 1}'
    found = data_insert(text)
    assert (found.format, text[found.data_at :]) == ("JSONEachRow", b'{"a": 1}')


def test_inserts_that_bring_no_rows_of_their_own():
    assert data_insert(b"INSERT INTO t SELECT 1 FORMAT Native") is None
    assert data_insert(b"INSERT INTO t VALUES (1, 'FORMAT CSV')") is None
    assert data_insert(b"SELECT 'INSERT INTO t FORMAT CSV'") is None


def test_a_statements_own_format():
    assert format_clause(b"SELECT 1 FORMAT JSON") == ("JSON", 9)
    assert format_clause(b"SELECT 1 FORMAT JSON SETTINGS a = 1, b = 'x';")[0] == "JSON"
    assert format_clause(b"SELECT 'a FORMAT b' -- FORMAT CSV") is None
    assert format_clause(b"SELECT format FROM t") is None
    assert format_clause(b"SELECT * FROM (SELECT 1 FORMAT CSV)") is None


def test_names_leave_out_strings_and_comments():
    sql = b"""SELECT `File`, "x", 'file', $$file$$ /* file */ -- file"""
    assert names(sql) == {"select", "file", "x"}
    assert names(b"SELECT 'it''s file' , 'a\\' file'") == {"select"}


@given(st.binary(max_size=60))
def test_any_bytes_are_scanned_to_the_end(data):
    found = list(tokens(data))
    assert all(a.end <= b.start for a, b in itertools.pairwise(found))
    assert b"".join(data[t.start : t.end] for t in found) == b"".join(t.text for t in found)
