"""The fuzzed requests of one execution: valid turns of its client, and mutations of what it would have sent next."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import orjson

from gyre_engine.keys import mint
from tests.fuzz.conversations import PATHS, Talk
from tests.fuzz.extremes import HUGE, huge, on_bytes
from tests.fuzz.mutations import Body, mutate
from tests.fuzz.wire import Request

HUGE_EVERY = 4_000
"""One request in so many is huge, on average."""
METHODS = ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD")
TARGETS = (
    "/v1/chat/completions/",
    "/v1/messages/",
    "/v1/responses/",
    "/v1/chat/completion",
    "/v1/messages/x",
    "/v1/responses/resp_1",
    "/v1/responses/resp_1/cancel",
    "/v1/messages/batches",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/models/policy",
    "/v2/messages",
    "//v1/messages",
    "/v1/chat/completions%00",
    "/v1/%2e%2e/internal",
    "/internal/executions/x",
    "/internal/executions/x/close",
    "/x" * 3000,
    "/%ff%fe",
    "*",
    "/v1/messages?beta=%ff",
)
FRAMINGS = (
    "content-length: 1",
    "content-length: -1",
    "content-length: x",
    "content-length: 99999999999",
    "",
    "content-length: 0",
    "transfer-encoding: chunked",
    "content-length: 5\r\ntransfer-encoding: chunked",
    "transfer-encoding: gzip",
    "content-length: 3\r\ncontent-length: 4",
)
LOOKS = (("GET", "/v1/models"), ("HEAD", "/"), ("GET", "/"), ("GET", "/healthz"), ("GET", "/v1/responses"))


@dataclass(frozen=True, slots=True)
class Case:
    """One request.

    done:  its mutations
    valid: as the client itself would send it next
    twins: how many send it at once
    """

    request: Request
    done: tuple[str, ...] = ()
    valid: bool = False
    twins: int = 1


def headers(dialect: str, key: str) -> tuple[str, ...]:
    """The header lines of a dialect's clients."""
    if dialect == "messages":
        return (f"x-api-key: {key}", "anthropic-version: 2023-06-01", "content-type: application/json")
    return (f"authorization: Bearer {key}", "content-type: application/json")


def cases(talk: Talk, key: str, count: int) -> Iterator[Case]:
    """`count` requests. What is understood of an answer goes into `talk` between two of them."""
    for _ in range(count):
        yield _next(talk, key)


def huge_cases(talk: Talk, key: str) -> Iterator[Case]:
    """Every kind of huge request once."""
    for kind in range(HUGE):
        body = Body(orjson.loads(orjson.dumps(talk.body())), talk.rng)
        huge(body, kind)
        yield Case(_post(talk, key, body.written()), tuple(body.done))


def _next(talk: Talk, key: str) -> Case:
    rng = talk.rng
    drawn = rng.random()
    if drawn < 0.30:
        return _valid(talk, key)
    if drawn < 0.80:
        return _mutated(talk, key)
    if drawn < 0.88:
        name, whole = on_bytes(orjson.dumps(talk.body()), rng)
        more = ("content-encoding: gzip",) if name == "gzip" else ()
        request = _post(talk, key, whole)
        return Case(replace(request, head=request.head + more), (name,))
    return _http(talk, key)


def _valid(talk: Talk, key: str) -> Case:
    request = _post(talk, key, orjson.dumps(talk.body()))
    twins = talk.rng.choice((1, 1, 1, 1, 2, 3))
    if talk.rng.random() < 0.15:
        return Case(replace(request, drop=talk.rng.choice((0, 1, 200, 900))), ("dropped",), twins=twins)
    return Case(request, valid=True, twins=twins)


def _mutated(talk: Talk, key: str) -> Case:
    body = Body(orjson.loads(orjson.dumps(talk.body())), talk.rng)
    if talk.rng.randrange(HUGE_EVERY) == 0:
        huge(body)
    for _ in range(talk.rng.choice((1, 1, 1, 2, 3, 6))):
        mutate(body)
    return Case(_post(talk, key, body.written()), tuple(body.done), twins=talk.rng.choice((1, 1, 1, 1, 1, 2)))


def _post(talk: Talk, key: str, body: bytes) -> Request:
    return Request("POST", PATHS[talk.dialect], headers(talk.dialect, key), body)


def _http(talk: Talk, key: str) -> Case:
    """What stands around a body."""
    rng, request = talk.rng, _post(talk, key, orjson.dumps(talk.body()))
    match rng.randrange(8):
        case 0:
            return Case(replace(request, head=headers(talk.dialect, _wrong(rng, key))), ("wrong key",))
        case 1:
            return Case(replace(request, head=("content-type: application/json", *request.head[1:-1])), ("no key",))
        case 2:
            return Case(replace(request, target=rng.choice(TARGETS)), ("wrong path",))
        case 3:
            return Case(replace(request, method=rng.choice(METHODS)), ("wrong method",))
        case 4:
            return Case(replace(request, framing="chunked"), ("chunked",))
        case 5:
            return Case(replace(request, framing=rng.choice(FRAMINGS), cut=True), ("framing",))
        case 6:
            method, target = rng.choice(LOOKS)
            return Case(replace(request, method=method, target=target, body=b""), ("a look",))
        case _:
            return Case(replace(request, target="/v1/messages/count_tokens"), ("counted",))


def _wrong(rng: random.Random, key: str) -> str:
    other = mint(b"another secret of another stack", "fuzz.0.0")
    return rng.choice(
        (key[:-1], key + "0", other, "gyre-", "gyre--", "\xff\xfe", "x" * 9000, key.upper(), f"{key} {key}", "Bearer", " ")
    )
