"""Admission: who gets in, with what hold, and that whoever got in is settled on the way out."""

import asyncio
from dataclasses import replace

import pytest
from msgspec import structs

from daypass_core.claims import Claims
from daypass_core.problem import Code, Refusal
from daypass_core.revocation import Verdict
from daypass_core.verify import LEEWAY
from daypass_proxy.admit import admit
from daypass_proxy.estimate import quote
from daypass_proxy.ledger import Hold, LedgerRefused, Limit, LimitState, Outcome
from daypass_proxy.price import PriceTable
from daypass_proxy.providers import Call
from daypass_proxy.services import Services
from daypass_proxy.streams import CallCut, CutReason, LiveCalls
from daypass_proxy.transport import UpstreamRequest
from tests.fakes.call import MODEL, make_call
from tests.fakes.clock import FakeClock
from tests.fakes.ledger import FakeLedger
from tests.fakes.proxy import FakeView, Proxy
from tests.support import SANDBOX, make_claims

ACCOUNT = f"sandbox:{SANDBOX}"
PRICES = PriceTable.load()


async def refused(proxy: Proxy, call: Call | None = None, claims: Claims | None = None) -> Refusal:
    """Return the refusal that admission raises."""
    with pytest.raises(Refusal) as caught:
        async with admit(call or make_call(), claims or make_claims(), "req_1", proxy.services):
            raise AssertionError("admitted")
    return caught.value


async def test_admitted() -> None:
    """An admitted call has a durable hold and is live inside the block, neither after it."""
    ledger = FakeLedger()
    services = Proxy(ledger=ledger).services
    async with admit(make_call(), make_claims(), "req_1", services) as attempt:
        (reservation,) = ledger.reservations
        assert reservation.account == ACCOUNT
        assert reservation.usage_id == "req_1"
        assert reservation.grant_id == "grt_root"
        quoted = quote(make_call(), PRICES, services.clock.now())
        assert reservation.base == quoted.base
        assert reservation.output_least == quoted.output_least > 0
        assert reservation.output_most == quoted.output_most
        assert reservation.output_nano == quoted.output_nano > 0
        assert (reservation.stream, reservation.whole) == (True, quoted.whole)
        assert len(services.live_calls) == 1
        assert attempt.held.tariff is not None
        assert attempt.held.tariff.price == quoted.tariff.price
    assert len(services.live_calls) == 0
    assert ledger.settlement.outcome is Outcome.UNREACHABLE
    assert ledger.settlement.cost_nano == 0
    assert ledger.open_rows == 0


async def test_a_bought_token_pays_from_its_own_account() -> None:
    """B06: the calls of a child are held in the account of its grant, not in the sandbox's."""
    ledger = FakeLedger(**{ACCOUNT: 10**12, "grant:grt_leaf": 0})
    claims = make_claims(grants=("grt_root", "grt_leaf"))
    refusal = await refused(Proxy(ledger=ledger), claims=claims)
    assert refusal.problem.code is Code.BUDGET_EXHAUSTED
    ledger.ceilings["grant:grt_leaf"] = 10**12
    async with admit(make_call(), claims, "req_1", Proxy(ledger=ledger).services):
        (reservation,) = ledger.reservations
    assert (reservation.account, reservation.grant_id) == ("grant:grt_leaf", "grt_leaf")
    assert reservation.sandbox == SANDBOX


async def test_unpriced_model() -> None:
    """A model without a price is refused with the line that would price it, before any hold."""
    ledger = FakeLedger()
    problem = (await refused(Proxy(ledger=ledger), make_call(model="claude-unheard-of"))).problem
    assert problem.code is Code.UNPRICED_MODEL
    assert "claude-unheard-of" in problem.title
    assert '"model": "claude-unheard-of"' in problem.hint
    assert ledger.reservations == []


async def test_unpriced_way_of_serving() -> None:
    """What is asked for beside the model needs a price as well; the refusal names the field."""
    ledger = FakeLedger()
    call = structs.replace(make_call(model="claude-haiku-4-5"), speed="fast")
    problem = (await refused(Proxy(ledger=ledger), call)).problem
    assert problem.code is Code.UNPRICED_MODEL
    assert "speed fast" in problem.title
    assert problem.hint == "leave speed out, or have an admin add it to the price overlay"
    assert ledger.reservations == []


async def test_every_model_is_held() -> None:
    """A request that may fall back to another model holds both; an unpriced one refuses it."""
    ledger = FakeLedger()
    both = make_call(models=(MODEL, "claude-opus-4-5"))
    async with admit(both, make_claims(), "req_1", Proxy(ledger=ledger).services):
        pass
    one = quote(make_call(), PRICES, FakeClock().now())
    held = ledger.reservations[0]
    assert held.base.tokens >= 2 * one.base.tokens
    assert held.base.nano > 2 * one.base.nano, "the other one is dearer"
    problem = (await refused(Proxy(), make_call(models=(MODEL, "claude-none")))).problem
    assert problem.code is Code.UNPRICED_MODEL


