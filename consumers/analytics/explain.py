"""What a person is told where ClickHouse refuses a query: one or two lines - what is wrong, where, what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from consumers.analytics.embedded.statement import names, tokens

LONGEST = 300
"""Characters of ClickHouse's own text that are shown where nothing better is known."""
FEW = 4
"""Continuations that are listed where a statement breaks off; a longer list helps nobody."""
EMPTY = 'the query is empty: try `gyre sql "SHOW TABLES"`'
_TABLES = '`gyre sql "SHOW TABLES"` lists the tables'
_FORMATS = '`gyre sql "SELECT name FROM system.formats WHERE is_output"` lists those of ClickHouse, which can be named too'
_READING = "`gyre sql` only reads: a statement begins with SELECT, WITH, SHOW, DESCRIBE, EXISTS or EXPLAIN"
_CHANGING = frozenset(
    {
        "ALTER", "ATTACH", "BACKUP", "BEGIN", "COMMIT", "COPY", "CREATE", "DELETE", "DETACH", "DROP", "EXCHANGE", "GRANT",
        "INSERT", "KILL", "OPTIMIZE", "RENAME", "REPLACE", "RESTORE", "REVOKE", "ROLLBACK", "SET", "SYSTEM", "TRUNCATE",
        "UNDROP", "UPDATE", "USE",
    }
)  # fmt: skip
_KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP", "ORDER", "BY", "HAVING", "LIMIT", "JOIN", "UNION", "WITH", "SHOW", "DESCRIBE", "EXPLAIN",
    "DISTINCT", "SETTINGS", "FORMAT", "PREWHERE", "EXISTS",
)  # fmt: skip
_CODE = re.compile(r"Code: (\d+)\. (?:DB::Exception: )?(.*)", re.DOTALL)
_TAIL = re.compile(r"(?:\s*\((?:version [^)]*|official build|[A-Z_0-9]+|for url [^)]*)\)\.?)+\s*$")
_SCOPE = re.compile(r"[.:]?\s+In (?:scope|query) .*$|:? \(in query: .*$", re.DOTALL)
_PLACE = re.compile(r"failed at position (\d+) ")
_MEANT = re.compile(r"Maybe you meant:? (?:\[')?([^'\].?]+(?:\.\w+)?)")


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error of ClickHouse: its number and its text, without what surrounds it."""

    code: int
    text: str

    @staticmethod
    def of(error: Exception) -> Refusal | None:
        """None where the text is not ClickHouse's."""
        found = _CODE.search(str(error))
        return Refusal(int(found[1]), _TAIL.sub("", found[2]).strip()) if found else None

    def named(self) -> str:
        """The name that the text puts into quotes first, or nothing."""
        found = re.search(r"[`']([^`']+)[`']", self.text)
        return found[1] if found else ""

    def meant(self) -> str:
        """What ClickHouse itself thinks was meant, or nothing."""
        found = _MEANT.search(self.text)
        return found[1].strip() if found else ""


def explain(refusal: Refusal, sql: str, client: Client, formats: Sequence[str]) -> str:
    """The lines to print. `client` is asked for names that exist; `formats` are those with a short name."""
    if refusal.code == 73:
        return _no_format(refusal, formats)
    if (first := _first_word(sql)) in _CHANGING:
        return f"{first} is no question. {_READING}"
    cases: dict[int, Callable[[Refusal, str, Client], str]] = {
        46: _no_function, 47: _no_column, 60: _no_table, 62: _syntax, 81: _no_database, 164: _not_reading
    }  # fmt: skip
    return cases.get(refusal.code, _as_it_is)(refusal, sql, client)


def is_empty(sql: str) -> bool:
    """Whether nothing but space, comments and semicolons is there."""
    return all(token.text == b";" for token in tokens(sql.encode("utf-8", "surrogateescape")))


def _first_word(sql: str) -> str:
    first = next(tokens(sql.encode("utf-8", "surrogateescape")), None)
    return first.text.decode("utf-8", "replace").upper() if first is not None else ""


def _as_it_is(refusal: Refusal, _sql: str, _client: Client) -> str:
    text = " ".join(_SCOPE.sub("", refusal.text).split())
    return f"ClickHouse: {text if len(text) <= LONGEST else text[: LONGEST - 4] + ' ...'}"


def _no_format(refusal: Refusal, formats: Sequence[str]) -> str:
    found = re.search(r"Unknown format (\w+)", refusal.text)
    wrong = found[1] if found else ""
    return f"no format {wrong!r}.{_did_you_mean(wrong.lower(), formats)} There is: {', '.join(formats)}\n{_FORMATS}"


