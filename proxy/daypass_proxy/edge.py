"""The edge: what HTTP asks for, and the handler that answers it.

`guard` hands a request to `Application`, which finds it in a table by its raw path, byte for byte,
and gives it to one handler with the one `Services` record. Refusals are rendered here.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from daypass_core.log import event, failed, get_logger, tell
from daypass_core.log import request_id as current_request
from daypass_core.problem import Code, Problem, Refusal
from daypass_proxy import me
from daypass_proxy.closed import RequestServed
from daypass_proxy.exchange import ClientGone, Exchange, Receive, Send
from daypass_proxy.forward import forward
from daypass_proxy.services import Services
from daypass_proxy.token import pass_token_request

log = get_logger(__name__)

Handler = Callable[[Exchange, Services], Awaitable[None]]


def _messages(exchange: Exchange, services: Services) -> Awaitable[None]:
    return forward(exchange, "messages", services)


def _count_tokens(exchange: Exchange, services: Services) -> Awaitable[None]:
    return forward(exchange, "count_tokens", services)


ROUTES: Mapping[bytes, Mapping[str, Handler]] = {
    b"/v1/messages": {"POST": _messages},
    b"/v1/messages/count_tokens": {"POST": _count_tokens},
    b"/v1/models": {"GET": me.list_models},
    b"/v1/self": {"GET": me.describe_self},
    b"/v1/oauth/token": {"POST": pass_token_request},
    b"/api/hello": {"HEAD": me.hello, "GET": me.hello},
    b"/livez": {"GET": me.live, "HEAD": me.live},
    b"/readyz": {"GET": me.ready, "HEAD": me.ready},
}
_ONE_MODEL: Mapping[str, Handler] = {"GET": me.show_model}
# Calls write a closing line of their own; the probes of an orchestrator are not worth one.
_NO_LINE = frozenset({_messages, _count_tokens, me.live, me.ready})
# What clients of OpenAI's API ask for, with and without the /v1 of their base URL (case B91).
_OPENAI_PATHS = tuple(
    prefix + path
    for prefix in (b"/v1", b"")
    for path in (b"/chat/", b"/completions", b"/responses", b"/embeddings", b"/openai/")
)


def find_route(raw_path: bytes) -> Mapping[str, Handler] | None:
    """Return the handlers of a path by method, None for a path that is not ours."""
    route = ROUTES.get(raw_path)
    if (
        route is None
        and raw_path.startswith(me.MODELS_PREFIX)
        and me.MODEL_ID.fullmatch(raw_path, len(me.MODELS_PREFIX))
    ):
        return _ONE_MODEL
    return route


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
        handler = _route(exchange)
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
        if outcome != "served" or handler not in _NO_LINE:
            _close(exchange, services, outcome)
        current_request.reset(token)


def _route(exchange: Exchange) -> Handler:
    route = find_route(exchange.raw_path)
    if route is None:
        raise Refusal(Problem.of(Code.NOT_FOUND, hint=_hint(exchange)))
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
    services.metrics.request_served(_route_name(exchange.raw_path), exchange.status, problem)


def _route_name(raw_path: bytes) -> str:
    """Return the path of a route of ours; whatever else is asked for has one name together."""
    route = find_route(raw_path)
    if route is None:
        return "unknown"
    return "/v1/models/{id}" if route is _ONE_MODEL else raw_path.decode("ascii")


def _hint(exchange: Exchange) -> str:
    """Help with the base URLs people get wrong (cases B46, B91)."""
    host = (exchange.header(b"host") or b"").decode("latin-1")
    if exchange.raw_path.startswith((b"/v1/v1/", b"//v1/")):
        return f"the base URL must end with the host, as in https://{host}, without /v1"
    if exchange.raw_path.startswith((b"/messages", b"/models")):
        return f"this client needs the base URL https://{host}/v1"
    if exchange.raw_path.startswith(_OPENAI_PATHS):
        return (
            "this is the Anthropic Messages API and OpenAI's is not served here; "
            f"use an Anthropic client with the base URL https://{host}"
        )
    return ""


async def _refuse(exchange: Exchange, services: Services, problem: Problem) -> None:
    """Answer with `problem`, or cut an answer that has begun."""
    if exchange.started_response:
        await exchange.abort()
        return
    rendered = services.provider.render(problem, exchange.request_id)
    headers = list(rendered.headers)
    if problem.code is Code.METHOD_NOT_ALLOWED:
        route = find_route(exchange.raw_path) or {}
        headers.append((b"allow", ", ".join(sorted(route)).encode()))
    await exchange.respond(rendered.status, headers, rendered.body)
