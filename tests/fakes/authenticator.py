"""An authenticator whose broker, clock and revocation view a test holds in its hands."""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from daypass_core.claims import Claims
from daypass_core.problem import Problem, Refusal
from daypass_proxy.authenticate import Authenticator
from daypass_proxy.broker_link import BrokerUnreachable
from daypass_proxy.jwks_cache import JwksCache
from tests.fakes.asgi import make_exchange
from tests.fakes.broker import jwks
from tests.fakes.clock import FakeClock
from tests.fakes.proxy import KEY, FakeView
from tests.support import AUDIENCE, ISSUER, SigningKey


@dataclass
class Rig:
    """An authenticator and everything around it."""

    published: tuple[SigningKey, ...] = (KEY,)
    down: bool = False
    hang: Callable[[], Awaitable[object]] | None = None
    fetches: int = 0
    clock: FakeClock = field(default_factory=FakeClock)
    view: FakeView = field(default_factory=FakeView)
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.keys = JwksCache(self.fetch, self.clock)
        self.authenticator = Authenticator(
            keys=self.keys,
            view=cast(Any, self.view),
            count=self.count,
            issuer=ISSUER,
            audience=AUDIENCE,
            clock=self.clock,
        )

    async def fetch(self) -> bytes:
        """Be the broker's key set."""
        self.fetches += 1
        if self.hang is not None:
            await self.hang()
        if self.down:
            raise BrokerUnreachable("down", sent=False)
        return jwks(*self.published)

    def count(self, subject: str, kind: str) -> None:
        """Be the ledger's count."""
        self.counted[subject, kind] += 1

    async def claims(
        self, *headers: tuple[bytes, str], peer: str = "10.0.0.7", token: str | None = None
    ) -> Claims:
        """Authenticate a request with these headers, and `token` as its bearer."""
        pairs = [(name, value.encode("latin-1")) for name, value in headers]
        if token is not None:
            pairs.append((b"authorization", b"Bearer " + token.encode("latin-1")))
        exchange, _ = make_exchange(headers=pairs, peer=peer)
        return await self.authenticator.authenticate(exchange)

    async def refused(
        self, *headers: tuple[bytes, str], peer: str = "10.0.0.7", token: str | None = None
    ) -> Problem:
        """Return the problem of a request that must be refused."""
        with pytest.raises(Refusal) as caught:
            await self.claims(*headers, peer=peer, token=token)
        return caught.value.problem
