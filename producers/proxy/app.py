"""The web application: routes of the model endpoint, and of the stack's own processes under /internal.

promises  every error has the shape of the route's dialect; nothing here waits for an engine or the log by itself
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from gyre_engine.keys import execution_of, is_internal
from producers.proxy.dialects.messages import Messages, model_list
from producers.proxy.dialects.port import Dialect
from producers.proxy.dialects.registry import DIALECTS
from producers.proxy.dialects.responses import Responses
from producers.proxy.exchange import ProxyError, wrong_key
from producers.proxy.reply import Reply
from producers.proxy.service import Service

_VERSION = "anthropic-version"


def application(service: Service, secret: bytes) -> Starlette:
    """The ASGI application over a service."""
    endpoints = _Endpoints(service, secret)
    routes = [
        *[Route(dialect.path, endpoints.dialect(dialect), methods=["POST"]) for dialect in DIALECTS],
        Route(f"{Messages.path}/count_tokens", endpoints.count, methods=["POST"]),
        Route(Responses.path, endpoints.no_websocket, methods=["GET"]),
        Route("/", endpoints.alive, methods=["GET", "HEAD"]),
        Route("/v1/models", endpoints.models, methods=["GET"]),
        Route("/healthz", endpoints.health, methods=["GET"]),
        Route("/internal/executions/{execution}/close", endpoints.close, methods=["POST"]),
        Route("/internal/executions/{execution}", endpoints.execution, methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers={ProxyError: _problem, HTTPException: _http, ClientDisconnect: _gone})


def dialect_of(path: str, *, versioned: bool = False) -> Dialect:
    """The dialect whose errors a path's clients understand. versioned: they name a version of Anthropic's API."""
    other = next((dialect for dialect in DIALECTS if versioned and dialect.name == Messages.name), DIALECTS[0])
    return next((dialect for dialect in DIALECTS if path.startswith(dialect.path)), other)


class _Endpoints:
    def __init__(self, service: Service, secret: bytes) -> None:
        self._service = service
        self._secret = secret

    def dialect(self, dialect: Dialect) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint that speaks `dialect`."""

        async def endpoint(request: Request) -> Response:
            execution = self._execution(request)
            ask = dialect.parse(await self._body(request), self._service.histories.last(execution))
            call = await self._service.open_call(execution, ask)
            return Reply(call, dialect, ask, quiet_s=self._service.settings.quiet_s)

        return endpoint

    async def no_websocket(self, _: Request) -> Response:
        """A websocket for Responses: its clients turn to POST at once where they are told that there is none."""
        raise ProxyError(426, "websocket_not_supported", f"there is no websocket here: POST to {Responses.path}")

    async def alive(self, _: Request) -> Response:
        """Some clients look whether anybody is there before they have a key."""
        return _json({"service": "gyre"})

    async def models(self, request: Request) -> Response:
        """The names that map to something."""
        self._execution(request)
        names = [name for name in self._service.settings.models if name != "*"]
        if _VERSION in request.headers:
            return Response(model_list(names), media_type="application/json")
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "gyre"} for name in names]
        return _json({"object": "list", "data": data})

    async def count(self, request: Request) -> Response:
        """How many tokens a Messages request's prompt has."""
        execution = self._execution(request)
        ask = Messages().parse(await self._body(request), self._service.histories.last(execution))
        return _json({"input_tokens": self._service.count(execution, ask)})

    async def health(self, _: Request) -> Response:
        """200 while the log takes records; what this proxy has done and holds."""
        service = self._service
        away = service.desk.outbox.away
        state = {
            "status": "log away" if away else "ok",
            "executions": len(service.executions),
            "sampling_cells": [cell.cell for cell in service.desk.router.routes.sampling],
            **service.counts,
        }
        return _json(state, 503 if away else 200)

    async def close(self, request: Request) -> Response:
        """Close an execution: its harness has ended."""
        self._internal(request)
        closed = await self._service.close(request.path_params["execution"])
        return _json({"held_us": closed.held_us, "calls": closed.calls, "tokens": closed.tokens})

    async def execution(self, request: Request) -> Response:
        """How long an execution's agent was held up so far (learning.md, 3)."""
        self._internal(request)
        name = request.path_params["execution"]
        state = self._service.executions.get(name) or self._service.closed.get(name)
        counts = {"calls": state.calls, "tokens": state.tokens} if state else {"calls": 0, "tokens": 0}
        return _json({"held_us": self._service.held_us(name), "closed": name in self._service.closed, **counts})

    async def _body(self, request: Request) -> bytes:
        """The body, read no further than its limit: one that comes in chunks says no length."""
        limit, size, chunks = self._service.settings.body_limit, int(request.headers.get("content-length") or 0), []
        if size <= limit:
            size = 0
            async for chunk in request.stream():
                chunks.append(chunk)
                size += len(chunk)
                if size > limit:
                    break
        if size > limit:
            raise ProxyError(413, "request_too_large", f"the body is larger than {limit} bytes")
        return b"".join(chunks)

    def _execution(self, request: Request) -> str:
        execution = execution_of(self._secret, _token(request))
        if execution is None:
            raise wrong_key()
        return execution

    def _internal(self, request: Request) -> None:
        if not is_internal(self._secret, _token(request)):
            raise wrong_key()


def _token(request: Request) -> str:
    """The key, as a bearer token or in the headers that other dialects use."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return request.headers.get("x-api-key", "").strip()


def _json(data: object, status: int = 200) -> Response:
    return Response(orjson.dumps(data), status_code=status, media_type="application/json")


async def _problem(request: Request, problem: Exception) -> Response:
    if not isinstance(problem, ProxyError):
        raise problem
    whole = dialect_of(request.url.path, versioned=_VERSION in request.headers).error(problem)
    return Response(whole.body, whole.status, dict(whole.headers), "application/json")


async def _http(request: Request, problem: Exception) -> Response:
    if not isinstance(problem, HTTPException):
        raise problem
    text = f"{request.method} {request.url.path}: {problem.detail}"
    return await _problem(request, ProxyError(problem.status_code, "not_found", text))


async def _gone(_: Request, __: Exception) -> Response:
    """The client left while it was sending."""
    return Response(status_code=499)
