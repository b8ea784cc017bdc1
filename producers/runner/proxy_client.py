"""The proxy's internal routes, as the runner uses them: whether it answers, how long it held an execution up, and closing one."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import httpx

from gyre_engine.keys import internal_token


class ProxyUnavailable(RuntimeError):
    """The proxy did not answer within the limit; the text names its address and what was asked."""


@dataclass(frozen=True, slots=True)
class Closed:
    """What the proxy says of an execution that it takes no more calls of."""

    held_us: int
    calls: int


class ProxyClient:
    """Asks again while the proxy is away, `patience_s` at most."""

    def __init__(self, url: str, secret: bytes, patience_s: float) -> None:
        self._url, self._patience_s = url.rstrip("/"), patience_s
        self._headers = {"authorization": f"Bearer {internal_token(secret)}"}
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(30.0, connect=5.0), limits=httpx.Limits(max_connections=64))

    async def held_us(self, execution: str) -> int | None:
        """Microseconds that the proxy has held the execution up so far (0: it has not called yet); None: no answer now."""
        try:
            answer = await self._http.get(f"{self._url}/internal/executions/{execution}", headers=self._headers)
        except httpx.HTTPError:
            return None
        return int(answer.json()["held_us"]) if answer.status_code == 200 else None

    async def reached(self, execution: str) -> None:
        """Until the proxy answers for an execution that is about to start. Raises ProxyUnavailable."""
        await self._asked("GET", execution, self._patience_s, f"answer for execution {execution}")

    async def close_execution(self, execution: str, patience_s: float | None = None) -> Closed:
        """The proxy refuses further calls and logs their number. Raises ProxyUnavailable."""
        patience_s = self._patience_s if patience_s is None else patience_s
        body = await self._asked("POST", f"{execution}/close", patience_s, f"close execution {execution}")
        return Closed(int(body["held_us"]), int(body["calls"]))

    async def _asked(self, method: str, path: str, patience_s: float, what: str) -> dict[str, Any]:
        deadline, pause = time.monotonic() + patience_s, 0.1
        while True:
            try:
                answer = await self._http.request(method, f"{self._url}/internal/executions/{path}", headers=self._headers)
                if answer.status_code == 200:
                    return dict(answer.json())
                said = f"status {answer.status_code}: {answer.text[:200]}"
            except httpx.HTTPError as error:
                said = f"{type(error).__name__}: {error}"
            if time.monotonic() > deadline:
                raise ProxyUnavailable(
                    f"the proxy at {self._url} did not {what} within {patience_s:g} s ({said}): "
                    "is it running, and with the same secret?"
                )
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()
