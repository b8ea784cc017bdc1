"""Ask ClickHouse from a command line: bare rows for scripts, a table for people, a line or two where it refuses.

`{latest:String}` in a query stands for the newest run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO, cast

import httpx
import orjson
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from consumers.analytics.embedded.statement import format_clause
from consumers.analytics.explain import EMPTY, Refusal, explain, is_empty
from consumers.analytics.settings import DATABASE, Address, address, url_file
from consumers.analytics.store import connect

READER = "reader"
TABLE_ROWS = 500
"""Rows that a table on a terminal shows; the rest is counted."""
FORMATS = {
    "arrow": "Arrow",
    "csv": "CSVWithNames",
    "json": "JSON",
    "jsonl": "JSONEachRow",
    "markdown": "Markdown",
    "parquet": "Parquet",
    "pretty": "PrettyCompactMonoBlock",
    "tsv": "TabSeparatedWithNames",
    "vertical": "Vertical",
}
"""Short names of formats; any other name is passed to ClickHouse as it is."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where rows and errors go, and whether a person reads them."""

    rows: BinaryIO
    errors: TextIO
    terminal: bool

    @staticmethod
    def standard() -> Output:
        """This process's stdout and stderr."""
        return Output(sys.stdout.buffer, sys.stderr, sys.stdout.isatty())


def reader_address(url: str, database: str = DATABASE) -> Address:
    """Where a reader connects: user and password of `url`, or the embedded server's `reader`."""
    return address(url, user=READER, password="", database=database)


def query(at: Address, sql: str, form: str | None = None, output: Output | None = None, *, absent: str = "") -> int:
    """Run `sql` and print its rows. The exit code: 0, or 1 with what is wrong on the error stream.

    absent:  what to say where no server answers, for a caller that knows why
    """
    out, sql = output or Output.standard(), sql.strip()
    if is_empty(sql):
        return _refused(out, EMPTY)
    try:
        client = connect(at)
    except (ClickHouseError, OSError) as error:
        return _refused(out, _unreachable(error, at, absent))
    try:
        _print(client, sql, form, out)
    except (ClickHouseError, OSError) as error:
        refusal = Refusal.of(error)
        return _refused(out, explain(refusal, sql, client, sorted(FORMATS)) if refusal else _unreachable(error, at, absent))
    finally:
        client.close()
    return 0


def _refused(out: Output, text: str) -> int:
    out.errors.writelines(f"gyre: {line}\n" for line in text.splitlines())
    return 1


@contextmanager
def embedded(path: Path) -> Iterator[Address]:
    """ClickHouse on a stack's folder while no stack runs, for readers only, as long as this context lasts. Raises
    FolderInUse where a stack has the folder, FileNotFoundError where there is none."""
    from consumers.analytics.embedded.engine import EngineSettings
    from consumers.analytics.embedded.request import Users
    from consumers.analytics.embedded.service import Embedded

    if not path.is_dir():
        raise FileNotFoundError(f"there is no ClickHouse folder at {path}: run something first (gyre run EXP.toml)")
    with Embedded(EngineSettings(path), Users(None)) as server:
        yield reader_address(server.url)


def running(path: Path) -> str | None:
    """Where the process that owns the folder answers, or None where none does."""
    try:
        url = url_file(path).read_text().strip()
        return url if httpx.get(f"{url}/ping", timeout=5).status_code == 200 else None
    except (OSError, httpx.HTTPError):
        return None


def ask(path: Path, sql: str, form: str | None = None, output: Output | None = None) -> int:
    """`query` at the stack that runs on this folder, or else `embedded_query`."""
    url = running(path)
    return query(reader_address(url), sql, form, output) if url else embedded_query(path, sql, form, output)


def embedded_query(path: Path, sql: str, form: str | None = None, output: Output | None = None) -> int:
    """`query` on a stack's folder while no stack runs. The exit code is 1 too where the folder cannot be opened."""
    out = output or Output.standard()
    try:
        with embedded(path) as at:
            return query(at, sql, form, out)
    except (RuntimeError, FileNotFoundError) as error:
        out.errors.write(f"gyre: {error}\n")
        return 1


def latest_run(client: Client) -> str | None:
    """The run that started last, or None where none has."""
    rows = client.query("SELECT run FROM latest_run").result_rows
    return str(rows[0][0]) if rows else None


def _print(client: Client, sql: str, form: str | None, out: Output) -> None:
    parameters = {"latest": latest_run(client) or ""} if "{latest:" in sql else None
    own = format_clause(sql.encode()) is not None
    if form or own or not out.terminal:
        wanted = None if own else FORMATS.get((form or "").lower(), form) or "TabSeparated"
        _copy(client, sql, wanted, parameters, out.rows)
        return
    found = orjson.loads(
        client.raw_query(sql.rstrip("; \n"), parameters=parameters, fmt="JSONCompact") or b'{"meta":[],"data":[]}'
    )
    _show([c["name"] for c in found["meta"]], [c["type"] for c in found["meta"]], found["data"], out)


def _copy(client: Client, sql: str, form: str | None, parameters: dict[str, str] | None, rows: BinaryIO) -> None:
    stream = cast(BinaryIO, client.raw_stream(sql.rstrip("; \n"), parameters=parameters, fmt=form))
    try:
        while piece := stream.read(1 << 16):
            rows.write(piece)
        rows.flush()
    except BrokenPipeError:
        _leave_quietly(rows)
    finally:
        stream.close()


def _leave_quietly(rows: BinaryIO) -> None:
    """The reader of a pipe (head, less) has gone: what is buffered goes nowhere, and nothing complains at exit."""
    if rows is sys.stdout.buffer:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show(names: list[str], types: list[str], rows: list[list[object]], out: Output) -> None:
    table = Table(header_style="bold", box=None, pad_edge=False)
    for name, kind in zip(names, types, strict=True):
        table.add_column(name, justify="right" if _is_number(kind) else "left", overflow="fold")
    for row in rows[:TABLE_ROWS]:
        table.add_row(*(Text(_cell(value)) for value in row))
    console = Console(file=sys.stdout if out.rows is sys.stdout.buffer else None, highlight=False)
    with console.capture() as captured:
        console.print(table)
        console.print(f"{len(rows)} rows" + (f", {TABLE_ROWS} shown" if len(rows) > TABLE_ROWS else ""), style="dim")
    out.rows.write(captured.get().encode())
    out.rows.flush()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _is_number(kind: str) -> bool:
    inner = kind.removeprefix("LowCardinality(").removeprefix("Nullable(")
    return inner.startswith(("Int", "UInt", "Float", "Decimal"))


def _unreachable(error: Exception, at: Address, absent: str) -> str:
    if refusal := Refusal.of(error):
        return f"ClickHouse at {at.host}:{at.port}: {' '.join(refusal.text.split())}"
    return absent or (
        f"no ClickHouse answers at {at.host}:{at.port} ({type(error).__name__}): start the stack (gyre up), or set clickhouse.url"
    )
