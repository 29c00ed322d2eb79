"""The edge: what HTTP asks for, and the handler that answers it.

`guard` hands a request to `Application`, which finds it in a table by its raw path, byte for byte,
and gives it to one handler with the one `Services` record. Refusals are rendered here.
"""

import logging
from collections.abc import Callable, Coroutine, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from daypass_core.log import event, failed, get_logger, tell
from daypass_core.log import request_id as current_request
from daypass_core.problem import Code, Problem, Refusal
from daypass_proxy.closed import RequestServed
from daypass_proxy.exchange import ClientGone, Exchange, Receive, Send
from daypass_proxy.peer import client_behind
from daypass_proxy.routes import Handler, find_route, hint, is_told, route_name, speaker
from daypass_proxy.services import Services

log = get_logger(__name__)


class Application:
    """The ASGI application. Its services live as long as its lifespan."""

    def __init__(self, build: Callable[[], AbstractAsyncContextManager[Services]]) -> None:
        """`build` returns the context manager that makes the services."""
        self._build = build
        self.services: Services | None = None

    def __call__(
        self, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> Coroutine[Any, Any, None]:
        """Return what serves one ASGI connection when it is awaited."""
        if scope["type"] != "http":
            return self._live(receive, send)
        services = self.services
        assert services is not None
        if trusted := services.settings.trusted_proxies:
            peer = (scope.get("client") or ("",))[0]
            # A copy: the guard keeps its own for the next request of this connection.
            scope = {**scope, "client": (client_behind(trusted, peer, scope["headers"]), 0)}
        exchange = Exchange(
            scope,
            receive,
            send,
            request_id=services.new_id("req"),
            started=services.clock.monotonic(),
        )
        return respond(exchange, services)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Build everything at startup, close it in reverse at shutdown."""
        await receive()
        phase = "startup"
        try:
            async with self._build() as services:
                self.services = services
                await send({"type": "lifespan.startup.complete"})
                phase = "shutdown"
                await receive()
                self.services = None
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            event(log, f"{phase}_failed", level=logging.ERROR, reason=reason)
            await send({"type": f"lifespan.{phase}.failed", "message": reason})
        else:
            await send({"type": "lifespan.shutdown.complete"})


async def respond(exchange: Exchange, services: Services) -> None:
    """Serve one exchange: route, handle, render a refusal, write the closing line."""
    token = current_request.set(exchange.request_id)
    handler: Handler | None = None
    outcome = "served"
    try:
        handler = _route(exchange, services)
        await handler(exchange, services)
    except Refusal as refusal:
        outcome = refusal.problem.code
        await _refuse(exchange, services, refusal.problem)
    except ClientGone:
        outcome = "client_gone"
    except Exception as error:
        outcome = "internal_error"
        failed(log, "request_failed", error)
        await _refuse(exchange, services, Problem.of(Code.INTERNAL_ERROR))
    finally:
        if outcome != "served" or not is_told(handler):
            _close(exchange, services, outcome)
        current_request.reset(token)


def _route(exchange: Exchange, services: Services) -> Handler:
    upstreams = services.settings.upstreams
    route = find_route(exchange.raw_path, upstreams)
    if route is None:
        raise Refusal(Problem.of(Code.NOT_FOUND, hint=hint(exchange, upstreams)))
    handler = route.get(exchange.method)
    if handler is None:
        raise Refusal(
            Problem.of(Code.METHOD_NOT_ALLOWED, hint=f"allowed: {', '.join(sorted(route))}")
        )
    return handler


def _close(exchange: Exchange, services: Services, outcome: str) -> None:
    """Say and count a request that `forward` did not."""
    line = RequestServed(
        request_id=exchange.request_id,
        method=exchange.method,
        path=exchange.raw_path[:128].decode("latin-1"),
        status=exchange.status,
        outcome=outcome,
        peer=exchange.peer,
        seconds=round(services.clock.monotonic() - exchange.started, 4),
    )
    tell(log, line)
    problem = None if outcome in ("served", "client_gone") else outcome
    route = route_name(exchange.raw_path, services.settings.upstreams)
    services.metrics.request_served(route, exchange.status, problem)


async def _refuse(exchange: Exchange, services: Services, problem: Problem) -> None:
    """Answer with `problem`, or cut an answer that has begun."""
    if exchange.started_response:
        await exchange.abort()
        return
    upstreams = services.settings.upstreams
    provider = services.providers[speaker(exchange.raw_path, upstreams)]
    rendered = provider.render(problem, exchange.request_id)
    headers = list(rendered.headers)
    if problem.code is Code.METHOD_NOT_ALLOWED:
        route = find_route(exchange.raw_path, upstreams) or {}
        headers.append((b"allow", ", ".join(sorted(route)).encode()))
    await exchange.respond(rendered.status, headers, rendered.body)
