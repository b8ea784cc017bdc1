"""Hypothesis strategies for events of every type, made from their fields."""

import dataclasses
import typing

import numpy as np
from hypothesis import strategies as st

from gyre_engine.events import event_types

DTYPES = {"<i4": np.int32, "<f4": np.float32, "<f8": np.float64, "u1": np.uint8}


def values(hint):
    """A hypothesis strategy for a field of this type, its awkward values included."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        dtype = DTYPES[hint.__metadata__[0]]
        numbers = st.integers(0, 255) if dtype is np.uint8 else st.integers(-5, 1 << 20)
        return st.lists(numbers, max_size=4).map(lambda v: np.array(v, dtype=dtype))
    if type(None) in args:
        return st.none() | values(next(a for a in args if a is not type(None)))
    if origin is tuple and args[1:] == (...,):
        return st.lists(values(args[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, args))
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), values(args[1]), max_size=2)
    if dataclasses.is_dataclass(hint):
        return instances(hint)
    plain = {
        str: st.text(st.characters(exclude_categories=("Cs",)), max_size=12),
        int: st.integers(-(2**40), 2**62),
        float: st.floats(),
        bool: st.booleans(),
        bytes: st.binary(max_size=8),
    }
    return plain.get(hint) if hint in plain else st.sampled_from(list(hint))


def instances(cls):
    hints = typing.get_type_hints(cls, include_extras=True)
    return st.builds(cls, **{f.name: values(hints[f.name]) for f in dataclasses.fields(cls)})


def events():
    return st.sampled_from(sorted(event_types().values(), key=lambda c: c.TYPE)).flatmap(instances)