def _no_table(refusal: Refusal, _sql: str, client: Client) -> str:
    wrong = refusal.named()
    near = _did_you_mean(wrong.rpartition(".")[2], _tables(client)) or _or_meant(refusal)
    return f"no table {wrong!r}.{near}\n{_TABLES}"


def _no_column(refusal: Refusal, sql: str, client: Client) -> str:
    wrong = refusal.named()
    used = sorted(names(sql.encode("utf-8", "surrogateescape")) & set(_tables(client)))
    near = _did_you_mean(wrong.rpartition(".")[2], _columns(client, used)) or _or_meant(refusal)
    if not used:
        return f"no column {wrong!r}: the query names no table (FROM ...).\n{_TABLES}"
    lists = " or ".join(f'`gyre sql "DESCRIBE TABLE {table}"`' for table in used)
    return f"no column {wrong!r} in {', '.join(used)}.{near}\n{lists} lists the columns"


def _no_function(refusal: Refusal, _sql: str, _client: Client) -> str:
    return f"no function {refusal.named()!r}.{_or_meant(refusal)}"


def _no_database(refusal: Refusal, _sql: str, _client: Client) -> str:
    return f"{' '.join(refusal.text.split()).rstrip('.')}: name a table alone.\n{_TABLES}"


def _not_reading(refusal: Refusal, _sql: str, _client: Client) -> str:
    if setting := re.match(r"Cannot modify '(\w+)' setting", refusal.text):
        return f"the setting {setting[1]} cannot be changed here: leave SETTINGS {setting[1]} out"
    return _READING


def _syntax(refusal: Refusal, sql: str, _client: Client) -> str:
    if "Multi-statements" in refusal.text:
        return "one statement at a time: ask the second one in a call of its own"
    cause = next((text for pattern, text in _CAUSES if re.search(pattern, refusal.text)), "")
    place = _PLACE.search(refusal.text)
    return f"SQL syntax error {_where(sql, int(place[1]) if place else len(sql) + 1)}{cause}{_slip(refusal, sql, place)}"


_CAUSES = (
    (r"Single quoted string is not closed", ": a text that begins with ' has no end"),
    (r"(Double|Back) quoted string is not closed", ": a quoted name has no end"),
    (r"Unmatched parentheses: .*never closed", ": a ( is never closed"),
    (r"Unmatched parentheses", ": the brackets do not match"),
)


def _where(sql: str, position: int) -> str:
    """`at line 2, column 5, near "scores"`; `position` counts bytes from 1."""
    raw = sql.rstrip("; \n").encode("utf-8", "surrogateescape")
    if position > len(raw):
        return "at the end of the query"
    before = _before(sql, position)
    line = before.count("\n") + 1
    column = len(before) - before.rfind("\n")
    rest = raw[position - 1 :].decode("utf-8", "replace").splitlines()[0]
    return f'at line {line}, column {column}, near "{rest if len(rest) <= 40 else rest[:37] + "..."}"'


def _before(sql: str, position: int) -> str:
    return sql.encode("utf-8", "surrogateescape")[: position - 1].decode("utf-8", "replace")


def _slip(refusal: Refusal, sql: str, place: re.Match[str] | None) -> str:
    """A keyword that was probably meant: ClickHouse's guess, or one like the word before the place."""
    if meant := refusal.meant():
        return f". Did you mean {meant}?"
    words = re.findall(r"[A-Za-z]+", _before(sql, int(place[1]))) if place else []
    last = words[-1].upper() if words else ""
    near = difflib.get_close_matches(last, _KEYWORDS, n=1, cutoff=0.75)
    if near and near[0] != last:
        return f'. Did you mean {near[0]} where "{words[-1]}" stands?'
    expected = re.search(r"Expected(?: one of)?: (.*)", refusal.text)
    return f". Expected: {expected[1].rstrip('.')}" if expected and expected[1].count(", ") < FEW else ""


def _or_meant(refusal: Refusal) -> str:
    meant = refusal.meant().rpartition(".")[2]
    return f" Did you mean {meant}?" if meant else ""


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" Did you mean {near[0]}?" if near else ""


def _tables(client: Client) -> list[str]:
    """Tables and views; those that hold raw rows last."""
    return _names(client, "SELECT name FROM system.tables WHERE database = currentDatabase() ORDER BY name LIKE '%_raw', name")


def _columns(client: Client, tables: Sequence[str]) -> list[str]:
    sql = "SELECT name FROM system.columns WHERE database = currentDatabase() AND table IN {tables:Array(String)}"
    return _names(client, sql, {"tables": list(tables)})


def _names(client: Client, sql: str, parameters: Mapping[str, list[str]] | None = None) -> list[str]:
    """The one column of a query; nothing where this server does not let its reader ask."""
    try:
        return [str(row[0]) for row in client.query(sql, parameters=dict(parameters or {})).result_rows]
    except ClickHouseError:
        return []
