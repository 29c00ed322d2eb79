"""The metrics listener: GET /metrics, /livez and /readyz, on an address of its own.

Not part of the table of `edge`: the public listener answers 404 there, since a sandbox has no
business with figures about all the others (DAYPASS_PROXY_METRICS_LISTEN, off unless set).
Figures are put together in a thread, one scrape at a time, so that calls do not wait for them.
"""

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from daypass_proxy import me
from daypass_proxy.exchange import Exchange, Receive, Send
from daypass_proxy.services import Services
from daypass_proxy.sibling import Siblings


class Scrape:
    """The ASGI application of the metrics listener."""

    def __init__(
        self, services: Callable[[], Services | None], siblings: Siblings | None = None
    ) -> None:
        """`services` gives those of the proxy, None while there are none.

        With `siblings` the figures are those of all workers.
        """
        self._services = services
        self._siblings = siblings
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one ASGI connection; its life is that of the proxy's application."""
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        services = self._services()
        if services is None:
            exchange = Exchange(scope, receive, send, request_id="", started=0.0)
            await exchange.respond(503, [], b"")
            return
        request_id, now = services.new_id("req"), services.clock.monotonic()
        exchange = Exchange(scope, receive, send, request_id=request_id, started=now)
        if exchange.method not in ("GET", "HEAD"):
            await exchange.respond(405, [(b"allow", b"GET, HEAD")], b"")
        elif exchange.raw_path == b"/metrics":
            await self._metrics(exchange, services.metrics.registry)
        elif exchange.raw_path == b"/livez":
            await me.live(exchange, services)
        elif exchange.raw_path == b"/readyz":
            await me.ready(exchange, services)
        else:
            await exchange.respond(404, [], b"")

    async def _metrics(self, exchange: Exchange, registry: CollectorRegistry) -> None:
        accepted = ",".join(value.decode("latin-1") for value in exchange.values(b"accept"))
        encode, content_type = choose_encoder(accepted)
        async with self._one_at_a_time:
            text = await asyncio.to_thread(encode, registry)
            if self._siblings is not None:
                text = (await self._siblings.figures(text.decode(), accepted)).encode()
        headers = [(b"content-type", content_type.encode()), (b"cache-control", b"no-store")]
        await exchange.respond(200, headers, text)
