"""The broker as a whole: its collaborators, its two listeners, what answers where.

The internal listener (token endpoint, key set) is for the proxy; the admin listener for people and
orchestrators. Everything is built once here, in one lifespan around both, and handed down.
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

import daypass_migrations
from daypass_broker import db, health, oauth, reaper
from daypass_broker.admin import admin_app
from daypass_broker.issue import TokenEndpoint
from daypass_broker.key_ring import open_ring
from daypass_broker.periodic import Periodic, repeat
from daypass_broker.services import Services
from daypass_broker.settings import Settings
from daypass_broker.signing import Signer
from daypass_core.clock import StoreClock
from daypass_core.ids import new_id
from daypass_core.server import Listener, TlsFiles, serve

# Verifiers may keep the key set this long; key_rotation.NOTICE_MS is longer.
_JWKS_HEADERS = {"cache-control": "public, max-age=300"}


class NotMigrated(Exception):
    """The database has not the schema this broker was made for; the message says what to run."""


async def run(settings: Settings) -> None:
    """Serve both listeners until a signal.

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
        )


@contextlib.asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """Build the broker's collaborators, and take them down again on leaving."""
    async with contextlib.AsyncExitStack() as stack:
        await asyncio.to_thread(_check_schema, settings.database_url)
        engine = db.connect(settings.database_url)
        stack.callback(engine.dispose)
        clock = StoreClock()
        await asyncio.to_thread(_set_clock, engine, clock)
        keys = await asyncio.to_thread(open_ring, engine, settings.keys, new_id)
        services = Services(
            engine=engine,
            clock=clock,
            settings=settings,
            signer=Signer(keys),
            keys=keys,
            new_id=new_id,
        )
        for task in _tasks(services, clock):
            stack.push_async_callback(_cancelled, asyncio.create_task(repeat(task)))
        yield services


def _tasks(services: Services, clock: StoreClock) -> tuple[Periodic, ...]:
    """Return everything the broker does by itself: name, pause in seconds, work (in a thread)."""
    return (
        # The machine's monotonic clock stands still while it is suspended, the store's does not.
        Periodic("clock", 5.0, partial(_set_clock, services.engine, clock)),
        # Well below key_rotation.SHORT_NOTICE_MS: all brokers publish a key before one signs.
        Periodic("keys", 1.0, services.keys.refresh),
        Periodic("reaper", reaper.REAP_SECONDS, partial(reaper.reap, services)),
        Periodic("slices", reaper.REAP_SECONDS, partial(reaper.give_back, services)),
        Periodic("pruner", reaper.PRUNE_SECONDS, partial(reaper.prune, services)),
    )


def internal_app(services: Services) -> Starlette:
    """Return what answers the proxy: tokens, the keys they verify with, health."""
    # Neither document asks the store: nobody can make us work by fetching them.
    metadata = json.dumps(oauth.metadata(services.settings.issuer)).encode()

    async def jwks(_: Request) -> Response:
        key_set = json.dumps(services.keys.jwks(), separators=(",", ":"), sort_keys=True).encode()
        return Response(key_set, headers=_JWKS_HEADERS, media_type="application/json")

    async def discovery(_: Request) -> Response:
        return Response(metadata, headers=_JWKS_HEADERS, media_type="application/json")

    token = TokenEndpoint(services)
    app = Starlette(
        routes=[
            Route(oauth.TOKEN_PATH, token.post, methods=["POST"]),
            Route(oauth.JWKS_PATH, jwks, methods=["GET"]),
            Route(oauth.METADATA_PATH, discovery, methods=["GET"]),
            *health.routes(services.engine),
        ]
    )
    app.router.redirect_slashes = False
    return app


def _tls(settings: Settings) -> TlsFiles | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return TlsFiles(settings.tls_cert, settings.tls_key)


def _check_schema(database_url: str) -> None:
    try:
        found = daypass_migrations.current(database_url)
    except sa.exc.OperationalError:
        raise db.StoreUnavailable("the database does not answer") from None
    if found != daypass_migrations.HEAD:
        raise NotMigrated(
            f"the database is at revision {found or 'none'}, this broker needs"
            f" {daypass_migrations.HEAD}: run python -m daypass_broker migrate"
        )


def _set_clock(engine: sa.Engine, clock: StoreClock) -> None:
    with db.read(engine) as conn:
        clock.set(db.now_ms(conn) / 1000)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
