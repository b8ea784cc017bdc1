"""What a user may run.

Three lines stand behind each other. The engine grants nobody a source (file, url, s3 ...) and runs a reader's statement under
`readonly = 1`. The engine's own parser says what kind of statement it is, and that it is one. And the names that neither covers -
the scalar `file('/etc/passwd')`, `Python(object)`, INTO OUTFILE, FROM INFILE, the `ai*` functions - are refused wherever they stand
as a name: called, given to APPLY, passed as a lambda, or put in by an Identifier parameter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from consumers.analytics.embedded.engine import quote
from consumers.analytics.embedded.errors import denied, from_engine, read_only, refusal
from consumers.analytics.embedded.statement import names, tokens

_FUNCTION = re.compile(r"^\s*Function (\S+)", re.MULTILINE)
_CURLY = re.compile(rb"\xe2\x80[\x98\x99\x9c\x9d]")
_WRITER_CONTROLS = (b"SET", b"USE", b"KILL", b"ALTER", b"EXCHANGE")


class Kind(Enum):
    """What a statement does."""

    READ = "read"
    WRITE = "write"
    CONTROL = "control"


def check(handle: Any, sql: str, params: Mapping[str, str], *, forbidden: frozenset[str], reader: bool) -> Kind:
    """The kind of `sql`, if its user may run it. Raises ClickHouseError: 62 (not one statement), 164 (read-only), 497 (denied)."""
    kind = _kind(handle, sql)
    if reader and kind is not Kind.READ:
        raise read_only("Cannot execute query in readonly mode")
    _check_names(sql, params, forbidden)
    if kind is Kind.CONTROL and not _is_harmless_control(sql):
        raise denied("This statement is not offered by the embedded server")
    if kind is not Kind.CONTROL and _mentions(sql, params, forbidden):
        _check_tree(handle, sql, params, forbidden)
    return kind


def _kind(handle: Any, sql: str) -> Kind:
    found = handle._conn.classify_query(sql, "")
    if found["statement_count"] > 1:
        raise refusal(62, "SYNTAX_ERROR", "Multi-statements are not allowed")
    name = found["query_class"].name
    if name == "UNKNOWN" or found["statement_count"] == 0:
        raise _syntax_error(handle, sql)
    return {"READ_ONLY": Kind.READ, "MUTATING": Kind.WRITE, "MUTATING_GLOBAL": Kind.WRITE}.get(name, Kind.CONTROL)


def _syntax_error(handle: Any, sql: str) -> Exception:
    try:
        handle.query(f"SELECT formatQuery({quote(sql)})", "TSV")
    except Exception as error:
        return from_engine(error)
    return refusal(62, "SYNTAX_ERROR", "Cannot parse the statement")


def _is_harmless_control(sql: str) -> bool:
    first = next(tokens(sql.encode("utf-8", "surrogateescape")), None)
    return first is not None and first.says(*_WRITER_CONTROLS)


def _check_names(sql: str, params: Mapping[str, str], forbidden: frozenset[str]) -> None:
    text = sql.encode("utf-8", "surrogateescape")
    for token in tokens(text):
        if token.kind == "quoted" and b"\\" in token.text:
            raise denied("Quoted names with a backslash are not allowed")
        if token.kind in ("word", "other") and _CURLY.search(token.text):
            raise denied("Typographic quotes are not allowed outside of strings")
    used = names(text) | {value.strip('`"').lower() for value in params.values()}
    if bad := used & forbidden:
        raise denied(f"The name {sorted(bad)[0]} is not allowed here: it reaches outside of the database")


def _mentions(sql: str, params: Mapping[str, str], forbidden: frozenset[str]) -> bool:
    text = sql.lower()
    return "\\" in text or any(word in text for word in forbidden) or any("\\" in value for value in params.values())


def _check_tree(handle: Any, sql: str, params: Mapping[str, str], forbidden: frozenset[str]) -> None:
    try:
        tree = handle.query("EXPLAIN AST " + sql, "TSVRaw", params=dict(params)).bytes().decode("utf-8", "replace")
    except Exception as error:
        raise from_engine(error) from error
    if bad := {name.lower() for name in _FUNCTION.findall(tree)} & forbidden:
        raise denied(f"The function {sorted(bad)[0]} is not allowed")
