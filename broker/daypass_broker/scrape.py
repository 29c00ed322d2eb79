"""The metrics listener: GET /metrics, /livez and /readyz, on an address of its own.

Plain HTTP without credentials, off unless DAYPASS_BROKER_METRICS_LISTEN is set. Figures are put
together in a thread, one scrape at a time.
"""

from __future__ import annotations

import asyncio

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from daypass_broker import health
from daypass_broker.services import Services


def metrics_app(services: Services) -> Starlette:
    """Return what answers on the metrics listener."""
    one_at_a_time = asyncio.Lock()

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(",".join(request.headers.getlist("accept")))
        async with one_at_a_time:
            text = await asyncio.to_thread(encode, services.metrics.registry)
        return Response(text, headers={"content-type": content_type, "cache-control": "no-store"})

    app = Starlette(
        routes=[
            Route("/metrics", metrics, methods=["GET"]),
            *health.routes(services.engine, services.ending),
        ]
    )
    app.router.redirect_slashes = False
    return app
