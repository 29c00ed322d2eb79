"""A call that does not end by itself: its client leaves, it is revoked, the server stops."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from daypass_core.revocation import Revocation, RevocationSet
from daypass_proxy.ledger import Outcome, Terms
from daypass_proxy.likely_tokens import likely_tokens
from daypass_proxy.streams import CutReason
from tests.fakes.exchange import FakeClient
from tests.fakes.forwarding import WHOLE, Forwarding, request_body
from tests.fakes.transport import JSON, FakeAnswer
from tests.servers.wire import text_delta
from tests.support import SANDBOX, make_claims


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def without_drain(*script: FakeAnswer) -> Forwarding:
    """A proxy whose account does not have answers read on without their client."""
    proxy = Forwarding(*script)
    proxy.ledger.terms[f"sandbox:{SANDBOX}"] = Terms(drain_ms=0)
    return proxy


async def wait_for(proxy: Forwarding, act: Callable[[], object]) -> FakeClient:
    """Serve with the provider's headers held back; act once the request is there."""
    proxy.transport.gate.clear()
    task = asyncio.create_task(proxy.forward())
    await proxy.transport.arrived.wait()
    act()
    return await task


async def test_client_gone_before_headers() -> None:
    """B05 (b), B30 (b): a client that leaves before any byte pays for its input, once."""
    proxy = without_drain()
    client = await wait_for(proxy, proxy.client.hang_up)
    assert client.status is None
    settled = proxy.ledger.settlement
    assert settled.outcome is Outcome.CLIENT_GONE
    assert settled.estimated
    assert settled.usage.input_tokens == likely_tokens(request_body())
    assert settled.usage.output_tokens is None
    assert proxy.closing_line["outcome"] == "client_gone"
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_client_gone_before_it_is_watched() -> None:
    """B30 (b): a client that left while the hold was taken is cut before anything goes up."""
    proxy = Forwarding()
    proxy.client.hang_up()
    await proxy.forward()
    assert proxy.transport.requests == []
    assert proxy.ledger.settlement.outcome is Outcome.CLIENT_GONE
    assert proxy.ledger.settlement.cost_nano == 0


async def test_client_gone_in_the_stream() -> None:
    """B30 (a): a client that leaves in the middle ends the upstream's answer."""
    answer = FakeAnswer([*WHOLE[:4], asyncio.Event()])
    proxy = without_drain(answer)
    task = asyncio.create_task(proxy.forward())
    await answer.waiting.wait()
    proxy.client.hang_up()
    await task
    assert answer.closed
    assert proxy.ledger.settlement.outcome is Outcome.CLIENT_GONE
    assert proxy.ledger.settlement.usage.input_tokens == 25


async def test_client_gone_in_a_whole_answer() -> None:
    """B30 (c): the same for a call that does not stream."""
    answer = FakeAnswer([b"{", asyncio.Event()], headers=JSON)
    proxy = without_drain(answer)
    task = asyncio.create_task(proxy.forward())
    await answer.waiting.wait()
    proxy.client.hang_up()
    await task
    assert answer.closed
    assert proxy.ledger.settlement.outcome is Outcome.CLIENT_GONE


async def test_revoked_before_headers() -> None:
    """A call revoked while the provider thinks is answered 401, final."""
    proxy = Forwarding()
    rows = [Revocation("tenant", "acme", 2**31, 2**32)]

    def revoke() -> None:
        assert proxy.live_calls.cut_revoked(RevocationSet.from_rows(rows)) == 1

    client = await wait_for(proxy, revoke)
    assert client.status == 401
    assert client.headers[b"x-should-retry"] == b"false"
    assert proxy.ledger.settlement.outcome is Outcome.CUT_REVOKED


async def test_one_token_ended_before_headers() -> None:
    """A call whose one token was ended is answered like expiry: renewal is allowed."""
    proxy = Forwarding()
    client = await wait_for(proxy, lambda: proxy.live_calls.cut_all(CutReason.TOKEN_ENDED))
    assert client.status == 401
    assert b"The access token expired" in client.headers[b"www-authenticate"]


async def test_revoked_in_the_stream() -> None:
    """A revoked stream ends with an error event, and the row says so."""
    answer = FakeAnswer([*WHOLE[:4], asyncio.Event()])
    proxy = Forwarding(answer)
    task = asyncio.create_task(proxy.forward())
    await answer.waiting.wait()
    proxy.live_calls.cut_all(CutReason.REVOKED)
    client = await task
    assert client.status == 200
    assert client.body.rpartition(b"event: error")[1]
    assert proxy.ledger.settlement.outcome is Outcome.CUT_REVOKED
    assert proxy.closing_line["outcome"] == "cut_revoked"


async def test_expiry_does_not_cut() -> None:
    """B17: a stream outlives its token to its last frame; the next call is refused."""
    gate = asyncio.Event()
    answer = FakeAnswer([*WHOLE[:3], gate, *[text_delta("x")] * 15, *WHOLE[3:]])
    proxy = Forwarding(answer, FakeAnswer(WHOLE))
    proxy.claims = make_claims(ttl=5)
    task = asyncio.create_task(proxy.forward())
    await answer.waiting.wait()
    proxy.clock.advance(3600)
    gate.set()
    client = await task
    assert client.body.endswith(WHOLE[-1])
    assert client.body.count(text_delta("x")) == 15
    assert proxy.ledger.settlement.outcome is Outcome.COMPLETE
    proxy.new_client()
    assert (await proxy.forward()).status == 401


async def test_longest_call() -> None:
    """A call past the longest time is ended, and its client told."""
    proxy = Forwarding()
    client = await wait_for(proxy, lambda: proxy.live_calls.cut_all(CutReason.TOO_LONG))
    assert client.status == 504
    assert proxy.ledger.settlement.outcome is Outcome.CUT_TOO_LONG


async def test_server_stops() -> None:
    """A request that is cancelled with the server is booked before it goes."""
    answer = FakeAnswer([*WHOLE[:4], asyncio.Event()])
    proxy = Forwarding(answer)
    task = asyncio.create_task(proxy.forward())
    await answer.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert proxy.ledger.settlement.outcome is Outcome.SHUTDOWN
    assert answer.closed
