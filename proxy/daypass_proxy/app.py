"""The composition root: reads as a table of contents. Services, guard, listeners."""

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from daypass_core.clock import StoreClock
from daypass_core.ids import new_id
from daypass_core.problem import Problem
from daypass_core.server import DRAIN_SECONDS, Listener, serve
from daypass_core.vault import Vault
from daypass_proxy.authenticate import Authenticator
from daypass_proxy.body.spool import AVAILABLE
from daypass_proxy.broker_link import BrokerLink, fetch_jwks
from daypass_proxy.checkers.pool import BodyPool
from daypass_proxy.edge import Application
from daypass_proxy.gauges import watch
from daypass_proxy.guard import Limits, guarded
from daypass_proxy.jwks_cache import JwksCache
from daypass_proxy.keyring import Keyring, basic_credential
from daypass_proxy.ledger.face import BatchedLedger
from daypass_proxy.ledger.sqlite import SqliteStore
from daypass_proxy.ledger.store import OpenStore
from daypass_proxy.loop_lag import LoopLag
from daypass_proxy.metrics import Metrics
from daypass_proxy.price import PriceTable
from daypass_proxy.providers import BodyChecker, Provider, Rendered
from daypass_proxy.providers.anthropic import Anthropic
from daypass_proxy.providers.openai import OpenAI
from daypass_proxy.revocations import RevocationStore, RevocationView
from daypass_proxy.revocations.sqlite import SqliteRevocations
from daypass_proxy.routes import speaker
from daypass_proxy.scrape import Scrape
from daypass_proxy.services import Services
from daypass_proxy.settings import Settings
from daypass_proxy.streams import CutReason, LiveCalls
from daypass_proxy.token_gate import TokenGate
from daypass_proxy.transport import Timeouts
from daypass_proxy.transport.dial import trust
from daypass_proxy.transport.egress import Egress
from daypass_proxy.transport.pool import Pool

# How long the store may take to answer at start; the broker creates it.
STORE_SECONDS = 10.0
# How long the ledger waits for what another process has locked in PostgreSQL.
BUSY_SECONDS = 5.0
# Streams still open this long before the drain's end are told so, instead of being torn.
_LAST_WORDS_SECONDS = 5.0


@asynccontextmanager
async def build_services(settings: Settings, clock: StoreClock) -> AsyncIterator[Services]:
    """Make every service in order, and close them in reverse."""
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
        keyring = _keyring(settings, clock)
        stack.push_async_callback(keyring.close)
        await keyring.start()
        transport = make_transport(settings)
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
            metrics=metrics,
        )
        lag = LoopLag()
        lag.start()
        stack.callback(lag.close)
        watch(services, lag)
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

    return PostgresRevocations(settings.database_url)


def _ledger_store(settings: Settings) -> OpenStore:
    if settings.database_path is not None:
        return partial(SqliteStore, settings.database_path)
    from daypass_proxy.ledger.postgres import open_store

    return partial(open_store, settings.database_url, BUSY_SECONDS)


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


def _keyring(settings: Settings, clock: StoreClock) -> Keyring:
    return Keyring(
        settings.keys,
        env_secrets=settings.env_secrets,
        vault=None if settings.vault is None else Vault(settings.vault),
        clock=clock,
        keyless=[name for name, each in settings.upstreams.items() if not each.keys],
    )


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


async def run(settings: Settings, *, on_started: Callable[[], None] | None = None) -> None:
    """Serve until a signal."""
    clock = StoreClock()
    application = Application(partial(build_services, settings, clock))
    guard = guarded(
        Limits(header_seconds=settings.header_seconds),
        render=partial(_render, settings),
        refused=partial(_count_refusal, application),
    )
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
        ]
        + [
            # Of the same life: while calls are drained, their figures can still be read.
            Listener(
                Scrape(lambda: application.services),
                listen,
                name="metrics",
                setting="DAYPASS_PROXY_METRICS_LISTEN",
            )
            for listen in settings.metrics_listen
        ],
        on_started=partial(_started, on_started),
        on_stopping=partial(_warn_streams, application),
        on_cutting=partial(_cut_streams, application),
    )


def _started(then: Callable[[], None] | None) -> None:
    """Keep the collector from stopping the loop, then tell that calls are taken.

    All that was made until now lives as long as the process, so no round has to look at it again.
    Calls leave no cycles behind, so rounds may be rare: by default the opening of thousands of
    streams would start several full ones, each longer than a stream may wait. Measured with 5,000
    streams: a full round takes 100 ms and finds nothing, one of the middle generation 14 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 1_000)
    if then is not None:
        then()


def _render(settings: Settings, problem: Problem, request_id: str, target: bytes) -> Rendered:
    """Render what the guard refuses in the shape that the client of this target reads."""
    name = speaker(target.partition(b"?")[0], settings.upstreams)
    dialect: Provider = Anthropic() if name == "anthropic" else OpenAI(name)
    return dialect.render(problem, request_id)


def _count_refusal(application: Application, code: str) -> None:
    """Count what the guard refused; before the start and after the end nothing is counted."""
    if application.services is not None:
        application.services.metrics.refused(code)


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
