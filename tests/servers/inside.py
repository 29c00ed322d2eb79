"""The whole request path in this process: real guard, server, relay and transport on real sockets.

Only the stores are fakes, so that a test can look inside (what is buffered, how long is waited)
and take away whatever it wants.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from daypass_core.secret import parse_reference
from daypass_proxy.edge import Application
from daypass_proxy.guard import Limits
from daypass_proxy.keyring import Keyring
from daypass_proxy.transport import Timeouts
from daypass_proxy.transport.pool import Pool
from tests.canary import CANARY
from tests.fakes.guarded import Client, Server, serving
from tests.fakes.keys import FakeVault
from tests.fakes.proxy import KEY, Proxy
from tests.support import access_token, make_claims, make_scope

PATIENT = Timeouts(connect=10, first_byte=10, idle=10)
MODEL = "claude-sonnet-4-5"


@dataclass
class Inside:
    """A proxy that serves, and its parts."""

    server: Server
    proxy: Proxy
    application: Application
    clients: list[Client] = field(default_factory=list)

    @property
    def token(self) -> str:
        """A good access token."""
        return access_token(KEY)

    def replace(self, **services: Any) -> None:
        """Put other services in place of the running ones."""
        assert self.application.services is not None
        self.application.services = replace(self.application.services, **services)

    def request(self, *headers: str, token: str | None = None, **fields: object) -> bytes:
        """A call of /v1/messages as bytes; `headers` are further header lines."""
        body = {
            "model": MODEL,
            "max_tokens": 64,
            "messages": [{"role": "user", "content": "hi"}],
        } | fields
        return raw(
            "POST",
            "/v1/messages",
            json.dumps(body).encode(),
            f"authorization: Bearer {self.token if token is None else token}",
            "content-type: application/json",
            *headers,
        )

    async def ask(self, request: bytes) -> Client:
        """Send bytes on a connection of their own."""
        client = await self.connect()
        await client.send(request)
        return client

    async def connect(self) -> Client:
        """Open a connection; closed at the end."""
        client = await self.server.connect()
        self.clients.append(client)
        return client


def raw(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    """A request as bytes."""
    lines = [f"{method} {path} HTTP/1.1", "host: proxy.test", *headers]
    if body:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def narrow(*endpoints: str) -> str:
    """An access token for these endpoints only."""
    return access_token(KEY, make_claims(scope=make_scope(endpoints=endpoints)))


@asynccontextmanager
async def inside(
    upstream_url: str, *, timeouts: Timeouts = PATIENT, limits: Limits | None = None
) -> AsyncIterator[Inside]:
    """Run a proxy in front of this upstream."""
    proxy = Proxy()
    keyring = Keyring(
        {"anthropic": {"acme": parse_reference("vault://secret/llm/acme#api_key")}},
        env_secrets={},
        vault=FakeVault(acme=f"sk-ant-{CANARY}-acme"),
        clock=proxy.clock,
    )
    pool = Pool(timeouts)
    application = Application(cast(Any, None))
    application.services = replace(
        proxy.services,
        settings=replace(proxy.settings, anthropic_url=upstream_url),
        keyring=keyring,
        transport=pool,
    )
    try:
        async with serving(cast(Any, application), limits) as server:
            running = Inside(server, proxy, application)
            try:
                yield running
            finally:
                for client in running.clients:
                    client.writer.transport.abort()
    finally:
        await keyring.close()
        await pool.close()
