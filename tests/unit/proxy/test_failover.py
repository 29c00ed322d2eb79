"""Failover: another key of the pool before the first byte, and only when nothing was billed."""

import asyncio
import logging

import pytest

from daypass_core.problem import Code
from daypass_core.revocation import Verdict
from daypass_proxy.attempt import Reply
from daypass_proxy.failover import MOST_ATTEMPTS
from daypass_proxy.keyring import KeyUnavailable
from daypass_proxy.keyring_pool import KeyPool
from daypass_proxy.ledger import LedgerRefused, Outcome
from daypass_proxy.streams import CallCut, CutReason
from daypass_proxy.transport import UpstreamBroken, UpstreamUnreachable
from tests.canary import CANARY
from tests.fakes.call import MODEL, make_attempt
from tests.fakes.transport import JSON, FakeAnswer
from tests.fakes.upstream import KEY, NEWER, Upstream, error

SECOND = f"of-the-second-{CANARY}-and-its-end"
POOL = "acme=vault://secret/llm/acme#k|vault://secret/llm/second#k"


def good() -> FakeAnswer:
    """A success."""
    return FakeAnswer([b"{}"], headers=JSON)


def busy(status: int = 429, after: bytes = b"7", request_id: bytes = b"req_busy") -> FakeAnswer:
    """A 429 or 529."""
    headers = (
        (b"content-type", b"application/json"),
        (b"request-id", request_id),
        (b"retry-after", after),
    )
    return error(status, "rate_limit_error", "slow down", headers)


def two_keys(*script: FakeAnswer | Exception, keys: str = POOL) -> Upstream:
    """A call of a tenant with two keys or more."""
    up = Upstream(*script, keys=keys)
    up.vault.secrets["second"] = SECOND
    return up


def sent(up: Upstream) -> list[str]:
    """The keys that requests went up with."""
    return [dict(request.headers)[b"x-api-key"].decode() for request in up.transport.requests]


def pool_of(up: Upstream) -> KeyPool:
    """The pool of the calls."""
    found = up.services.keyring.pool("acme", "anthropic")
    assert found is not None
    return found


async def again(up: Upstream, *script: FakeAnswer) -> Reply:
    """Send another call of the same sandbox."""
    up.transport.script.extend(script)
    up.attempt = make_attempt(up.ledger)
    return await up.send()


