"""The web application: routes of the model endpoint, and of the stack's own processes under /internal.

promises  every error has the shape of the route's dialect; nothing here waits for an engine or the log by itself
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from gyre_engine.keys import execution_of, is_internal
from producers.proxy.dialects.port import Counts, Dialect, Refuses
from producers.proxy.dialects.registry import DIALECTS, dialect_of
from producers.proxy.exchange import Ask, ProxyError, wrong_key
from producers.proxy.reading import read_body
from producers.proxy.reply import Reply
from producers.proxy.service import Service

Endpoint = Callable[[Request], Awaitable[Response]]


def application(service: Service, secret: bytes) -> Starlette:
    """The ASGI application over a service."""
    endpoints = _Endpoints(service, secret)
    routes = [
        *[route for dialect in DIALECTS for route in _routes(dialect, endpoints)],
        Route("/", endpoints.alive, methods=["GET", "HEAD"]),
        Route("/v1/models", endpoints.models, methods=["GET"]),
        Route("/healthz", endpoints.health, methods=["GET"]),
        Route("/internal/executions/{execution}/close", endpoints.close, methods=["POST"]),
        Route("/internal/executions/{execution}", endpoints.execution, methods=["GET"]),
    ]
    app = Starlette(routes=routes, exception_handlers={ProxyError: _problem, HTTPException: _http, ClientDisconnect: _gone})
    app.router.redirect_slashes = False  # a path that is nobody's is refused in a dialect's words, like any other
    return app


def _routes(dialect: Dialect, endpoints: _Endpoints) -> Iterator[Route]:
    """A dialect's own route, and those beside it."""
    yield Route(dialect.path, endpoints.answer(dialect), methods=["POST"])
    for beside in dialect.beside:
        match beside:
            case Counts():
                yield Route(beside.path, endpoints.count(dialect, beside), methods=["POST"])
            case Refuses():
                yield Route(beside.path, endpoints.refuse(beside), methods=[beside.method])


class _Endpoints:
    def __init__(self, service: Service, secret: bytes) -> None:
        self._service = service
        self._secret = secret

    def answer(self, dialect: Dialect) -> Endpoint:
        """The endpoint that answers in `dialect`."""

        async def endpoint(request: Request) -> Response:
            execution, ask = await self._ask(request, dialect)
            begun = self._service.open_call(execution, ask)
            return Reply(begun, dialect, ask, quiet_s=self._service.settings.quiet_s)

        return endpoint

    def count(self, dialect: Dialect, counts: Counts) -> Endpoint:
        """The endpoint that counts the tokens of a request's prompt."""

        async def endpoint(request: Request) -> Response:
            execution, ask = await self._ask(request, dialect)
            return Response(counts.body(self._service.count(execution, ask)), media_type="application/json")

        return endpoint

    def refuse(self, refuses: Refuses) -> Endpoint:
        """The endpoint that is not served."""

        async def endpoint(_: Request) -> Response:
            raise refuses.problem()

        return endpoint

    async def alive(self, _: Request) -> Response:
        """Some clients look whether anybody is there before they have a key."""
        return _json({"service": "gyre"})

    async def models(self, request: Request) -> Response:
        """The names that map to something."""
        self._execution(request)
        dialect = dialect_of(request.url.path, request.headers)
        return Response(dialect.models(self._service.models.names), media_type="application/json")

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

    async def _ask(self, request: Request, dialect: Dialect) -> tuple[str, Ask]:
        """Who asks, and what."""
        execution = self._execution(request)
        body = await read_body(request, self._service.settings)
        known = self._service.executions.get(execution)
        return execution, dialect.parse(body, self._service.histories.last(execution), known.conversation if known else None)

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
    whole = dialect_of(request.url.path, request.headers).error(problem)
    ends = {"connection": "close"} if whole.status == 408 else {}  # the rest of the body may never come
    return Response(whole.body, whole.status, {**whole.headers, **ends}, "application/json")


async def _http(request: Request, problem: Exception) -> Response:
    if not isinstance(problem, HTTPException):
        raise problem
    text = f"{request.method} {request.url.path}: {problem.detail}"
    return await _problem(request, ProxyError(problem.status_code, "not_found", text))


async def _gone(_: Request, __: Exception) -> Response:
    """The client left while it was sending."""
    return Response(status_code=499)
