"""The composition root: reads as a table of contents. Routes, services, listeners.

`guard` hands a request to `Application`, which finds it in a table by its raw path, byte for byte,
and gives it to one handler with the one `Services` record. Refusals are rendered here, once.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from daypass_core.clock import Clock, StoreClock
from daypass_core.ids import new_id
from daypass_core.log import event, get_logger
from daypass_core.log import request_id as current_request
from daypass_core.problem import Code, Problem, Refusal
from daypass_core.server import DRAIN_SECONDS, Listener, serve
from daypass_core.vault import Vault
from daypass_proxy import me
from daypass_proxy.authenticate import Authenticator
from daypass_proxy.broker import BrokerLink, fetch_jwks
from daypass_proxy.exchange import ClientGone, Exchange, Receive, Send
from daypass_proxy.forward import forward
from daypass_proxy.guard import Limits, guarded
from daypass_proxy.jwks_cache import JwksCache
from daypass_proxy.keyring import Keyring
from daypass_proxy.ledger.sqlite import SqliteLedger
from daypass_proxy.price import PriceTable
from daypass_proxy.providers.anthropic import Anthropic
from daypass_proxy.revocations import RevocationView
from daypass_proxy.services import Services
from daypass_proxy.settings import Settings
from daypass_proxy.streams import CutReason, LiveCalls
from daypass_proxy.token import exchange_token
from daypass_proxy.token_gate import TokenGate
from daypass_proxy.transport import Timeouts
from daypass_proxy.transport.aio import AioTransport

log = get_logger(__name__)

Handler = Callable[[Exchange, Services], Awaitable[None]]

# How long the store may take to answer at start; the broker creates it.
STORE_SECONDS = 10.0
# Streams still open this long before the drain's end are told so, instead of being torn.
_LAST_WORDS_SECONDS = 5.0


async def _messages(exchange: Exchange, services: Services) -> None:
    await forward(exchange, "messages", services)


async def _count_tokens(exchange: Exchange, services: Services) -> None:
    await forward(exchange, "count_tokens", services)


ROUTES: Mapping[bytes, Mapping[str, Handler]] = {
    b"/v1/messages": {"POST": _messages},
    b"/v1/messages/count_tokens": {"POST": _count_tokens},
    b"/v1/models": {"GET": me.list_models},
    b"/v1/self": {"GET": me.describe_self},
    b"/v1/oauth/token": {"POST": exchange_token},
    b"/api/hello": {"HEAD": me.hello, "GET": me.hello},
    b"/livez": {"GET": me.live, "HEAD": me.live},
    b"/readyz": {"GET": me.ready, "HEAD": me.ready},
}
_ONE_MODEL: Mapping[str, Handler] = {"GET": me.show_model}
# These write their own closing line.
_SPEAKS_FOR_ITSELF = (_messages, _count_tokens)
_QUIET = (me.live, me.ready)


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

    def __init__(
        self, build: Callable[[], AbstractAsyncContextManager[Services]], *, clock: Clock
    ) -> None:
        """`build` returns the context manager that makes the services."""
        self._build = build
        self._clock = clock
        self.services: Services | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            exchange = Exchange(
                scope,
                receive,
                send,
                request_id=new_id("req"),
                started=self._clock.monotonic(),
            )
            assert self.services is not None
            await respond(exchange, self.services)

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
        # The text of a foreign exception may hold parts of a request: only its kind is logged.
        outcome = "internal_error"
        event(
            log,
            "request_failed",
            level=logging.ERROR,
            kind=type(error).__name__,
            where=_where(error),
        )
        await _refuse(exchange, services, Problem.of(Code.INTERNAL_ERROR))
    finally:
        if outcome != "served" or handler not in (*_SPEAKS_FOR_ITSELF, *_QUIET):
            event(
                log,
                "request_served",
                method=exchange.method,
                path=exchange.raw_path[:128].decode("latin-1"),
                status=exchange.status,
                outcome=outcome,
                peer=exchange.peer,
                seconds=round(services.clock.monotonic() - exchange.started, 4),
            )
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


def _hint(exchange: Exchange) -> str:
    """Help with the two base URLs people get wrong (case B46)."""
    host = (exchange.header(b"host") or b"").decode("latin-1")
    if exchange.raw_path.startswith((b"/v1/v1/", b"//v1/")):
        return f"the base URL must end with the host, as in https://{host}, without /v1"
    if exchange.raw_path.startswith((b"/messages", b"/models")):
        return f"this client needs the base URL https://{host}/v1"
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


def _where(error: BaseException) -> str:
    """Return file and line of the innermost frame: a place, never a value."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return ""
    return f"{os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno}"


