"""A revocation at every moment of a call: wherever it comes, nothing of the call is left alive.

Not a sample of timings: the call is taken apart into all points at which it lets go of the event
loop, from its first header to its last byte, and for each of them one call is served into which the
revocation falls exactly there.
"""

import asyncio
import logging
from dataclasses import replace
from typing import Any, cast

import pytest

from daypass_core.clock import StoreClock
from daypass_core.revocation import Revocation, RevocationSet
from daypass_proxy.authenticate import Authenticator
from daypass_proxy.exchange import Message
from daypass_proxy.jwks_cache import JwksCache
from daypass_proxy.revocations import RevocationView
from tests.fakes.broker import jwks
from tests.fakes.exchange import FakeClient
from tests.fakes.forwarding import WHOLE, Forwarding, request_body
from tests.fakes.stepped import Stepped, paced
from tests.fakes.transport import FakeAnswer
from tests.support import (
    AUDIENCE,
    ISSUER,
    NOW,
    SANDBOX,
    TENANT,
    access_token,
    make_claims,
    signing_key,
)

KEY = signing_key("races")
CLAIMS = make_claims(key_id=KEY.kid)
ENDS = {
    "sandbox": Revocation("sandbox", SANDBOX, NOW, NOW + 86_400),
    "tenant": Revocation("tenant", TENANT, NOW, NOW + 86_400),
    "global": Revocation("global", "*", NOW, NOW + 86_400),
    "grant": Revocation("grant", "grt_root", NOW, NOW + 86_400),
    "ended": Revocation("sandbox", SANDBOX, None, NOW + 86_400),
    "kid": Revocation("kid", KEY.kid, None, NOW + 86_400),
    "jti": Revocation("jti", "tok_one", None, NOW + 86_400),
}
PIECE = b"content_block_delta"


class SlowClient(FakeClient):
    """A client on a network: what it sends takes its time, and so does what is written to it."""

    async def _receive(self) -> Message:
        await asyncio.sleep(0)
        return await super()._receive()

    async def _send(self, message: Message) -> None:
        # Only afterwards: the server has written by the time it waits for the client to read.
        await super()._send(message)
        await asyncio.sleep(0)


class Race:
    """One streaming call through the real authenticator, view and registry, and its end."""

    def __init__(self, end: str) -> None:
        self.end = end
        self.answer = FakeAnswer(list(WHOLE))
        self.proxy = proxy = Forwarding(self.answer)
        clock = proxy.clock
        self.view = RevocationView(
            cast(Any, None), proxy.live_calls, cast(StoreClock, clock), stale_seconds=31.0
        )
        self.view.take(RevocationSet.from_rows(()), clock.monotonic())
        keys = JwksCache(self._jwks, clock)
        authenticator = Authenticator(
            keys=keys,
            view=self.view,
            count=proxy.ledger.count,
            issuer=ISSUER,
            audience=AUDIENCE,
            clock=clock,
        )
        proxy.services = replace(
            proxy.services, authenticator=authenticator, jwks=keys, revocations=self.view
        )
        authorization = (b"authorization", f"Bearer {access_token(KEY, CLAIMS)}".encode())
        self.client = proxy.client = SlowClient(request_body(), headers=(authorization,))
        paced(proxy.ledger, "reserve", "extend", "settle")
        paced(proxy.services.keyring, "header_for")
        paced(proxy.transport, "send")
        paced(self.answer, "read")
        self.came_at: tuple[int, int] | None = None

    async def run(self, at: int) -> int:
        """Serve the call with its end at step `at`; return how many steps it had."""
        stepped = Stepped(self.proxy.forward(), at, self._end)
        await asyncio.create_task(_awaited(stepped))
        return stepped.steps

    def _end(self) -> None:
        self.came_at = len(self.proxy.transport.requests), len(self.client.chunks)
        if self.end == "stale":
            self.proxy.clock.mono += 62.0
            self.view.cut_stale()
        else:
            found = RevocationSet.from_rows((ENDS[self.end],))
            self.view.take(found, self.proxy.clock.monotonic())

    async def _jwks(self) -> bytes:
        await asyncio.sleep(0)
        return jwks(KEY)


async def _awaited(stepped: Stepped[Any]) -> None:
    await stepped


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


@pytest.mark.parametrize("end", [*ENDS, "stale"])
async def test_no_moment_lets_a_revoked_call_live(end: str) -> None:
    """At every step: no request goes up and no piece goes down afterwards, all is booked.

    That the registry is empty and no row is open is checked by `Forwarding.forward` at each end.
    """
    steps = await Race(end).run(0)
    assert steps >= 20, "the path has this many points where it lets go"
    seen = set()
    for at in range(1, steps + 1):
        race = Race(end)
        await race.run(at)
        assert race.came_at is not None
        requests, chunks = race.came_at
        assert len(race.proxy.transport.requests) == requests, (at, "went up afterwards")
        later = race.client.chunks[chunks:]
        assert not any(PIECE in piece for piece in later), (at, later)
        if race.proxy.closing_line["outcome"] == "complete":
            assert PIECE in race.client.body, at
            assert race.client.finished, at
        seen.add((race.client.status, race.proxy.closing_line["outcome"]))
    refused = 503 if end == "stale" else 401
    cut = "cut_stale" if end == "stale" else "cut_revoked"
    assert seen == {
        (refused, "refused"),  # before it was admitted
        (refused, cut),  # before its answer began
        (200, cut),
        (200, "complete"),  # after its last byte
    }


async def test_a_revocation_that_was_there_before_admits_nothing() -> None:
    """With the row in force from the beginning neither the body is read nor a hold taken."""
    race = Race("sandbox")
    race._end()
    await race.run(0)
    assert race.client.status == 401
    assert race.proxy.ledger.reservations == []
    assert not race.client.body_was_read
