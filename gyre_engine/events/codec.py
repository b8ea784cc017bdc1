"""The msgpack codec of events: a frozen dataclass to a map of plain values and back.

Arrays travel as msgpack `bin` (little-endian int32, float32, float64 or uint8), enums as their values, nested records as maps,
tuples as arrays.
Unknown fields are ignored on decoding (they stay readable in the raw event); a missing field takes its default.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgpack
import numpy as np
import numpy.typing as npt

Fields = dict[str, Any]
T = TypeVar("T")

Int32 = Annotated[npt.NDArray[np.int32], "<i4"]
Float32 = Annotated[npt.NDArray[np.float32], "<f4"]
Float64 = Annotated[npt.NDArray[np.float64], "<f8"]
UInt8 = Annotated[npt.NDArray[np.uint8], "u1"]


class CodecError(ValueError):
    """Bytes or fields that are not an event of the named type; the text says which field and why."""


def pack(fields: Fields) -> bytes:
    """Fields of plain values as msgpack bytes."""
    return typing.cast(bytes, msgpack.packb(fields, use_bin_type=True))


def unpack(data: bytes) -> Fields:
    """The map that `data` holds. Raises CodecError where it is not one msgpack map."""
    try:
        fields = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise CodecError(f"not msgpack: {error!s:.200}") from error
    if not isinstance(fields, dict):
        raise CodecError(f"expected a map, got {type(fields).__name__}")
    return fields


def to_fields(record: Any) -> Fields:
    """A dataclass instance as a map of plain values, in field order."""
    return {name: encode(getattr(record, name)) for name, encode, _ in _plan(type(record))}


def from_fields(cls: type[T], fields: Fields) -> T:
    """The `cls` that `fields` describe. Raises CodecError naming the class and the field."""
    values: dict[str, Any] = {}
    for name, _, decode in _plan(cls):
        if name not in fields:
            continue
        try:
            values[name] = decode(fields[name])
        except (TypeError, ValueError, KeyError) as error:
            raise CodecError(f"{cls.__name__}.{name}: {error!s:.200}") from error
    try:
        return cls(**values)
    except TypeError as error:
        raise CodecError(f"{cls.__name__}: {error}") from error


Encode = Callable[[Any], Any]


_Plan = tuple[tuple[str, Encode, Encode], ...]
_PLANS: dict[Any, _Plan] = {}


def _plan(cls: Any) -> _Plan:
    plan = _PLANS.get(cls)
    if plan is None:
        plan = _PLANS[cls] = _make_plan(cls)
    return plan


def _make_plan(cls: Any) -> _Plan:
    if not dataclasses.is_dataclass(cls):
        raise CodecError(f"{cls!r} is not an event or a record")
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple((f.name, *_codec(hints[f.name])) for f in dataclasses.fields(cls))


def _same(value: Any) -> Any:
    return value


def _codec(hint: Any) -> tuple[Encode, Encode]:
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return _array(hint.__metadata__[0])
    if origin in (types.UnionType, typing.Union):
        return _optional(hint)
    if origin is tuple:
        return _tuple(typing.get_args(hint))
    if origin is dict:
        encode, decode = _codec(typing.get_args(hint)[1])
        return (lambda d: {k: encode(v) for k, v in d.items()}), (lambda d: {k: decode(v) for k, v in d.items()})
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return (lambda e: e.value), hint
    if dataclasses.is_dataclass(hint):
        record = typing.cast(type, hint)
        return to_fields, (lambda f: from_fields(record, f))
    return _plain(hint)


def _plain(hint: Any) -> tuple[Encode, Encode]:
    if hint not in (str, int, float, bool, bytes):
        raise CodecError(f"no codec for {hint!r}: use plain values, tuples, dicts, enums, records or Int32/Float32 arrays")

    def check(value: Any) -> Any:
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
            raise TypeError(f"expected {hint.__name__}, got {type(value).__name__}")
        return value

    return _same, check


def _array(dtype: str) -> tuple[Encode, Encode]:
    return (
        lambda a: np.ascontiguousarray(a, dtype=dtype).tobytes(),
        lambda b: np.frombuffer(b, dtype=dtype),
    )


def _optional(hint: Any) -> tuple[Encode, Encode]:
    inner = [a for a in typing.get_args(hint) if a is not type(None)]
    if len(inner) != 1:
        raise CodecError(f"no codec for the union {hint!r}")
    encode, decode = _codec(inner[0])
    return (lambda v: None if v is None else encode(v)), (lambda v: None if v is None else decode(v))


def _tuple(args: tuple[Any, ...]) -> tuple[Encode, Encode]:
    if len(args) == 2 and args[1] is Ellipsis:
        encode, decode = _codec(args[0])
        return (lambda t: [encode(v) for v in t]), (lambda t: tuple(decode(v) for v in t))
    codecs = [_codec(a) for a in args]

    def decode_fixed(values: Any) -> tuple[Any, ...]:
        return tuple(codec[1](v) for codec, v in zip(codecs, values, strict=True))

    return (lambda t: [codec[0](v) for codec, v in zip(codecs, t, strict=True)]), decode_fixed
