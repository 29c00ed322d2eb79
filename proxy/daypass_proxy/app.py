"""The composition root: reads as a table of contents. Services, guard, listeners."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from daypass_core.clock import StoreClock
from daypass_core.ids import new_id
from daypass_core.server import DRAIN_SECONDS, Listener, serve
from daypass_core.vault import Vault
from daypass_proxy.authenticate import Authenticator
from daypass_proxy.broker_link import BrokerLink, fetch_jwks
from daypass_proxy.edge import Application
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
from daypass_proxy.token_gate import TokenGate
from daypass_proxy.transport import Timeouts
from daypass_proxy.transport.aio import AioTransport

# How long the store may take to answer at start; the broker creates it.
STORE_SECONDS = 10.0
# Streams still open this long before the drain's end are told so, instead of being torn.
_LAST_WORDS_SECONDS = 5.0


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
    application = Application(partial(build_services, settings, clock))
    guard = guarded(Limits(header_seconds=settings.header_seconds), render=Anthropic().render)
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
        on_cutting=partial(_cut_streams, application),
    )


def _warn_streams(application: Application) -> None:
    """End the calls that would not end by themselves shortly before the drain is over."""
    services = application.services
    if services is not None:
        asyncio.get_running_loop().call_later(
            DRAIN_SECONDS - _LAST_WORDS_SECONDS, services.live_calls.cut_all, CutReason.SHUTDOWN
        )


def _cut_streams(application: Application) -> None:
    services = application.services
    if services is not None:
        services.live_calls.cut_all(CutReason.SHUTDOWN)
