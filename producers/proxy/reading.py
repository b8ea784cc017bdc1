"""A request's body as it comes in.

promises  no more of it is read than its limit; a client that stops sending and stays is not waited for without end
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from producers.proxy.exchange import ProxyError
from producers.proxy.settings import ProxySettings


async def read_body(request: Request, settings: ProxySettings) -> bytes:
    """The whole body. Raises ProxyError: 413 where it is too large, 408 where it stopped coming."""
    limit = settings.body_limit
    if int(request.headers.get("content-length") or 0) > limit:
        raise _too_large(limit)
    try:
        return await _read(request, limit, settings.body_wait_s)
    except TimeoutError:
        text = f"nothing more of the body came for {settings.body_wait_s:g} s: send the whole request again"
        raise ProxyError(408, "request_timeout", text) from None


async def _read(request: Request, limit: int, wait_s: float) -> bytes:
    """One that comes in chunks says no length."""
    size, chunks, clock = 0, [], asyncio.get_running_loop()
    async with asyncio.timeout(wait_s) as waiting:
        async for chunk in request.stream():
            waiting.reschedule(clock.time() + wait_s)
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
    return b"".join(chunks)


def _too_large(limit: int) -> ProxyError:
    return ProxyError(413, "request_too_large", f"the body is larger than {limit} bytes")