@pytest.mark.parametrize("status", [429, 529])
async def test_another_key(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """A key that is answered 429 or 529 cools down, and the call goes on with the other one."""
    first = busy(status)
    up = two_keys(first, good())
    assert (await up.send()).status == 200
    assert sent(up) == [KEY, SECOND]
    assert first.closed
    assert (await again(up, good())).status == 200
    assert sent(up)[2:] == [SECOND]
    (left, taken) = pool_of(up).keys
    assert (left.use.requests, left.use.failovers, left.use.cooled.total()) == (1, 1, 1)
    assert (taken.use.requests, taken.use.failovers, taken.use.cooled.total()) == (2, 0, 0)
    (said,) = [record for record in caplog.records if record.message == "pool_key_cooled"]
    assert CANARY not in str(said.__dict__)
    assert "vault://secret/llm/acme#k" in str(said.__dict__)


async def test_each_attempt_has_its_own_row() -> None:
    """B51: each attempt is settled at nothing before the next is held, with the id it was given."""
    up = two_keys(busy(529), busy(529), good(), keys=POOL + "|vault://secret/llm/third#k")
    up.vault.secrets["third"] = "sk-ant-third"
    assert (await up.send()).status == 200
    rows = [(one.usage_id, one.http_status, one.cost_nano) for one in up.ledger.settlements]
    assert rows == [("req_test", 529, 0), ("req_test-2", 529, 0)]
    assert {one.upstream_request_id for one in up.ledger.settlements} == {"req_busy"}
    assert {one.outcome for one in up.ledger.settlements} == {Outcome.UPSTREAM_REFUSED}
    assert [(one.usage_id, one.attempt) for one in up.ledger.reservations] == [
        ("req_test-2", 2),
        ("req_test-3", 3),
    ]
    await up.attempt.settle()
    assert up.ledger.open_rows == 0


async def test_both_are_busy() -> None:
    """B48: when no other key is left the provider's own answer passes as it is."""
    last = busy(529, b"11", b"req_last")
    up = two_keys(busy(), last)
    reply = await up.send()
    assert (reply.status, reply.headers) == (529, last.headers)
    assert b"slow down" in reply.body
    assert sent(up) == [KEY, SECOND]
    # While all cool down every call goes up once, with the key that is ready first.
    reply = await again(up, busy(429, b"5"))
    assert (reply.status, dict(reply.headers)[b"retry-after"]) == (429, b"5")
    assert sent(up)[2:] == [KEY]


async def test_cool_down_ends() -> None:
    """After the time that the provider told the key has its turn again."""
    up = two_keys(busy(after=b"7"), good())
    await up.send()
    up.clock.advance(6.9)
    await again(up, good())
    assert sent(up)[2:] == [SECOND]
    up.clock.advance(0.1)
    await again(up, good())
    await again(up, good())
    assert set(sent(up)[3:]) == {KEY, SECOND}


@pytest.mark.parametrize("status", [400, 403, 404, 408, 413, 500, 502, 503, 504])
async def test_no_other_key_for_other_answers(status: int) -> None:
    """B51: whatever may have been billed, or is not about the key, is told to the client."""
    up = two_keys(error(status, "api_error", "x"), good())
    assert (await up.send()).status == status
    assert sent(up) == [KEY]
    assert pool_of(up).keys[0].use.cooled.total() == 0


@pytest.mark.parametrize("failure", [UpstreamUnreachable("reset"), UpstreamBroken("not HTTP")])
async def test_no_other_key_after_a_failure(failure: Exception) -> None:
    """B51: a call that left and got no answer is not sent again: it may have been billed."""
    up = two_keys(failure, good())
    await up.refused()
    assert sent(up) == [KEY]


async def test_revoked_meanwhile() -> None:
    """A token that was revoked while the first key was tried goes no further: 401."""
    up = two_keys(busy(), good())
    up.proxy.view.says = Verdict.REVOKED
    assert (await up.refused()).code is Code.TOKEN_REVOKED
    assert sent(up) == [KEY]
    assert up.ledger.settlement.http_status == 429
    assert up.ledger.open_rows == 0


async def test_expired_meanwhile() -> None:
    """A token that ran out meanwhile goes no further either."""
    up = two_keys(busy(), good())
    up.clock.advance(3600)
    assert (await up.refused()).code is Code.TOKEN_EXPIRED
    assert sent(up) == [KEY]


async def test_stale_view() -> None:
    """Where nobody can say whether it was revoked nothing more is sent."""
    up = two_keys(busy(), good())
    up.proxy.view.stale = True
    assert (await up.refused()).code is Code.VIEW_STALE
    assert sent(up) == [KEY]


async def test_cut_before_the_second_attempt() -> None:
    """B08: a call that is cut while its first answer comes sends nothing more."""
    first = busy()
    up = two_keys(first, good())
    up.transport.gate.clear()
    task = asyncio.create_task(up.send())
    await up.transport.arrived.wait()
    up.transport.gate.set()
    up.attempt.live.reason = CutReason.REVOKED
    with pytest.raises(CallCut):
        await task
    assert sent(up) == [KEY]
    assert first.closed


async def test_no_second_hold() -> None:
    """B51: where no second hold is to be had the first answer passes, and is booked once."""
    first = busy()
    up = two_keys(first, good())
    up.ledger.refusal = LedgerRefused("overloaded")
    reply = await up.send()
    assert (reply.status, reply.headers) == (429, first.headers)
    assert sent(up) == [KEY]
    await up.attempt.settle()
    assert (up.ledger.settlement.http_status, up.ledger.open_rows) == (429, 0)
    assert first.closed


async def test_ledger_gone() -> None:
    """With the store gone for the second hold the first answer passes too."""
    up = two_keys(busy(), good())
    up.ledger.unavailable = True
    assert (await up.send()).status == 429
    assert sent(up) == [KEY]


async def test_refused_key(caplog: pytest.LogCaptureFixture) -> None:
    """A key that the provider does not know is read again, tells an admin, and gives way."""
    up = two_keys(error(401, "authentication_error", "no"), good())
    assert (await up.send()).status == 200
    assert sent(up) == [KEY, SECOND]
    assert up.vault.reads["llm/acme"] == 2
    levels = [(record.message, record.levelno) for record in caplog.records]
    assert ("pool_key_refused", logging.ERROR) in levels
    await again(up, good())
    await again(up, good())
    assert sent(up)[2:] == [SECOND, SECOND]
    up.vault.secrets["acme"] = NEWER
    await up.services.keyring.read_all()
    await again(up, good())
    await again(up, good())
    assert set(sent(up)[4:]) == {NEWER, SECOND}, "another key does not cool down for the old one"


async def test_rotated_key_of_a_pool() -> None:
    """A key that was changed meanwhile is tried once more before another one is."""
    up = two_keys(error(401, "authentication_error", "no"), good())
    task = asyncio.create_task(up.send())
    await up.rotate(acme=NEWER, second=SECOND)
    assert (await task).status == 200
    assert sent(up) == [KEY, NEWER]
    assert pool_of(up).keys[0].use.cooled.total() == 0
    # Both went up: the count is of requests, and a sandbox's own rate is judged by it.
    assert pool_of(up).keys[0].use.requests == 2


async def test_all_keys_refused() -> None:
    """When no key is known to the provider it is our matter, as with one key: 502."""
    no = "authentication_error"
    up = two_keys(error(401, no, "no"), error(401, no, "no"))
    assert (await up.refused()).code is Code.UPSTREAM_REFUSED_KEY
    assert sent(up) == [KEY, SECOND]


async def test_all_accounts_are_used_up() -> None:
    """A 429 about our bill moves on as well, and is never told: 502."""
    up = two_keys(error(429, "billing_error", "limit"), error(429, "billing_error", "limit"))
    assert (await up.refused()).code is Code.UPSTREAM_REFUSED_KEY
    assert sent(up) == [KEY, SECOND]


async def test_key_that_cannot_be_read() -> None:
    """A key of the pool that is not there costs no call: the other one goes up."""
    up = two_keys(good(), good())
    del up.vault.secrets["acme"]
    assert (await up.send()).status == 200
    assert (await again(up)).status == 200
    assert sent(up) == [SECOND, SECOND]


async def test_no_key_can_be_read() -> None:
    """Without any key nothing is sent: 503."""
    up = two_keys()
    up.vault.secrets.clear()
    assert (await up.refused()).code is Code.KEY_UNAVAILABLE
    assert sent(up) == []


async def test_own_rate() -> None:
    """A sandbox that ran into a limit by its own rate is told so, and stays with that key."""
    up = two_keys(*[good() for _ in range(10)])
    for _ in range(10):
        assert (await again(up)).status == 200
    reply = await again(up, busy())
    assert reply.status == 429
    assert len(up.transport.requests) == 11
    assert (await again(up, busy())).status == 429
    assert sent(up)[10:] == [KEY, KEY]
    assert pool_of(up).keys[1].cooling(MODEL, up.clock.monotonic()) is None


async def test_attempts_are_few() -> None:
    """An overloaded provider is not asked with every key of a large pool."""
    keys = "acme=" + "|".join(f"vault://secret/llm/k{n}#k" for n in range(9))
    up = two_keys(*[busy(529) for _ in range(9)], keys=keys)
    up.vault.secrets |= {f"k{n}": f"sk-ant-number-{n}" for n in range(9)}
    assert (await up.send()).status == 529
    assert len(up.transport.requests) == MOST_ATTEMPTS


@pytest.mark.parametrize("key", [KEY, SECOND])
async def test_leak_of_any_key(key: str) -> None:
    """Row 15: an error with any key of the pool is withheld, also of one that was not sent."""
    up = two_keys(error(500, "api_error", f"used {key}"))
    assert (await up.refused()).code is Code.UPSTREAM_BROKEN


async def test_leaked_request_id_is_not_booked() -> None:
    """Row 15: the id of an attempt that was left is booked only when it holds no key."""
    up = two_keys(busy(request_id=SECOND.encode()), good())
    await up.send()
    assert up.ledger.settlement.upstream_request_id is None


def test_a_pool_is_whole_or_not_at_all() -> None:
    """A tenant that one key of a pool cannot be named for gets none, not the first one alone."""
    keys = "*=vault://secret/llm/shared#k|vault://secret/llm/{tenant}#k"
    ring = two_keys(keys=keys).services.keyring
    assert ring.pool("globex", "anthropic") is not None
    with pytest.raises(KeyUnavailable, match="no key of"):
        ring.pool("../acme", "anthropic")
