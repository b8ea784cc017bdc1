"""The tables as the ingest sees them: made and mended at start, written in deduplicated blocks, asked for their own positions.

promises  one insert is one block under the token `topic-partition:first-last...`; sent again it is dropped, cut otherwise it is
          replaced by event id: rows never count twice
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Sequence

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError

from consumers.analytics.rows import insert_body
from consumers.analytics.schema import Table, tables
from consumers.analytics.settings import Address
from consumers.analytics.views import create_views
from gyre_engine.events import Recorded
from gyre_engine.log.names import RUNS

log = logging.getLogger(__name__)
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())  # errors are raised, and told once


ROWS_AT_FAULT = frozenset({6, 26, 27, 33, 38, 41, 53, 69, 70, 72, 117, 130, 131, 321, 349})
"""Codes that say that a row cannot be read as the table's columns."""
PASSING = frozenset({159, 160, 202, 209, 210, 241, 242, 252, 999})
"""Codes that say that the server is busy, full or away."""


class RowsRefused(ValueError):
    """ClickHouse cannot read a row of this batch as the table's columns; the text is ClickHouse's."""


class StoreUnavailable(RuntimeError):
    """ClickHouse did not take an insert within the limit; the text says which server, which table, and its last answer."""


def connect(at: Address, *, timeout: int = 60) -> Client:
    """A client of this server. Raises OperationalError where it does not answer."""
    return clickhouse_connect.get_client(
        host=at.host,
        port=at.port,
        secure=at.secure,
        username=at.user,
        password=at.password,
        database=at.database,
        send_receive_timeout=timeout,
        connect_timeout=10,
        autogenerate_session_id=False,
        compress=False,
    )


class Store:
    """The tables of one database."""

    def __init__(self, at: Address, *, retry_seconds: float = 60.0) -> None:
        self._at = at
        self._retry_seconds = retry_seconds
        self._client = connect(at)

    def prepare(self) -> None:
        """Create what is missing, add columns that the code has and the tables lack, and bring every view up to date."""
        have = self._columns()
        for table in tables().values():
            if table.raw_name not in have:
                self._client.command(table.create())
            for name, kind in _missing(table, have.get(table.raw_name)):
                self._client.command(f"ALTER TABLE `{table.raw_name}` ADD COLUMN IF NOT EXISTS `{name}` {kind}")
            self._client.command(table.create_view())
        for statement in create_views():
            self._client.command(statement)

    def _columns(self) -> dict[str, set[str]]:
        """The columns that each table has now."""
        found = self._client.query(
            "SELECT table, groupArray(name) FROM system.columns WHERE database = {db:String} GROUP BY table",
            parameters={"db": self._at.database},
        )
        return {table: set(names) for table, names in found.result_rows}

    def positions(self, run: str, ends: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """The next offset to read, a partition: the table's own maximum + 1 (log-rules, 17). A log that ends before it is
        another log under the same name, and is read from its beginning; so is always the short list of runs, which is compacted
        and may come from several logs."""
        start: dict[tuple[str, int], int] = {}
        for topic in {topic for topic, _ in ends} - {RUNS}:
            for partition, following in self._maxima(topic, run):
                end = ends.get((topic, partition))
                if end is not None and following <= end:
                    start[topic, partition] = following
        return start

    def _maxima(self, topic: str, run: str) -> Iterable[Sequence[int]]:
        table = tables()[topic].raw_name
        sql = f"SELECT partition, max(offset) + 1 FROM `{table}` WHERE run = {{run:String}} GROUP BY partition"  # noqa: S608 - a name of our own
        return self._client.query(sql, parameters={"run": run}).result_rows

    def insert(self, topic: str, records: Sequence[Recorded]) -> None:
        """Insert these events, each partition in order. Tries again, with the same token, until `retry_seconds` have passed.
        Raises RowsRefused, or StoreUnavailable."""
        table, body = tables()[topic].raw_name, insert_body(records)
        settings = {"insert_deduplication_token": token(topic, records)}
        end = time.monotonic() + self._retry_seconds
        wait = 0.1
        while True:
            try:
                self._client.raw_insert(table, insert_block=body, fmt="JSONEachRow", settings=settings)
                return
            except (ClickHouseError, OSError) as error:
                self._give_up_on(error, f"{len(records)} rows of {table}", past=time.monotonic() + wait > end)
            time.sleep(wait)
            wait = min(wait * 2, 5.0)

    def _give_up_on(self, error: Exception, what: str, *, past: bool) -> None:
        """Raise where trying again cannot help, or has gone on for too long."""
        code = error_code(error)
        if code in ROWS_AT_FAULT:
            raise RowsRefused(f"{what}: {error}") from error
        passing = code in PASSING or (code is None and isinstance(error, OperationalError | OSError))
        where = f"ClickHouse at {self._at.host}:{self._at.port}"
        if past or not passing:
            raise StoreUnavailable(f"{where} did not take {what}: {error}") from error
        log.warning("%s is away, trying again: %s", where, type(error).__name__)

    def close(self) -> None:
        self._client.close()


def _missing(table: Table, have: set[str] | None) -> list[tuple[str, str]]:
    return [] if have is None else [(name, kind) for name, kind in table.definitions() if name not in have]


def error_code(error: Exception) -> int | None:
    """ClickHouse's code of an error that a client raised, or None where no server spoke."""
    match = re.search(r"\bcode: (\d+)", str(error), re.IGNORECASE)
    return int(match[1]) if match else None


def token(topic: str, records: Sequence[Recorded]) -> str:
    """The name of a batch: its topic, its first and last offset in each partition, and its first event (another log under the same
    name has other events at these offsets)."""
    ranges: dict[int, tuple[int, int]] = {}
    for record in records:
        first, _ = ranges.get(record.partition, (record.offset, 0))
        ranges[record.partition] = (first, record.offset)
    return "-".join(
        [records[0].run, topic, *(f"{p}:{first}-{last}" for p, (first, last) in sorted(ranges.items())), records[0].id]
    )