async def test_budget_exhausted() -> None:
    """A call that can never fit is a 402 that tells what is left, in dollars."""
    ledger = FakeLedger(**{ACCOUNT: 1_000_000})
    problem = (await refused(Proxy(ledger=ledger))).problem
    assert (problem.code, problem.status) == (Code.BUDGET_EXHAUSTED, 402)
    assert problem.should_retry is False
    assert problem.retry_after is None
    assert problem.title == "sandbox budget too low for this call"
    assert "0.001 of 0.001 USD are left" in problem.hint
    assert ledger.settlements == []


async def test_no_account() -> None:
    """A token of a sandbox without an account is nobody's fault but the store's: 503."""
    ledger = FakeLedger()
    ledger.refusal = LedgerRefused("unknown_account")
    problem = (await refused(Proxy(ledger=ledger))).problem
    assert (problem.code, problem.status) == (Code.STORE_UNAVAILABLE, 503)
    assert problem.retry_after


async def test_store_gone() -> None:
    """Without the store nothing is admitted: 503 at once."""
    ledger = FakeLedger()
    ledger.unavailable = True
    problem = (await refused(Proxy(ledger=ledger))).problem
    assert (problem.code, problem.status) == (Code.STORE_UNAVAILABLE, 503)


async def test_stale_view() -> None:
    """With a stale revocation view nothing is held."""
    ledger = FakeLedger()
    problem = (await refused(Proxy(ledger=ledger, view=FakeView(stale=True)))).problem
    assert problem.code is Code.VIEW_STALE
    assert ledger.reservations == []


@pytest.mark.parametrize(
    ("verdict", "code"),
    [(Verdict.REVOKED, Code.TOKEN_REVOKED), (Verdict.TOKEN_ENDED, Code.TOKEN_EXPIRED)],
)
async def test_revoked_meanwhile(verdict: Verdict, code: Code) -> None:
    """A revocation between authentication and admission is met; the hold is given back."""
    ledger = FakeLedger()
    problem = (await refused(Proxy(ledger=ledger, view=FakeView(verdict)))).problem
    assert problem.code is code
    assert ledger.settlement.cost_nano == 0
    assert ledger.settlement.outcome is Outcome.CUT_REVOKED


async def test_expired_meanwhile() -> None:
    """A token that expired while the body came is refused; its leeway is that of verification."""
    clock, claims = FakeClock(), make_claims(ttl=100)
    clock.advance(100 + LEEWAY - 1)
    async with admit(make_call(), claims, "req_1", Proxy(clock=clock).services):
        pass
    clock.advance(1)
    problem = (await refused(Proxy(clock=clock), claims=claims)).problem
    assert problem.code is Code.TOKEN_EXPIRED


async def test_unbilled_endpoint() -> None:
    """An endpoint without a bill needs no price and holds nothing, but counts like any call."""
    ledger = FakeLedger()
    services = Proxy(ledger=ledger).services
    call = make_call(endpoint="count_tokens", model="claude-unheard-of")
    async with admit(call, make_claims(), "req_1", services) as attempt:
        assert attempt.held.tariff is None
        assert ledger.held == {"req_1": Hold()}
        assert len(services.live_calls) == 1
    assert ledger.settlement.cost_nano == 0
    ledger.refusal = LedgerRefused("rate", LimitState(Limit.RPM, ACCOUNT, 10, 10, 0), 1, 700)
    problem = (await refused(Proxy(ledger=ledger), call)).problem
    assert (problem.code, problem.retry_after) == (Code.RATE_LIMITED, 1)


async def wait_admitted(services: Services, *, cut_stale: bool = False) -> None:
    """Wait inside an admission until something cuts the call."""
    async with admit(make_call(), make_claims(), "req_1", services) as attempt:
        attempt.request = UpstreamRequest("POST", "http://up", (), b"{}", sent=True)
        if cut_stale:
            asyncio.get_running_loop().call_soon(services.live_calls.cut_stale)
        with attempt.live.interruptible():
            await asyncio.Event().wait()


async def test_cut_is_noted() -> None:
    """A cut that leaves the block is booked under its reason."""
    ledger = FakeLedger()
    with pytest.raises(CallCut):
        await wait_admitted(Proxy(ledger=ledger).services, cut_stale=True)
    assert ledger.settlement.outcome is Outcome.CUT_STALE
    assert ledger.settlement.estimated


async def test_cancelled_from_outside() -> None:
    """A server that stops books the call before it goes."""
    ledger, inside = FakeLedger(), asyncio.Event()

    async def serve() -> None:
        async with admit(make_call(), make_claims(), "req_1", Proxy(ledger=ledger).services):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ledger.settlement.outcome is Outcome.SHUTDOWN


async def test_longest_call() -> None:
    """The longest-call setting cuts a call that is still open."""
    ledger = FakeLedger()
    services = replace(Proxy(ledger=ledger).services, live_calls=LiveCalls(longest=0.0))
    with pytest.raises(CallCut) as caught:
        await wait_admitted(services)
    assert caught.value.reason is CutReason.TOO_LONG
    assert ledger.settlement.outcome is Outcome.CUT_TOO_LONG
