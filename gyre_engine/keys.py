"""Keys: how an agent's request names its execution, and how the stack's own processes name themselves.

promises  a key tells one execution and nothing else, and cannot be made without the stack's secret; the secret itself
          never travels
"""

from __future__ import annotations

import hashlib
import hmac

PREFIX = "gyre-"
_INTERNAL = "internal"


def mint(secret: bytes, execution: str) -> str:
    """The key of an execution: `gyre-<execution>-<HMAC-SHA256(secret, execution), first 16 bytes, hex>`."""
    return f"{PREFIX}{execution}-{_seal(secret, execution)}"


def execution_of(secret: bytes, key: str) -> str | None:
    """The execution that `key` names, or None where it was not minted with this secret."""
    if not key.startswith(PREFIX):
        return None
    execution, dash, seal = key[len(PREFIX) :].rpartition("-")
    if not dash or not execution or not _same(seal, _seal(secret, execution)):
        return None
    return execution


def internal_token(secret: bytes) -> str:
    """What the runner and others of the stack present to the proxy's /internal routes, as a bearer token."""
    return hmac.new(secret, b"\0" + _INTERNAL.encode(), hashlib.sha256).hexdigest()


def is_internal(secret: bytes, token: str) -> bool:
    """Whether `token` is this stack's internal token."""
    return _same(token, internal_token(secret))


def _seal(secret: bytes, execution: str) -> str:
    return hmac.new(secret, execution.encode("utf-8", "replace"), hashlib.sha256).digest()[:16].hex()


def _same(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode("utf-8", "replace"), b.encode())