@asynccontextmanager
async def build_services(settings: Settings, clock: StoreClock) -> AsyncIterator[Services]:
    """Make every service in order, and close them in reverse."""
    async with AsyncExitStack() as stack:
        live_calls = LiveCalls()
        revocations = _revocations(settings, live_calls, clock)
        revocations.start()
        stack.push_async_callback(revocations.close)
        await _wait_for_store(revocations, settings)
        ledger = await SqliteLedger.open(
            settings.database_path, _worker(), clock, settings.lease_seconds
        )
        stack.push_async_callback(ledger.close)
        keyring = _keyring(settings, clock)
        stack.push_async_callback(keyring.close)
        await keyring.start()
        transport = _transport(settings)
        stack.push_async_callback(transport.close)
        broker = BrokerLink(settings.broker_url)
        jwks = JwksCache(partial(fetch_jwks, broker), clock)
        stack.push_async_callback(jwks.close)
        authenticator = Authenticator(
            keys=jwks,
            view=revocations,
            count=ledger.count,
            issuer=settings.issuer,
            audience=settings.audience,
            clock=clock,
        )
        yield Services(
            settings=settings,
            clock=clock,
            new_id=new_id,
            sleep=asyncio.sleep,
            provider=Anthropic(),
            authenticator=authenticator,
            jwks=jwks,
            broker=broker,
            token_gate=TokenGate(),
            prices=PriceTable.load(settings.prices),
            ledger=ledger,
            live_calls=live_calls,
            revocations=revocations,
            keyring=keyring,
            transport=transport,
        )


def _revocations(settings: Settings, live_calls: LiveCalls, clock: StoreClock) -> RevocationView:
    return RevocationView(
        settings.database_path,
        live_calls,
        clock,
        poll_seconds=settings.poll_seconds,
        stale_seconds=settings.stale_seconds,
        stale_stream_seconds=settings.stale_stream_seconds,
    )


def _keyring(settings: Settings, clock: StoreClock) -> Keyring:
    return Keyring(
        settings.anthropic_keys,
        env_secrets=settings.env_secrets,
        vault=None if settings.vault is None else Vault(settings.vault),
        clock=clock,
    )


def _transport(settings: Settings) -> AioTransport:
    return AioTransport(
        Timeouts(
            connect=settings.connect_seconds,
            first_byte=settings.first_byte_seconds,
            idle=settings.idle_seconds,
        )
    )


async def _wait_for_store(revocations: RevocationView, settings: Settings) -> None:
    try:
        async with asyncio.timeout(STORE_SECONDS):
            await revocations.wait_ready()
    except TimeoutError:
        raise RuntimeError(
            f"no usable database at {settings.database_path}; start the broker first"
        ) from None


def _worker() -> str:
    """Name this process in the ledger's rows."""
    return f"{socket.gethostname()}:{os.getpid()}"


async def run(settings: Settings, *, on_started: Callable[[], None] | None = None) -> None:
    """Serve until a signal."""
    clock = StoreClock()
    application = Application(partial(build_services, settings, clock), clock=clock)
    guard = guarded(Limits(header_seconds=settings.header_seconds))
    await serve(
        [
            Listener(
                application,
                listen,
                http=guard,
                tls=None if listen.is_unix else settings.tls,
                name="proxy",
                # Whoever reaches the socket still needs a token; sandboxes run as other users.
                mode=0o666,
                setting="DAYPASS_PROXY_LISTEN",
            )
            for listen in settings.listen
        ],
        on_started=on_started,
        on_stopping=partial(_warn_streams, application),
    )


def _warn_streams(application: Application) -> None:
    """End the calls that would not end by themselves shortly before the drain is over."""
    services = application.services
    if services is not None:
        asyncio.get_running_loop().call_later(
            DRAIN_SECONDS - _LAST_WORDS_SECONDS, services.live_calls.cut_all, CutReason.SHUTDOWN
        )
