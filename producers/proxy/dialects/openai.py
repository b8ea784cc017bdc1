"""What OpenAI's two dialects share: errors, with the hints that its official client obeys, and the list of models."""

from __future__ import annotations

from collections.abc import Sequence

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


def model_list(names: Sequence[str]) -> bytes:
    """The models that can be asked for."""
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "gyre"} for name in names]
    return orjson.dumps({"object": "list", "data": data})
