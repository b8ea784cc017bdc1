"""The one owner of a chDB folder: its configuration, its lock, its handles.

One process holds a folder, and a process holds one folder: chDB allows no more. Handles are cheap (half a millisecond), so every
statement gets a fresh one with its user's limits; nothing that one statement sets is seen by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chdb

from consumers.analytics.embedded.errors import from_engine, refusal

VERSION: str = chdb.engine_version
GRANTS = (
    "SELECT, INSERT, ALTER, CREATE DATABASE, CREATE TABLE, CREATE VIEW, DROP, TRUNCATE, OPTIMIZE, SHOW, CHECK, KILL QUERY ON *.*",
    *(f"TABLE ENGINE ON {engine}" for engine in ("MergeTree", "ReplacingMergeTree", "AggregatingMergeTree", "SummingMergeTree")),
    *(f"TABLE ENGINE ON {engine}" for engine in ("View", "MaterializedView", "Memory", "Null")),
)
"""What the engine lets anybody do. No source (file, url, s3, remote ...) is granted: those end with code 497."""
PINNED = {
    "input_format_values_interpret_expressions": "0",
    "input_format_values_deduce_templates_of_expressions": "0",
    "implicit_select": "0",
    "async_insert": "0",
}
"""Settings that no statement may change: VALUES are not evaluated, text is not made a SELECT, an insert is done when it returns."""

FORBIDDEN = frozenset({"file", "python", "arrowstream", "executable", "eval", "infile", "outfile"})
"""Names that reach outside the database and that no grant covers in chDB; the AI functions are added by name."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one statement may use."""

    seconds: float = 30.0
    result_rows: int = 1_000_000
    result_bytes: int = 256 << 20
    memory_bytes: int = 1 << 30
    threads: int = 1

    def settings(self) -> dict[str, str]:
        """As ClickHouse's settings."""
        return {
            "max_execution_time": str(self.seconds),
            "max_result_rows": str(self.result_rows),
            "max_result_bytes": str(self.result_bytes),
            "max_memory_usage": str(self.memory_bytes),
            "max_threads": str(self.threads),
        }


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Where the data lie, and what statements of readers and of the writer may use."""

    path: Path
    database: str = "gyre"
    reader: Limits = field(default_factory=Limits)
    writer: Limits = field(default_factory=lambda: Limits(seconds=120.0, result_rows=0, result_bytes=1 << 30))
    memory_bytes: int = 2 << 30


class FolderInUse(RuntimeError):
    """Another process (or another folder in this one) has the engine; the text says what to do."""


class Engine:
    """chDB on one folder. `handle()` gives what runs statements; `close()` ends it."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        settings.path.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(settings.path)
        self._uri = f"{settings.path}?config-file={_write_config(settings)}"
        try:
            self._root = chdb.connect(self._uri)
        except Exception as error:
            os.close(self._lock)
            raise FolderInUse(_why_not(settings.path, error)) from error
        self._root.query(f"CREATE DATABASE IF NOT EXISTS {quote_name(settings.database)}")
        self.forbidden = FORBIDDEN | self._ai_functions()

    def _ai_functions(self) -> frozenset[str]:
        found = self._root.query("SELECT DISTINCT lower(name) FROM system.functions WHERE name ILIKE 'ai%'", "TSV")
        return frozenset(found.bytes().decode().split())

    @contextlib.contextmanager
    def handle(self, settings: Mapping[str, str], database: str | None, *, read_only: bool) -> Iterator[Any]:
        """A fresh handle with these settings, closed at the end."""
        handle = self.open_handle(settings, database, read_only=read_only)
        try:
            yield handle
        finally:
            handle.close()

    def open_handle(self, settings: Mapping[str, str], database: str | None, *, read_only: bool) -> Any:
        """As `handle`, for a stream: the caller closes it, after the stream."""
        handle = chdb.connect(self._uri)
        try:
            limits = self.settings.reader if read_only else self.settings.writer
            merged = {**limits.settings(), **settings}
            handle.query("SET " + ", ".join(f"{name} = {quote(value)}" for name, value in merged.items()))
            handle.query(f"USE {quote_name(database or self.settings.database)}")
            if read_only:
                handle.query("SET readonly = 1")
        except Exception as error:
            handle.close()
            raise from_engine(error) from error
        return handle

    def close(self) -> None:
        """Give the folder back."""
        self._root.close()
        os.close(self._lock)


def quote(value: str) -> str:
    """A string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quote_name(name: str) -> str:
    """A quoted identifier."""
    if not name or "\0" in name:
        raise refusal(62, "SYNTAX_ERROR", "An empty or broken name of a database")
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def _lock(path: Path) -> int:
    """A lock of our own: chDB's message on a folder that another process holds does not say so."""
    handle = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise FolderInUse(
            f"the ClickHouse folder {path} is open already: stop the stack that owns it, or ask that one (clickhouse.url)"
        ) from error
    return handle


def _why_not(path: Path, error: Exception) -> str:
    text = str(error).lower()
    if "already" in text or "different" in text:
        return f"this process holds another ClickHouse folder and can hold only one ({path} was asked for): use a second process"
    return f"cannot open the ClickHouse folder {path}: {from_engine(error)}"


def _write_config(settings: EngineSettings) -> Path:
    folder = settings.path.with_name(settings.path.name + ".config").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    pinned = "".join(f"<{name}>{value}</{name}>" for name, value in PINNED.items())
    fixed = "".join(f"<{name}><const/></{name}>" for name in PINNED)
    grants = "".join(f"<query>GRANT {grant}</query>" for grant in GRANTS)
    (folder / "users.xml").write_text(
        f"<clickhouse><quotas><default/></quotas><profiles><default>{pinned}<constraints>{fixed}</constraints></default></profiles>"
        "<users><default><password/><networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>"
        f"<grants>{grants}</grants></default></users></clickhouse>\n"
    )
    config = folder / "config.xml"
    config.write_text(
        f"<clickhouse><users_config>{folder}/users.xml</users_config><logger><level>none</level></logger>"
        f"<max_server_memory_usage>{settings.memory_bytes}</max_server_memory_usage>"
        "<access_control_improvements><table_engines_require_grant>1</table_engines_require_grant></access_control_improvements>"
        "</clickhouse>\n"
    )
    return config
