"""A tree of plain values to typed ones. Nothing stops at the first error: what cannot be built is noted, a default stands in."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from dataclasses import dataclass, field
from typing import Any

from gyre_engine.config.problems import Keys, Problem, name_of

_TYPES = {int: "int (a whole number)", float: "float (a number)", str: "str (a text in quotes)", bool: "bool (true or false)"}
_BAD = object()
"""Stands for a value that could not be built."""


@dataclass(slots=True)
class Builder:
    """Builds a dataclass of `schema` and gathers what is wrong on the way."""

    problems: list[Problem] = field(default_factory=list)
    suspects: set[Keys] = field(default_factory=set)
    """Values in whose place defaults stand: no further check should blame them."""

    def build(self, cls: Any, tree: Any, keys: Keys = ()) -> Any:
        """An instance of the dataclass `cls`; defaults for what is missing or wrong."""
        if not isinstance(tree, dict):
            name = name_of(keys)
            return self._wrong(keys, f"{name} must be a section, [{name}], got {tree!r} ({type(tree).__name__})")
        hints, fields = typing.get_type_hints(cls), {f.name: f for f in dataclasses.fields(cls)}
        values = {}
        for key, value in tree.items():
            if key not in fields:
                self._unknown(cls, key, keys, fields)
            elif (built := self._value(hints[key], value, (*keys, key), fields[key])) is not _BAD:
                values[key] = built
        return cls(**values)

    def _wrong(self, keys: Keys, text: str) -> Any:
        self.problems.append(Problem(text, (keys,)))
        self.suspects.add(keys)
        return _BAD

    def _unknown(self, cls: Any, key: str, keys: Keys, fields: dict[str, Any]) -> None:
        near = _nearest(key, fields)
        lacks = f'[{name_of(keys)}] has no key "{key}"' if keys else f'there is no section "{key}"'
        self._wrong((*keys, key), f"{lacks}{_hint(near, fields, 'It has' if keys else 'There are')}")
        if near:
            self.suspects.add((*keys, near))

    def _value(self, hint: Any, value: Any, keys: Keys, of: Any) -> Any:
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if dataclasses.is_dataclass(hint):
            return self.build(hint, value, keys)
        if origin is tuple:
            return self._list(args[0], value, keys, of)
        if origin is dict:
            return self._table(args[1], value, keys, of)
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return value if type(value) is hint else self._wrong_type(keys, _TYPES[hint], value, of)

    def _list(self, hint: Any, value: Any, keys: Keys, of: Any) -> Any:
        if not isinstance(value, list):
            wanted = f"a list of tables: write [[{name_of(keys)}]]" if dataclasses.is_dataclass(hint) else "a list"
            return self._wrong_type(keys, wanted, value, of)
        built = [self._value(hint, each, (*keys, index), of) for index, each in enumerate(value)]
        return tuple(each for each in built if each is not _BAD)

    def _table(self, hint: Any, value: Any, keys: Keys, of: Any) -> Any:
        if not isinstance(value, dict):
            return self._wrong_type(keys, "a table", value, of)
        built = {key: self._value(hint, each, (*keys, key), of) for key, each in value.items()}
        return {key: each for key, each in built.items() if each is not _BAD}

    def _wrong_type(self, keys: Keys, wanted: str, value: Any, of: Any) -> Any:
        doc = of.metadata.get("doc", "").rstrip(".")
        about = f". {name_of(keys[-1:]) or name_of(keys)}: {doc}" if doc else ""
        return self._wrong(keys, f"{name_of(keys)} must be {wanted}, got {value!r} ({type(value).__name__}){about}")


def _nearest(key: str, fields: dict[str, Any]) -> str:
    near = difflib.get_close_matches(key, fields, n=1, cutoff=0.5)
    return near[0] if near else next((f for f in fields if f.replace("_", "") == key.replace("_", "").replace("-", "")), "")


def _hint(near: str, fields: dict[str, Any], has: str) -> str:
    if not near:
        return f". {has}: {', '.join(sorted(fields))}"
    doc = fields[near].metadata.get("doc", "")
    return f'. Did you mean "{near}"' + (f" ({doc.rstrip('.')})" if doc else "") + "?"
