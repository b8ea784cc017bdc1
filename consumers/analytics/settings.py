"""What analytics takes from the config."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

DATABASE = "gyre"
WRITER = "writer"


@dataclass(frozen=True, slots=True)
class AnalyticsSettings:
    """`url` names a ClickHouse server of yours; without one this process owns chDB at `path` and serves it on `host:port`
    (0: a free port; `query.running` finds it).

    `password` is the writer's; a user and a password in `url` take precedence. `flush_seconds`: how long an event may wait for
    others to share its insert. `share`: the part of one core that inserting may take; waits grow where it would take more, up to
    `flush_limit_seconds`.
    """

    path: Path | None = None
    url: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    database: str = DATABASE
    password: str = field(default="", repr=False)
    flush_seconds: float = 0.5
    flush_limit_seconds: float = 5.0
    flush_rows: int = 5_000
    flush_bytes: int = 32 << 20
    share: float = 0.08
    insert_retry_seconds: float = 60.0


def url_file(path: Path) -> Path:
    """The file in which the owner of a folder says where it answers."""
    return path.with_name(path.name + ".url")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a client connects, and as whom."""

    host: str
    port: int
    secure: bool
    user: str
    password: str = field(repr=False)
    database: str


def address(url: str, *, user: str, password: str, database: str) -> Address:
    """An Address of `http[s]://[user[:password]@]host[:port][/database]`. Raises ValueError naming what is wrong."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"clickhouse.url must look like http://host:8123, not {parts.scheme}://{parts.hostname or ''}")
    secure = parts.scheme == "https"
    return Address(
        host=parts.hostname,
        port=parts.port or (8443 if secure else 8123),
        secure=secure,
        user=unquote(parts.username) if parts.username else user,
        password=unquote(parts.password) if parts.password else password,
        database=parts.path.strip("/") or database,
    )
