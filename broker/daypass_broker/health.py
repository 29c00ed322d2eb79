"""`/livez` and `/readyz`, the same on both listeners; and whether the schema suits this release.

A broker that a migration has left behind is not ready any more, so that nobody is sent to it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import daypass_migrations
from daypass_broker import db
from daypass_core import schema_version
from daypass_migrations import State


@dataclass(slots=True)
class Ending:
    """Whether the broker is about to end; whoever sends to it should turn elsewhere."""

    begun: bool = False

    def begin(self) -> None:
        """Be not ready from now on."""
        self.begun = True


def routes(engine: sa.Engine, ending: Ending) -> list[Route]:
    """Return the routes: the loop turns; the store answers, and is one for this release."""

    async def livez(_: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def readyz(_: Request) -> Response:
        if ending.begun:
            return JSONResponse({"status": "stopping"}, 503)
        ready = await asyncio.to_thread(_is_ready, engine)
        return JSONResponse({"status": "ready" if ready else "waiting"}, 200 if ready else 503)

    return [Route("/livez", livez, methods=["GET"]), Route("/readyz", readyz, methods=["GET"])]


def objection(engine: sa.Engine) -> str | None:
    """Return why this release cannot run on the database; None when it can.

    Makes no file. Raises StoreUnavailable.
    """
    found = State(None)
    if engine.dialect.name != "sqlite" or Path(str(engine.url.database)).exists():
        with db.read(engine) as conn:
            found = daypass_migrations.state(conn)
    return schema_version.objection(
        found.revision, found.readable_from, made_for=daypass_migrations.HEAD
    )


def _is_ready(engine: sa.Engine) -> bool:
    try:
        return objection(engine) is None
    except db.StoreUnavailable:
        return False
