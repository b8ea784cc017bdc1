"""What is wrong with a config, and where it stands: a line a problem, with its file and line where those are known."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

Keys = tuple[str | int, ...]
"""The way to a value: `("batch", "groups")`, or `("data", 0, "path")` in the first [[data]]."""

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_NAME = re.compile(rf"\s*(?:{_PART.pattern})(?:\s*\.\s*(?:{_PART.pattern}))*\s*")


def keys_of(name: str) -> Keys:
    """`batch.groups` as Keys; bare numbers stay words."""
    return tuple(part.strip("\"'") for part in _PART.findall(name))


def is_name(text: str) -> bool:
    """Whether `keys_of` finds every character of it in its place."""
    return _NAME.fullmatch(text) is not None


def name_of(keys: Keys) -> str:
    """Keys as they are written: `batch.groups`, `data.path`."""
    return ".".join(key for key in keys if isinstance(key, str))


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `at`: the values that are to blame, the likeliest first; empty: the config as a whole."""

    text: str
    at: tuple[Keys, ...] = ()


class ConfigError(ValueError):
    """A config that cannot be used. The text has a line a problem: the place, the key, what is wrong, the remedy.

    A plain text stays as it is: it is about a file, not about a key.
    """

    def __init__(self, *problems: Problem | str, source: Source | None = None) -> None:
        self.problems = problems
        super().__init__("\n".join(_line(problem, source) for problem in problems))

    def found_in(self, source: Source) -> ConfigError:
        """The same problems with their places in `source`."""
        return ConfigError(*self.problems, source=source)


def _line(problem: Problem | str, source: Source | None) -> str:
    if isinstance(problem, str):
        return problem
    return f"config error{'' if source is None else ' in ' + source.where(problem.at)}: {problem.text}"


class Source:
    """The text that a config was read from, and the names that `--set` gave: the file is not to blame for those."""

    def __init__(self, path: Path, text: str, given: Iterable[str] = ()) -> None:
        self.path, self.text = path, text
        self.given = frozenset(keys_of(name) for name in given)

    @cached_property
    def lines(self) -> dict[Keys, int]:
        """The line on which each table and each key begins."""
        return key_lines(self.text)

    def where(self, candidates: Sequence[Keys]) -> str:
        """`--set NAME` where that gave one of the candidates or a part of one; else `FILE, line n` of the first that is written
        there, or of the nearest section; or `FILE`."""
        given = [name for keys in candidates for name in self._given(keys)]
        if given:
            return f"--set {name_of(given[0])}".rstrip()
        written = [keys for keys in candidates if keys in self.lines]
        if written:
            return self._line(written[0])
        sections = (keys[:end] for keys in candidates for end in range(len(keys) - 1, 0, -1))
        return next((self._line(section) for section in sections if section in self.lines), str(self.path))

    def _given(self, keys: Keys) -> list[Keys]:
        """What `--set` gave of these keys: they themselves, or something in them that the file has not."""
        if keys in self.given:
            return [keys]
        return [] if keys in self.lines else sorted(name for name in self.given if name[: len(keys)] == keys)

    def _line(self, keys: Keys) -> str:
        return f"{self.path}, line {self.lines[keys]}"


def key_lines(text: str) -> dict[Keys, int]:
    """The line (from 1) on which each table and key of the valid TOML `text` begins. tomllib does not tell."""
    found: dict[Keys, int] = {}
    tables: dict[str, int] = {}
    section: Keys = ()
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        if header := _HEADER.match(line):
            section = _section(keys_of(header[2]), header[1] == "[[", tables)
            found.setdefault(section, number + 1)
        elif key := _KEY.match(line):
            keys = section + keys_of(key[1])
            for end in range(len(section) + 1, len(keys) + 1):
                found.setdefault(keys[:end], number + 1)
            number = _last_line(lines, number, key.end())
        number += 1
    return found


def _section(keys: Keys, listed: bool, tables: dict[str, int]) -> Keys:
    """The way to a section's values; those of a list of tables are numbered."""
    name = str(keys[0])
    if listed and len(keys) == 1:
        tables[name] = tables.get(name, -1) + 1
    return (name, tables[name], *keys[1:]) if name in tables else keys


def _last_line(lines: Sequence[str], first: int, column: int) -> int:
    """The line on which the value ends that begins at `column` of line `first`: long lists and texts go over several."""
    value = "v = " + lines[first][column:]
    for number in range(first, len(lines)):
        value += "" if number == first else "\n" + lines[number]
        try:
            tomllib.loads(value)
        except tomllib.TOMLDecodeError:
            continue
        return number
    return first
