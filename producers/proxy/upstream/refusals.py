"""What an upstream refuses, in the proxy's terms, which each dialect then words: who is at fault, and whether asking again helps.

429 stays 429 with its retry-after; 5xx and silence become a retryable 503; a history that is too long is said as the policy's would
be; other refusals of the request keep their status and their words. What the stack did wrong (its key, its URL) is a 502: no agent can
mend it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from gyre_engine.events import now_us
from producers.proxy.exchange import ProxyError, unavailable

SHOWN = 500
"""Characters of an upstream's own words."""
LONGEST_WAIT_S = 3600

_CONTEXT = re.compile(r"maximum context length is (\d+) tokens.*?(?:resulted in|requested) (\d+) tokens", re.DOTALL)


def refusal(host: str, status: int, headers: Mapping[str, str], body: bytes, *, key: str = "") -> ProxyError:
    """An answer whose status is not 200. headers: names in lower case; key: is shown to nobody, should the upstream repeat it."""
    words, code = _words(body)
    words = (words.replace(key, "***") if key else words)[:SHOWN]
    after = retry_after(headers.get("retry-after", ""), now_us() / 1e6)
    if status == 429:
        text = f"the upstream {host} takes no more for now: {words}"
        return ProxyError(429, "rate_limit_exceeded", text, kind="rate_limit_error", retry_after=after)
    if status >= 500 or status in (408, 409, 425):
        return unavailable("upstream_failed", f"the upstream {host} failed ({status}): {words}", *([after] if after else []))
    if status in (401, 403):
        text = f"the upstream {host} refuses the key that the stack has for it ({status}): check models.key_env of the config"
        return ProxyError(502, "upstream_refused", text, kind="server_error")
    if status < 400:
        return unusable(host, f"status {status}: check models.url of the config")
    if code == "context_length_exceeded" or _CONTEXT.search(words):
        return _too_long(words)
    return ProxyError(status, "upstream_refused", f"the upstream {host} refuses the request ({status}): {words}")


def silent(host: str, why: str) -> ProxyError:
    """No answer came."""
    return unavailable("upstream_failed", f"the upstream {host} {why}")


def unusable(host: str, why: str) -> ProxyError:
    """An answer came that is none."""
    return ProxyError(502, "upstream_answer_unusable", f"the upstream {host} sent no usable answer: {why}", kind="server_error")


def retry_after(value: str, now_s: float) -> int | None:
    """The seconds that a Retry-After header asks for, rounded up: it holds seconds or a date. None where it says nothing."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - now_s
        except (ValueError, TypeError):
            return None
    return min(LONGEST_WAIT_S, max(0, math.ceil(seconds))) if math.isfinite(seconds) else None


def _too_long(words: str) -> ProxyError:
    """In the words that clients shorten their histories by."""
    found = _CONTEXT.search(words)
    tokens = (int(found[2]), int(found[1])) if found else None
    return ProxyError(400, "context_length_exceeded", words, param="messages", tokens=tokens)


def _words(body: bytes) -> tuple[str, str]:
    """An error's message and code, as far as the body has them."""
    try:
        fields: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace").strip() or "it does not say why", ""
    error = fields.get("error", fields) if isinstance(fields, dict) else fields
    message, code = (error.get("message"), error.get("code")) if isinstance(error, dict) else (error, "")
    return (message if isinstance(message, str) else orjson.dumps(error).decode()), str(code or "")
