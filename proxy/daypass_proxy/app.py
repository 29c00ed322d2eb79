"""The composition root: reads as a table of contents. `serving` puts listeners around it."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from daypass_core.clock import StoreClock
from daypass_core.ids import new_id
from daypass_core.vault import Vault
from daypass_proxy.authenticate import Authenticator
from daypass_proxy.body.room import BodyRoom
from daypass_proxy.body.spool import AVAILABLE
from daypass_proxy.broker_link import BrokerLink, fetch_jwks
from daypass_proxy.checkers.pool import BodyPool
from daypass_proxy.federation import Exchanger
from daypass_proxy.gate import Gate
from daypass_proxy.gauges import watch
from daypass_proxy.jwks_cache import JwksCache
from daypass_proxy.keyring import Keyring, basic_credential
from daypass_proxy.ledger.face import BatchedLedger
from daypass_proxy.ledger.sqlite import SqliteStore
from daypass_proxy.ledger.store import OpenStore
from daypass_proxy.loop_lag import LoopLag
from daypass_proxy.metrics import Metrics
from daypass_proxy.price import PriceTable
from daypass_proxy.providers import BodyChecker, Provider
from daypass_proxy.providers.anthropic import Anthropic
from daypass_proxy.providers.openai import OpenAI
from daypass_proxy.revocations import RevocationStore, RevocationView
from daypass_proxy.revocations.sqlite import SqliteRevocations
from daypass_proxy.services import Services
from daypass_proxy.settings import Settings
from daypass_proxy.streams import LiveCalls
from daypass_proxy.token_gate import TokenGate
from daypass_proxy.transport import Timeouts, Transport
from daypass_proxy.transport.dial import trust
from daypass_proxy.transport.egress import Egress
from daypass_proxy.transport.pool import Pool

# How long the store may take to answer at start; the broker creates it.
STORE_SECONDS = 10.0
# How long the ledger waits for what another process has locked in PostgreSQL.
BUSY_SECONDS = 5.0


@asynccontextmanager
async def build_services(
    settings: Settings, clock: StoreClock, gate: Gate | None = None
) -> AsyncIterator[Services]:
    """Make every service in order, and close them in reverse. `gate` is the one of the guard."""
    gate = gate or Gate()
    async with AsyncExitStack() as stack:
        bodies = BodyPool(settings.body_workers)
        stack.push_async_callback(bodies.close)
        bodies.start()
        live_calls = LiveCalls(settings.call_seconds)
        stack.callback(live_calls.close)
        revocations = _revocations(settings, live_calls, clock)
        revocations.start()
        stack.push_async_callback(revocations.close)
        await _wait_for_store(revocations, settings)
        metrics = Metrics()
        ledger = await BatchedLedger.open(
            _ledger_store(settings), _worker(), clock, settings.lease_seconds, reports=metrics
        )
        stack.push_async_callback(ledger.close)
        transport = make_transport(settings)
        stack.push_async_callback(transport.close)
        keyring, vault = await stack.enter_async_context(_keys(settings, clock, transport))
        broker = BrokerLink(settings.broker_url)
        jwks = JwksCache(partial(fetch_jwks, broker, clock), clock)
        stack.push_async_callback(jwks.close)
        authenticator = Authenticator(
            keys=jwks,
            view=revocations,
            count=ledger.count,
            issuer=settings.issuer,
            audience=settings.audience,
            clock=clock,
        )
        services = Services(
            settings=settings,
            clock=clock,
            new_id=new_id,
            sleep=asyncio.sleep,
            providers=_providers(settings, bodies if AVAILABLE else None),
            authenticator=authenticator,
            jwks=jwks,
            broker=broker,
            token_gate=TokenGate(),
            prices=load_prices(settings),
            ledger=ledger,
            live_calls=live_calls,
            revocations=revocations,
            keyring=keyring,
            transport=transport,
            vault=vault,
            metrics=metrics,
            gate=gate,
            body_room=BodyRoom(settings.server.sandbox_connections),
        )
        lag = LoopLag(gate.heed)
        lag.start()
        stack.callback(lag.close)
        watch(services, lag, bodies)
        yield services


def _revocations(settings: Settings, live_calls: LiveCalls, clock: StoreClock) -> RevocationView:
    return RevocationView(
        _revocation_store(settings),
        live_calls,
        clock,
        poll_seconds=settings.poll_seconds,
        stale_seconds=settings.stale_seconds,
        stale_stream_seconds=settings.stale_stream_seconds,
    )


def _revocation_store(settings: Settings) -> RevocationStore:
    if settings.database_path is not None:
        return SqliteRevocations(settings.database_path)
    # Imported here alone: the driver is an extra, which an installation on SQLite has not.
    from daypass_proxy.revocations.postgres import PostgresRevocations

    return PostgresRevocations(settings.database)


def _ledger_store(settings: Settings) -> OpenStore:
    if settings.database_path is not None:
        return partial(SqliteStore, settings.database_path)
    from daypass_proxy.ledger.postgres import open_store

    return partial(open_store, settings.database, BUSY_SECONDS)


def _providers(settings: Settings, elsewhere: BodyChecker | None) -> dict[str, Provider]:
    return {
        "anthropic": Anthropic(elsewhere),
        "openai": OpenAI(elsewhere=elsewhere),
        **{name: OpenAI(name, elsewhere) for name in settings.upstreams},
    }


def load_prices(settings: Settings) -> PriceTable:
    """Return the prices of all providers; raises PriceError for what cannot be used."""
    own = {name: each.prices for name, each in settings.upstreams.items()}
    return PriceTable.load(settings.prices, own)


@asynccontextmanager
async def _keys(
    settings: Settings, clock: StoreClock, transport: Transport
) -> AsyncIterator[tuple[Keyring, Vault | None]]:
    """Read the keys of all tenants, keep them fresh, and leave neither threads nor connections."""
    vault = None if settings.vault is None else Vault(settings.vault)
    keyring = Keyring(
        settings.keys,
        env_secrets=settings.env_secrets,
        vault=vault,
        clock=clock,
        exchanger=Exchanger(settings.anthropic_url, transport),
        keyless=[name for name, each in settings.upstreams.items() if not each.keys],
    )
    try:
        await keyring.start()
        yield keyring, vault
    finally:
        await keyring.close()
        if vault is not None:
            vault.close()


def make_transport(settings: Settings) -> Pool:
    """Return the client for the provider; raises RuntimeError for a CA file that holds none."""
    try:
        tls = trust(settings.upstream_ca_file)
    except OSError as error:
        raise RuntimeError(
            f"DAYPASS_UPSTREAM_CA_FILE holds no certificates: {type(error).__name__}"
        ) from None
    return Pool(
        Timeouts(
            connect=settings.connect_seconds,
            first_byte=settings.first_byte_seconds,
            idle=settings.idle_seconds,
        ),
        tls=tls,
        egress=_egress(settings),
        inside=settings.upstream_private,
    )


def _egress(settings: Settings) -> Egress | None:
    proxy = settings.egress_proxy
    if proxy is None or proxy.password is None:
        return None if proxy is None else Egress(proxy.host, proxy.port)
    return Egress(proxy.host, proxy.port, basic_credential(proxy.user, proxy.password))


async def _wait_for_store(revocations: RevocationView, settings: Settings) -> None:
    try:
        async with asyncio.timeout(STORE_SECONDS):
            await revocations.wait_ready()
    except TimeoutError:
        where = settings.database_path or "the PostgreSQL server"
        raise RuntimeError(f"no usable database at {where}; start the broker first") from None


def _worker() -> str:
    """Name this process in the ledger's rows."""
    return f"{socket.gethostname()}:{os.getpid()}"
