"""Reading JSON bodies as the real servers do: whatever JSON allows, and U+FFFD for what no text can hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from gyre_engine.trees.conversation import Message
from producers.proxy.exchange import malformed
from producers.proxy.histories import Reader

NOTED = 16
"""How many ignored things a record names."""


def load(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. A lone surrogate in a string becomes U+FFFD. Raises ProxyError (400)."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        fields = _mended(body, error)
    if not isinstance(fields, dict):
        raise malformed(f"the body must be a JSON object, not {type(fields).__name__}")
    return fields


def require_flat(value: Any, where: str) -> None:
    """What is nested deeper than can be written again is refused before anybody recurses into it. Raises ProxyError (400)."""
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise malformed(f"{where} cannot be taken, for it is nested too deeply: {error}", where) from error


def flat(read: Reader, where: str) -> Reader:
    """`read`, which is given flat items alone. Only what is new is looked at."""

    def checked(raw: Sequence[Any], start: int) -> Iterable[tuple[Message, int]]:
        require_flat(raw[start:], where)
        return read(raw, start)

    return checked


def few(notes: Iterable[str]) -> tuple[str, ...]:
    """Notes as a record holds them: each once, and not without end."""
    found = list(dict.fromkeys(notes))
    more = (f"and {len(found) - NOTED} more",) if len(found) > NOTED else ()
    return (*found[:NOTED], *more)


def text(value: Any) -> str:
    """A string as it is; anything else is nothing."""
    return value if isinstance(value, str) else ""


def spelled(value: Any, *, sort: bool = False) -> str:
    """A value where a text is wanted, the same in every dialect: as chat templates write one themselves."""
    return json.dumps(value, ensure_ascii=False, sort_keys=sort)


def limit(fields: dict[str, Any], *names: str) -> int | None:
    """The first of these fields that limits the answer's tokens, None where none does. Raises ProxyError (400)."""
    for name in names:
        found = fields.get(name)
        if found is None:
            continue
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise malformed(f"{name} must be an integer of at least 1", name)
        return found
    return None


def model_of(fields: dict[str, Any]) -> str:
    """The model that is asked for. Raises ProxyError (400)."""
    if not isinstance(fields.get("model"), str):
        raise malformed("you must provide a model parameter", "model")
    return str(fields["model"])


def ignored(fields: dict[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """Notes of the fields that are given and do not count here."""
    return tuple(f"{name} ignored" for name in names if _says_something(fields.get(name)))


def _says_something(value: Any) -> bool:
    """Whether a field asks for anything; 0 does, though it equals False."""
    return value is not None and value is not False and value not in ([], "auto")


def _mended(body: bytes, error: Exception) -> Any:
    """What orjson refuses but JSON allows: escapes of lone surrogates, which become U+FFFD."""
    try:
        return _whole(json.loads(body, parse_int=_number, parse_constant=_no_json))
    except (ValueError, RecursionError):
        raise malformed(f"the body is not valid JSON: {error}") from error


def _number(digits: str) -> int | float:
    """An integer as orjson reads it: beyond 64 bits it is a float."""
    value = int(digits) if len(digits) <= 20 else float(digits)
    return value if -(1 << 63) <= value < 1 << 64 else float(digits)


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return value
