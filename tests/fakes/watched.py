"""The whole request path in memory behind the real guard, with windows at authentication and body.

What the authenticator accepted, what the body check read and what went upstream are kept apart, so
that a test can hold one against the other.
"""

from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import Any, cast

from daypass_core.claims import Claims
from daypass_core.secret import parse_reference
from daypass_proxy.edge import Application
from daypass_proxy.exchange import Exchange
from daypass_proxy.keyring import Keyring
from daypass_proxy.transport import UpstreamRequest
from tests.canary import CANARY
from tests.fakes.keys import FakeVault
from tests.fakes.proxy import KEY, Proxy
from tests.fakes.transport import JSON, FakeAnswer, FakeTransport
from tests.servers.wire import message_json
from tests.support import access_token, make_claims
from tests.vectors.raw_requests import forge

PROVIDER_KEY = f"sk-ant-{CANARY}-acme"
MODEL = "claude-sonnet-4-5"
SANDBOXES = {
    "token": ("acme", "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa"),
    "other": ("globex", "sbx_bbbbbbbbbbbbbbbbbbbbbbbbbb"),
}
CREDENTIALS = {
    name: access_token(KEY, make_claims(tenant=tenant, sandbox=sandbox, key_id=KEY.kid))
    for name, (tenant, sandbox) in SANDBOXES.items()
}
CREDENTIALS["forged"] = forge(CREDENTIALS["token"])
CREDENTIALS["half"] = CREDENTIALS["token"][: len(CREDENTIALS["token"]) // 2]


@dataclass
class Accepted:
    """A request at the moment its credential was accepted; `checked` is the body that was read."""

    claims: Claims
    method: str
    path: bytes
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    checked: bytes | None = None


class Provider(FakeTransport):
    """A transport that answers every request with a small message."""

    async def send(self, request: UpstreamRequest) -> FakeAnswer:
        """Answer, whatever it is."""
        import json

        self.script.append(FakeAnswer([json.dumps(message_json(MODEL)).encode()], headers=JSON))
        return await super().send(request)


@dataclass
class Watched:
    """The application and what was seen on the way through it."""

    accepted: list[Accepted] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.transport = Provider()
        proxy = Proxy()
        services = proxy.services
        self.ledger = proxy.ledger
        self.application = Application(cast(Any, None))
        self.application.services = replace(
            services,
            authenticator=cast(Any, _Authenticator(services.authenticator, self.accepted)),
            providers={
                name: cast(Any, _Dialect(each, self.accepted))
                for name, each in services.providers.items()
            },
            keyring=Keyring(
                {
                    provider: {
                        name: parse_reference(f"vault://secret/{name}#api_key") for name in TENANTS
                    }
                    for provider in services.providers
                },
                env_secrets={},
                vault=FakeVault(**dict.fromkeys(TENANTS, PROVIDER_KEY)),
                clock=proxy.clock,
            ),
            transport=self.transport,
        )

    @property
    def sent(self) -> list[UpstreamRequest]:
        """What went upstream."""
        return self.transport.requests

    def who(self) -> list[str]:
        """The names of the credentials that were accepted, in order."""
        names = {sandbox: name for name, (_, sandbox) in SANDBOXES.items()}
        return [names[one.claims.sandbox] for one in self.accepted]


TENANTS = [tenant for tenant, _ in SANDBOXES.values()]


class _Window:
    """Everything of the service behind it."""

    def __init__(self, inner: Any, accepted: list[Accepted]) -> None:
        self._inner = inner
        self._accepted = accepted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Authenticator(_Window):
    async def authenticate(self, exchange: Exchange) -> Claims:
        claims = self._inner.authenticate(exchange)
        if isawaitable(claims):
            claims = await claims
        self._accepted.append(
            Accepted(
                claims,
                exchange.method,
                exchange.raw_path,
                exchange.raw_query,
                tuple(exchange.headers),
            )
        )
        return cast(Claims, claims)


class _Dialect(_Window):
    def read(self, exchange: Exchange, endpoint: str, body: bytes, *more: Any) -> Any:
        self._accepted[-1].checked = body
        return self._inner.read(exchange, endpoint, body, *more)
