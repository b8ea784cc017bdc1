"""What of a Dockerfile can be had without docker: FROM, WORKDIR, COPY, ENV. The rest is named as missing.

The host's /usr stands in for the base image, whatever FROM says.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from dataclasses import dataclass

_IGNORED = frozenset(
    {"CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "SHELL", "STOPSIGNAL", "USER", "VOLUME"}
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")


@dataclass(frozen=True, slots=True)
class Copy:
    """COPY: sources relative to environment/, target absolute; `into`: the target is a folder that receives the sources."""

    sources: tuple[str, ...]
    target: str
    into: bool


@dataclass(frozen=True, slots=True)
class Image:
    """A Dockerfile as far as it is followed. `missing`: what it asks for that only docker can do."""

    base: str = ""
    workdir: str = "/app"
    env: tuple[tuple[str, str], ...] = ()
    copies: tuple[Copy, ...] = ()
    folders: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class _Builder:
    def __init__(self) -> None:
        self.base, self.workdir, self.set_workdir = "", "/", False
        self.env: dict[str, str] = {}
        self.args: dict[str, str] = {}
        self.copies: list[Copy] = []
        self.folders: list[str] = []
        self.missing: list[str] = []

    def fill(self, text: str) -> str:
        known = {**self.args, **self.env}
        return _VARIABLE.sub(lambda m: known.get(m[1] or m[3], m[2] or ""), text)

    def absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.workdir, path))

    def step(self, word: str, rest: str) -> None:
        handler = getattr(self, f"_{word.lower()}", None)
        if handler is not None:
            handler(rest)
        elif word not in _IGNORED:
            self.missing.append(f"{word} {rest}"[:120])

    def _from(self, rest: str) -> None:
        """A later stage starts afresh."""
        args = self.args
        self.__init__()  # type: ignore[misc]
        self.args, self.base = args, self.fill(rest).split()[0]

    def _workdir(self, rest: str) -> None:
        self.workdir, self.set_workdir = self.absolute(self.fill(rest.strip().strip('"'))), True

    def _arg(self, rest: str) -> None:
        name, sign, value = rest.partition("=")
        self.args.setdefault(name.strip(), self.fill(value.strip().strip('"')) if sign else "")

    def _env(self, rest: str) -> None:
        words = shlex.split(rest)
        if "=" not in words[0]:
            self.env[words[0]] = self.fill(rest.split(None, 1)[1])
            return
        for word in words:
            name, _, value = word.partition("=")
            self.env[name] = self.fill(value)

    def _copy(self, rest: str) -> None:
        words = _words(rest)
        options, paths = [w for w in words if w.startswith("--")], [self.fill(w) for w in words if not w.startswith("--")]
        if any(o.startswith("--from") for o in options) or any("://" in p for p in paths) or len(paths) < 2 or "<<" in rest:
            self.missing.append(f"COPY {rest}"[:120])
            return
        *sources, target = paths
        into = target.endswith(("/", "/.")) or target == "." or len(sources) > 1
        self.copies.append(Copy(tuple(s.lstrip("/") or "." for s in sources), self.absolute(target), into))

    _add = _copy

    def _run(self, rest: str) -> None:
        """`mkdir` can be followed; anything else installs or builds."""
        try:
            words = _words(rest)
        except ValueError:
            words = []  # shells take more than shlex does
        if words[:1] == ["mkdir"] and not any(c in rest for c in "&|;<>`$"):
            self.folders += [self.absolute(w) for w in words[1:] if not w.startswith("-")]
        else:
            self.missing.append(f"RUN {rest}"[:120])


def read_dockerfile(text: str) -> Image:
    """The image that `text` describes. Raises ValueError where a line cannot be read."""
    builder = _Builder()
    for line in _instructions(text):
        word, _, rest = line.partition(" ")
        try:
            builder.step(word.upper(), rest.strip())
        except (ValueError, IndexError) as error:
            raise ValueError(f"cannot read the line {line[:120]!r}: {error}") from error
    return Image(
        base=builder.base, workdir=builder.workdir if builder.set_workdir else "/app", env=tuple(builder.env.items()),
        copies=tuple(builder.copies), folders=tuple(builder.folders), missing=tuple(builder.missing),
    )  # fmt: skip


def _words(rest: str) -> list[str]:
    if rest.startswith("["):
        return [str(word) for word in json.loads(rest)]
    return shlex.split(rest)


def _instructions(text: str) -> list[str]:
    """Logical lines: comments dropped, continuations joined, here-documents kept with the line that opens them."""
    lines, current, until = [], "", ""
    for raw in text.splitlines():
        if until:
            until = "" if raw.strip() == until else until
            continue
        if not raw.strip() or raw.lstrip().startswith("#"):
            continue
        current += raw.strip()
        if current.endswith("\\"):
            current = current[:-1]
            continue
        if opened := re.search(r"<<-?[\"']?(\w+)", current):
            until = opened[1]
        lines.append(current)
        current = ""
    return [*lines, current] if current else lines
