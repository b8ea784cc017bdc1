"""Runs one statement on a fresh handle and gives its result, whole or as a stream.

promises  a stream is closed before its handle, on every path: chDB hangs for ever otherwise; results end at the byte limit, which
          the engine itself does not count for constant columns; an empty Native result has its header, as from a server
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from consumers.analytics.embedded.engine import Engine
from consumers.analytics.embedded.errors import from_engine, read_only, refusal
from consumers.analytics.embedded.guard import Kind, check
from consumers.analytics.embedded.statement import data_insert, format_clause

_TEXTS = ("tabseparated", "tsv", "csv")
STREAMED = frozenset(
    {"native", "rowbinary", "jsoneachrow", "jsoncompacteachrow", "tabseparatedraw", "tsvraw", *_TEXTS}
    | {f"{text}{head}" for text in _TEXTS for head in ("withnames", "withnamesandtypes")}
)
"""Formats whose pieces can be sent as they come. The others (JSON, Arrow, Parquet ...) have a head or a foot and are sent whole."""


@dataclass(frozen=True, slots=True)
class Query:
    """One statement as it was asked."""

    text: bytes
    """The statement, and an INSERT's rows after it."""
    reader: bool
    database: str | None = None
    default_format: str = "TabSeparated"
    params: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False
    """Wait for the end before anything is sent."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a statement gave: `body` whole, or `pieces` one by one (close the iterator, whatever happens)."""

    format: str | None
    summary: dict[str, str]
    body: bytes = b""
    pieces: Stream | None = None


class Stream(Iterator[bytes]):
    """The pieces of a result. `close()` may be called more than once, also in the middle."""

    def __init__(self, handle: Any, stream: Any, first: Any, limit: int) -> None:
        self._handle, self._stream, self._next, self._left = handle, stream, first, limit

    @property
    def empty(self) -> bool:
        """Whether no piece is left."""
        return self._next is None

    def __next__(self) -> bytes:
        piece = self._next
        if piece is None or self._handle is None:
            self.close()
            raise StopIteration
        data: bytes = piece.bytes()
        self._left -= len(data)
        if self._left < 0:
            self.close()
            raise _too_large()
        try:
            self._next = self._stream.fetch()
        except Exception as error:
            self.close()
            raise from_engine(error) from error
        return data

    def close(self) -> None:
        """The stream first, then the handle."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._stream.close()
            handle.close()


def run(engine: Engine, query: Query) -> Result:
    """Run it. Raises ClickHouseError."""
    try:
        insert = data_insert(query.text)
        if insert is not None:
            return _insert(engine, query, insert.head, insert.format, query.text[insert.data_at :])
        return _statement(engine, query)
    except Exception as error:
        raise from_engine(error) from error


def _insert(engine: Engine, query: Query, head: str, form: str, rows: bytes) -> Result:
    if query.reader:
        raise read_only("Cannot execute query in readonly mode")
    started = time.perf_counter_ns()
    with engine.handle(query.settings, query.database, read_only=False) as handle:
        check(handle, f"{head} FORMAT {form}", query.params, forbidden=engine.forbidden, reader=False)
        inserter = handle.send_insert(head, form)
        try:
            if rows:
                inserter.append(rows)
            done = inserter.finish()
        except BaseException:
            inserter.cancel()
            raise
    return Result(None, _summary(started, written_rows=done.rows_written, written_bytes=done.bytes_written))


def _statement(engine: Engine, query: Query) -> Result:
    sql = query.text.decode("utf-8", "surrogateescape").strip()
    if not sql:
        raise refusal(62, "SYNTAX_ERROR", "Empty query")
    started = time.perf_counter_ns()
    handle = engine.open_handle(query.settings, query.database, read_only=query.reader)
    stream: Stream | None = None
    try:
        kind = check(handle, sql, query.params, forbidden=engine.forbidden, reader=query.reader)
        form = _format(query)
        if kind is Kind.READ and form.lower() in STREAMED:
            first = _open_stream(handle, sql, form, query)
            if first is not None:
                stream = Stream(handle, *first, _byte_limit(engine, query))
                return _streamed(stream, handle, sql, form, query, started)
        return _whole(engine, handle, sql, form if kind is Kind.READ else None, query, started)
    finally:
        if stream is None:
            handle.close()


def _format(query: Query) -> str:
    clause = format_clause(query.text)
    return clause[0] if clause else query.default_format


def _open_stream(handle: Any, sql: str, form: str, query: Query) -> tuple[Any, Any] | None:
    try:
        stream = handle.send_query(sql, form, params=dict(query.params))
        return stream, stream.fetch()
    except Exception as error:
        if "Streaming query is not supported" in str(error):
            return None
        raise


def _streamed(stream: Stream, handle: Any, sql: str, form: str, query: Query, started: int) -> Result:
    try:
        if stream.empty:
            empty = _empty_native(handle, query, sql) if form.lower() == "native" else b""
            stream.close()
            return Result(form, _summary(started), empty)
        if query.whole:
            return Result(form, _summary(started), b"".join(stream))
    except BaseException:
        stream.close()
        raise
    return Result(form, _summary(started), pieces=stream)


def _whole(engine: Engine, handle: Any, sql: str, form: str | None, query: Query, started: int) -> Result:
    found = handle.query(sql, form or "TabSeparated", params=dict(query.params))
    data = found.bytes() or b""
    if len(data) > _byte_limit(engine, query):
        raise _too_large()
    return Result(form, _summary(started, read_rows=found.rows_read(), read_bytes=found.bytes_read()), data)


def _byte_limit(engine: Engine, query: Query) -> int:
    return engine.settings.reader.result_bytes if query.reader else engine.settings.writer.result_bytes


def _too_large() -> Exception:
    return refusal(396, "TOO_MANY_ROWS_OR_BYTES", "Limit for result exceeded: ask for fewer columns or rows, or use LIMIT")


def _empty_native(handle: Any, query: Query, sql: str) -> bytes:
    """The header block of an empty Native result: chDB gives no bytes, a server gives names and types."""
    clause = format_clause(query.text.strip())
    inner = query.text.strip()[: clause[1]].decode("utf-8", "surrogateescape") if clause else sql.rstrip("; \n")
    described = handle.query(f"DESCRIBE TABLE ({inner})", "JSONCompactEachRow", params=dict(query.params)).bytes() or b""
    columns = [orjson.loads(line) for line in described.splitlines()]
    return _varint(len(columns)) + _varint(0) + b"".join(_text(c[0]) + _text(c[1]) for c in columns)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _text(value: str) -> bytes:
    data = value.encode()
    return _varint(len(data)) + data


def _summary(started: int, **counts: int) -> dict[str, str]:
    zero = ("read_rows", "read_bytes", "written_rows", "written_bytes", "total_rows_to_read", "result_rows", "result_bytes")
    elapsed = {"elapsed_ns": str(time.perf_counter_ns() - started)}
    return {**dict.fromkeys(zero, "0"), **elapsed, **{name: str(count) for name, count in counts.items()}}
