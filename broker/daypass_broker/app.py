"""The broker as a whole: its collaborators, its listeners, what answers where.

The internal listener (token endpoint, key set) is for the proxy; the admin listener for people and
orchestrators; a third, if set, shows metrics. Everything is built once here, in one lifespan around
them, and handed down.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial

import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from daypass_broker import audit, db, health, oauth, partitions, reaper
from daypass_broker.admin import admin_app
from daypass_broker.census import CENSUS_SECONDS, Census
from daypass_broker.chain import sealing
from daypass_broker.gauges import watch
from daypass_broker.issue import TokenEndpoint
from daypass_broker.key_ring import open_ring
from daypass_broker.metrics import Metrics
from daypass_broker.periodic import Periodic, repeat
from daypass_broker.scrape import metrics_app
from daypass_broker.services import Services
from daypass_broker.settings import Settings
from daypass_broker.signing import Signer
from daypass_core.claims import MAX_ACCESS_LIFE
from daypass_core.clock import TIME_HEADER, StoreClock
from daypass_core.ids import new_id
from daypass_core.server import Drain, Listener, TlsFiles, serve

# Verifiers may keep the key set this long; key_rotation.NOTICE_MS is longer.
_JWKS_HEADERS = {"cache-control": "public, max-age=300"}


class NotMigrated(Exception):
    """The database has not the schema this broker was made for; the message says what to run."""


async def run(settings: Settings) -> None:
    """Serve the listeners until a signal.

    Raises NotMigrated, keys.KeyRingError and db.StoreUnavailable when the broker cannot start.
    """
    async with open_services(settings) as services:
        await serve(
            [
                Listener(
                    internal_app(services),
                    settings.internal,
                    name="internal",
                    setting="DAYPASS_BROKER_INTERNAL",
                ),
                Listener(
                    admin_app(services),
                    settings.admin,
                    tls=_tls(settings),
                    name="admin",
                    setting="DAYPASS_BROKER_ADMIN",
                ),
            ]
            + [
                Listener(
                    metrics_app(services),
                    listen,
                    name="metrics",
                    setting="DAYPASS_BROKER_METRICS_LISTEN",
                    lasting=True,
                )
                for listen in settings.metrics_listen
            ],
            on_stopping=services.ending.begin,
            drain=Drain(settings.not_ready_seconds, settings.broker_drain_seconds),
        )


@contextlib.asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """Build the broker's collaborators, and take them down again on leaving."""
    async with contextlib.AsyncExitStack() as stack:
        engine = db.connect(settings.database_url, file=settings.database_url_file)
        stack.callback(engine.dispose)
        await asyncio.to_thread(_check_schema, engine)
        clock = StoreClock()
        await asyncio.to_thread(_set_clock, engine, clock)
        keys = await asyncio.to_thread(open_ring, engine, settings.keys, new_id)
        metrics, census = Metrics(), Census(engine, clock.monotonic)
        services = Services(
            engine=engine,
            clock=clock,
            settings=settings,
            signer=Signer(keys, metrics.signed),
            keys=keys,
            new_id=new_id,
            metrics=metrics,
        )
        stack.callback(services.threads.close)
        tasks = _tasks(services, clock, census)
        if settings.metrics_listen:
            await asyncio.to_thread(census.count)
            watch(services, census)
            tasks += (Periodic("census", CENSUS_SECONDS, census.count),)
        for task in tasks:
            stack.push_async_callback(_cancelled, asyncio.create_task(repeat(task)))
        yield services


def _tasks(services: Services, clock: StoreClock, census: Census) -> tuple[Periodic, ...]:
    """Return everything the broker does by itself: name, pause in seconds, work (in a thread)."""

    def clocked() -> None:
        _set_clock(services.engine, clock)
        census.answered()

    return (
        # The machine's monotonic clock stands still while it is suspended, the store's does not.
        Periodic("clock", 5.0, clocked),
        # Well below key_rotation.SHORT_NOTICE_MS: all brokers publish a key before one signs.
        Periodic("keys", 1.0, services.keys.refresh),
        Periodic("reaper", reaper.REAP_SECONDS, partial(reaper.reap, services)),
        Periodic("slices", reaper.REAP_SECONDS, partial(reaper.give_back, services)),
        Periodic("pruner", reaper.PRUNE_SECONDS, partial(reaper.prune, services)),
        Periodic("months", partitions.AHEAD_SECONDS, partial(partitions.make_ahead, services)),
        Periodic("heads", sealing.SEAL_SECONDS, partial(sealing.seal, services)),
    )


def internal_app(services: Services) -> Starlette:
    """Return what answers the proxy: tokens, the keys they verify with, health."""
    # Neither document asks the store: nobody can make us work by fetching them.
    metadata = json.dumps(oauth.metadata(services.settings.issuer)).encode()

    async def jwks(_: Request) -> Response:
        key_set = json.dumps(services.keys.jwks(), separators=(",", ":"), sort_keys=True).encode()
        # Who verifies by these keys must not be behind who signs with them.
        headers = {**_JWKS_HEADERS, TIME_HEADER: f"{services.clock.now():.3f}"}
        return Response(key_set, headers=headers, media_type="application/json")

    async def discovery(_: Request) -> Response:
        return Response(metadata, headers=_JWKS_HEADERS, media_type="application/json")

    token = TokenEndpoint(services)
    app = Starlette(
        routes=[
            Route(oauth.TOKEN_PATH, token.post, methods=["POST"]),
            Route(oauth.JWKS_PATH, jwks, methods=["GET"]),
            Route(oauth.METADATA_PATH, discovery, methods=["GET"]),
            *health.routes(services.engine, services.ending),
        ]
    )
    app.router.redirect_slashes = False
    return app


def _tls(settings: Settings) -> TlsFiles | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return TlsFiles(settings.tls_cert, settings.tls_key)


def _check_schema(engine: sa.Engine) -> None:
    objection = health.objection(engine)
    if objection is not None:
        raise NotMigrated(objection)


def _set_clock(engine: sa.Engine, clock: StoreClock) -> None:
    """Follow the store's clock, and never fall behind what brokers have recorded.

    After a jump back (a fail-over, a clock put right) brokers that ran before go on ahead of the
    store; one that starts now would take what those have issued for something of the future.
    """
    with db.read(engine) as conn:
        now, newest = db.now_ms(conn), audit.newest(conn)
    if newest - now > MAX_ACCESS_LIFE * 1000:
        newest = now  # no jump but a mistake, whose tokens are over as far as we are concerned
    clock.set(max(now, newest) / 1000)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
