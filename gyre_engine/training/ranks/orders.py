"""Orders between the ranks of a cell as msgpack: plain values, tuples, arrays as bytes, enums, and this package's dataclasses by name.

Nothing else crosses, and reading runs no code but the constructors of those dataclasses.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
from typing import Any

import msgpack
import numpy as np

_TUPLE, _ARRAY, _ENUM, _RECORD = range(4)
_PACKAGE = "gyre_engine."


class BadOrder(ValueError):
    """Something that does not cross between ranks, or bytes that are no order; the text names it."""


def encode(value: Any) -> bytes:
    """Raises BadOrder for a value of another kind."""
    packed: bytes = msgpack.packb(value, default=_extension, strict_types=True)
    return packed


def decode(data: bytes) -> Any:
    """What `encode` was given. Raises BadOrder."""
    return msgpack.unpackb(data, ext_hook=_value, strict_map_key=False)


def _extension(value: Any) -> msgpack.ExtType:
    match value:
        case tuple():
            return msgpack.ExtType(_TUPLE, encode(list(value)))
        case np.ndarray() if not value.dtype.hasobject:
            return msgpack.ExtType(_ARRAY, encode([value.dtype.str, list(value.shape), value.tobytes()]))
        case enum.Enum():
            return msgpack.ExtType(_ENUM, encode([_name(type(value)), value.value]))
        case _ if dataclasses.is_dataclass(value) and type(value).__module__.startswith(_PACKAGE):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
            return msgpack.ExtType(_RECORD, encode([_name(type(value)), fields]))
    raise BadOrder(f"{type(value).__module__}.{type(value).__qualname__} does not cross between the ranks of a cell")


def _value(code: int, data: bytes) -> Any:
    content = decode(data)
    if code == _TUPLE:
        return tuple(content)
    if code == _ARRAY:
        kind, shape, raw = content
        return np.frombuffer(raw, dtype=kind).reshape(shape).copy()
    if code not in (_ENUM, _RECORD):
        raise BadOrder(f"extension {code} is not of this protocol")
    name, given = content
    return _kind(name)(**given) if code == _RECORD else _kind(name)(given)


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _kind(name: str) -> Any:
    module, _, path = name.partition(":")
    found = getattr(importlib.import_module(module), path, None) if module.startswith(_PACKAGE) else None
    if not isinstance(found, type) or not (dataclasses.is_dataclass(found) or issubclass(found, enum.Enum)):
        raise BadOrder(f"{name!r} is no record or enum of this package")
    return found
