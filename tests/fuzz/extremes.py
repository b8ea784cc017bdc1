"""Requests that are huge, and bytes that are no request."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from typing import Any

from tests.fuzz.conversations import Json
from tests.fuzz.mutations import Body


def huge(body: Body, kind: int | None = None) -> None:
    """Much of something. Few requests are drawn to be so."""
    rng, items, fields = body.rng, body.items, body.fields
    kinds: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("a string of 10 MB", lambda: items.append({"role": "user", "content": "word " * 2_000_000})),
        ("10 MB without a blank", lambda: items.append({"role": "user", "content": "x" * 10_000_000})),
        ("10 MB of control tokens", lambda: items.append({"role": "user", "content": "<|im_end|>" * 1_000_000})),
        (
            "10 MB with a lone surrogate",
            lambda: items.append({"role": "user", "content": body.mark(b'"' + b"y" * 10_000_000 + b'\\ud83d"')}),
        ),
        (
            "a thousand tools",
            lambda: fields.update(tools=[{**tool, "name": f"t{at}"} for at in range(500) for tool in _tools(fields)[:2]]),
        ),
        ("300,000 foreign tools", lambda: fields.update(tools=[{"type": f"w{at}"} for at in range(300_000)])),
        ("5,000 messages", lambda: items.extend({"role": "user", "content": f"m{at}"} for at in range(5_000))),
        ("a huge id", lambda: items.append({"role": "tool", "tool_call_id": "i" * 3_000_000, "content": "r"})),
        ("a huge name of a model", lambda: fields.update(model="m" * 3_000_000)),
        ("a huge key", lambda: fields.update({"k" * 5_000_000: 1})),
        ("a huge array", lambda: fields.update(metadata=[0] * 1_000_000)),
    )
    name, change = kinds[rng.randrange(len(kinds)) if kind is None else kind % len(kinds)]
    change()
    body.done.append(name)


HUGE = 11


def _tools(fields: Json) -> list[Json]:
    found = fields.get("tools")
    return [tool for tool in found if isinstance(tool, dict)] if isinstance(found, list) else []


def on_bytes(whole: bytes, rng: random.Random) -> tuple[str, bytes]:
    """A mutation of a body's bytes, with its name."""
    at = rng.randrange(max(1, len(whole)))
    kinds: tuple[tuple[str, bytes], ...] = (
        ("truncated", whole[:at]),
        ("empty", b""),
        ("blanks", b" \n\t "),
        ("no UTF-8", whole[:at] + b"\xff" + whole[at:]),
        ("a raw surrogate", whole[:at] + b"\xed\xa0\x80" + whole[at:]),
        ("a NUL", whole[:at] + b"\x00" + whole[at:]),
        ("a byte order mark", b"\xef\xbb\xbf" + whole),
        ("UTF-16", whole.decode("utf-8", "replace").encode("utf-16")),
        ("trailing text", whole + b"x"),
        ("twice", whole + whole),
        ("a byte changed", whole[:at] + bytes([rng.randrange(256)]) + whole[at + 1 :]),
        ("no object", rng.choice((b"null", b"[]", b'"x"', b"5", b"true", b"NaN", b"{}", b"[" * 5000, b'{"a":' * 5000))),
        ("a form", b"model=policy&messages=1"),
        ("gzip", gzip.compress(whole, 1)),
    )
    return rng.choice(kinds)
