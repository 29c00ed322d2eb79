"""`/livez` and `/readyz`, the same on both listeners."""

from __future__ import annotations

import asyncio

import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from daypass_broker import db


def routes(engine: sa.Engine) -> list[Route]:
    """Return the routes: the loop turns; the store answers."""

    async def livez(_: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def readyz(_: Request) -> Response:
        ready = await asyncio.to_thread(_answers, engine)
        return JSONResponse({"status": "ready" if ready else "waiting"}, 200 if ready else 503)

    return [Route("/livez", livez, methods=["GET"]), Route("/readyz", readyz, methods=["GET"])]


def _answers(engine: sa.Engine) -> bool:
    try:
        with db.read(engine) as conn:
            db.now_ms(conn)
    except db.StoreUnavailable:
        return False
    return True
