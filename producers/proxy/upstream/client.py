"""One upstream over HTTP.

promises  an answer or a ProxyError within the limit; its key stands in no error, event or log
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from producers.proxy.settings import Upstream
from producers.proxy.upstream.refusals import refusal, silent, unusable
from producers.proxy.upstream.wire import Said, Unreadable, read

CONNECT_S = 10.0
LARGEST = 64 << 20
"""Bytes of an answer."""


class KeyMissing(ValueError):
    """The environment does not have an upstream's key; the text names the variable."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What came back over HTTP. headers: names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class UpstreamClient:
    """Asks one upstream. `limit_s` bounds each call as a whole. Raises KeyMissing."""

    def __init__(self, upstream: Upstream, environment: Mapping[str, str], *, limit_s: float) -> None:
        parts = urlsplit(upstream.url)
        self.host = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
        self._model = upstream.model
        self._limit_s = limit_s
        self._key = _key(upstream.key_env, environment)
        self._url = f"{upstream.url.rstrip('/')}/chat/completions"
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {self._key}"} if self._key else {})
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(headers=headers, limits=limits, timeout=httpx.Timeout(None, connect=CONNECT_S))

    def model(self, asked: str) -> str:
        """The upstream's name for the model that an agent asks for as `asked`."""
        return self._model or asked

    async def ask(self, body: bytes) -> Delivered:
        """Post a chat request. Raises ProxyError where nothing comes back."""
        try:
            async with asyncio.timeout(self._limit_s), self._http.stream("POST", self._url, content=body) as response:
                found = await self._body(response)
                return Delivered(response.status_code, {name.lower(): value for name, value in response.headers.items()}, found)
        except TimeoutError as error:
            raise silent(self.host, f"did not answer within {self._limit_s:.0f} s") from error
        except httpx.HTTPError as error:
            raise silent(self.host, f"cannot be reached or broke off: {type(error).__name__}") from error

    def said(self, delivered: Delivered) -> Said:
        """The answer in what came back. Raises ProxyError where it is none."""
        if delivered.status != 200:
            raise refusal(self.host, delivered.status, delivered.headers, delivered.body, key=self._key)
        try:
            return read(delivered.body)
        except Unreadable as error:
            raise unusable(self.host, str(error)) from error

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def _body(self, response: httpx.Response) -> bytes:
        size, chunks = 0, []
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            chunks.append(chunk)
            if size > LARGEST:
                raise unusable(self.host, f"it is larger than {LARGEST} bytes")
        return b"".join(chunks)


def _key(name: str, environment: Mapping[str, str]) -> str:
    key = environment.get(name, "").strip() if name else ""
    if name and not key:
        raise KeyMissing(
            f"models.key_env: the environment has no {name}: export the upstream's key under this name, then start again"
        )
    if not key.isascii() or not key.isprintable():
        raise KeyMissing(f"models.key_env: what {name} holds is no key: it has characters that no header can carry")
    return key
