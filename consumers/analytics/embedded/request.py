"""An HTTP request as ClickHouse's clients make it, parsed into a Query: who asks, what, with which parameters and settings."""

from __future__ import annotations

import base64
import binascii
import email.parser
import email.policy
import hmac
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import lz4.frame
import zstandard
from starlette.requests import Request

from consumers.analytics.embedded.engine import Limits
from consumers.analytics.embedded.errors import read_only, refusal
from consumers.analytics.embedded.execution import Query

TRANSPORT = frozenset(
    {
        "query",
        "database",
        "user",
        "password",
        "session_id",
        "session_timeout",
        "session_check",
        "query_id",
        "quota_key",
        "compress",
        "decompress",
        "wait_end_of_query",
        "client_protocol_version",
        "role",
        "buffer_size",
        "send_progress_in_http_headers",
        "enable_http_compression",
        "http_headers_progress_interval_ms",
        "http_write_exception_in_output_format",
        "cancel_http_readonly_queries_on_client_close",
        "default_format",
        "stacktrace",
        "http_zlib_compression_level",
    }
)
"""Names in a URL that are not settings of the statement."""
_SETTING = re.compile(r"[A-Za-z_]\w*")
_LOWERABLE = {
    "max_execution_time": "seconds",
    "max_result_rows": "result_rows",
    "max_result_bytes": "result_bytes",
    "max_memory_usage": "memory_bytes",
    "max_threads": "threads",
}


@dataclass(frozen=True, slots=True)
class Users:
    """Who may connect. Readers need no password unless one is given; without a writer's password nobody can write."""

    writer_password: str | None = field(default=None, repr=False)
    reader_password: str = field(default="", repr=False)
    writer: str = "writer"
    readers: tuple[str, ...] = ("default", "reader")

    def is_reader(self, name: str, password: str) -> bool:
        """True for a reader, False for the writer. Raises ClickHouseError 516 for anybody else."""
        if name in self.readers and hmac.compare_digest(self.reader_password.encode(), password.encode()):
            return True
        known = self.writer_password is not None and name == self.writer
        if known and hmac.compare_digest((self.writer_password or "").encode(), password.encode()):
            return False
        raise refusal(
            516,
            "AUTHENTICATION_FAILED",
            f"{name}: Authentication failed: password is incorrect, or there is no user with such name",
        )


class _Decoder(Protocol):
    def decompress(self, data: bytes) -> bytes: ...


def _decoder(encoding: str) -> _Decoder | None:
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip"):
        return zlib.decompressobj(31)
    if encoding == "deflate":
        return zlib.decompressobj()
    if encoding == "lz4":
        frame: _Decoder = lz4.frame.LZ4FrameDecompressor()
        return frame
    if encoding == "zstd":
        zstd: _Decoder = zstandard.ZstdDecompressor().decompressobj(read_across_frames=True)
        return zstd
    raise refusal(48, "NOT_IMPLEMENTED", f"Unknown Content-Encoding {encoding}: use gzip, deflate, lz4 or zstd")


async def read_body(request: Request, limit: int) -> bytes:
    """The body, decompressed. Raises ClickHouseError 162 above `limit` bytes."""
    decoder = _decoder(request.headers.get("content-encoding", "").strip().lower())
    parts: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        try:
            data = decoder.decompress(chunk) if decoder and chunk else chunk
        except (zlib.error, RuntimeError, zstandard.ZstdError) as error:
            raise refusal(354, "CANNOT_DECOMPRESS", f"The body is not {request.headers['content-encoding']}: {error}") from error
        size += len(data)
        if size > limit:
            raise refusal(162, "QUERY_IS_TOO_LARGE", f"The body is larger than {limit} bytes: send several inserts")
        parts.append(data)
    return b"".join(parts)


def credentials(request: Request) -> tuple[str, str]:
    """User and password: of the headers, the URL, or Basic authorization."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise refusal(516, "AUTHENTICATION_FAILED", "The Authorization header is not Basic base64") from error
        return user or "default", password
    if "x-clickhouse-user" in request.headers:
        return request.headers["x-clickhouse-user"], request.headers.get("x-clickhouse-key", "")
    return request.query_params.get("user", "default"), request.query_params.get("password", "")


def form_fields(content_type: str, body: bytes) -> dict[str, str]:
    """The plain fields of a multipart form. Raises ClickHouseError 48 where it carries files (external tables)."""
    parser = email.parser.BytesParser(policy=email.policy.HTTP)
    message = parser.parsebytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    fields: dict[str, str] = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        if part.get_filename() is not None:
            raise refusal(48, "NOT_IMPLEMENTED", "External tables are not supported by the embedded server")
        payload: Any = part.get_payload(decode=True)
        fields[str(name)] = bytes(payload or b"").decode("utf-8", "surrogateescape")
    return fields


async def parse(request: Request, users: Users, reader_limits: Limits, database: str, body_limit: int) -> Query:
    """The Query that a request asks for. Raises ClickHouseError."""
    reader = users.is_reader(*credentials(request))
    fields = dict(request.query_params)
    body = await read_body(request, body_limit)
    content_type = request.headers.get("content-type", "")
    if content_type.startswith("multipart/form-data"):
        fields |= form_fields(content_type, body)
        body = b""
    return Query(
        text=_text(fields.get("query", ""), body),
        reader=reader or request.method != "POST",
        database=_database(request, fields, database),
        default_format=fields.get("default_format") or request.headers.get("x-clickhouse-format") or "TabSeparated",
        params={name[6:]: value for name, value in fields.items() if name.startswith("param_")},
        settings=_settings(fields, reader_limits if reader else None),
        whole=fields.get("wait_end_of_query") == "1",
    )


def _text(query: str, body: bytes) -> bytes:
    head = query.encode("utf-8", "surrogateescape")
    return head + b"\n" + body if head and body else head or body


def _database(request: Request, fields: Mapping[str, str], own: str) -> str:
    asked = fields.get("database") or request.headers.get("x-clickhouse-database") or own
    return own if asked == "default" else asked


def _settings(fields: Mapping[str, str], limits: Limits | None) -> dict[str, str]:
    found = {name: value for name, value in fields.items() if name not in TRANSPORT and not name.startswith("param_")}
    for name, value in found.items():
        if not _SETTING.fullmatch(name):
            raise refusal(115, "UNKNOWN_SETTING", f"Unknown setting {name}")
        if limits is not None and not _lowers(limits, name, value):
            raise read_only(f"Cannot modify '{name}' setting in readonly mode")
    return found


def _lowers(limits: Limits, name: str, value: str) -> bool:
    """Whether a reader's setting only tightens a limit of theirs (0 would lift it)."""
    if name == "readonly":
        return value in ("1", "2")
    if name not in _LOWERABLE:
        return False
    try:
        return 0 < float(value) <= float(getattr(limits, _LOWERABLE[name]))
    except ValueError:
        return False
