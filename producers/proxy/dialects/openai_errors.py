"""Errors in the shape of OpenAI's dialects, with the hints that its official client obeys."""

from __future__ import annotations

import orjson

from producers.proxy.dialects.port import Whole
from producers.proxy.exchange import ProxyError


def error_body(problem: ProxyError, param: str | None = None) -> bytes:
    """The error as JSON. param: what this dialect calls the field, where it differs."""
    fields = {"message": problem.message, "type": problem.kind, "param": param or problem.param, "code": problem.code}
    return orjson.dumps({"error": fields})


def refusal(problem: ProxyError, param: str | None = None) -> Whole:
    """A refusal before anything was answered. Where asking again may help, the client is told so, and when."""
    hints = {"retry-after": str(problem.retry_after), "x-should-retry": "true"} if problem.retry_after is not None else {}
    return Whole(problem.status, error_body(problem, param), hints)
