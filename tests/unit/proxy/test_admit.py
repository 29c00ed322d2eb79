"""Admission: who gets in, with what hold, and that whoever got in is settled on the way out."""

import asyncio
from dataclasses import replace

import pytest

from daypass_core.claims import Claims
from daypass_core.problem import Code, Refusal
from daypass_core.revocation import Verdict
from daypass_core.verify import LEEWAY
from daypass_proxy.admit import admit
from daypass_proxy.estimate import ceiling
from daypass_proxy.ledger import LedgerRefused, Outcome
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
        price = PRICES.find("anthropic", MODEL)
        assert price is not None
        assert reservation.amount_nano == ceiling(make_call(), price)
        assert len(services.live_calls) == 1
        assert attempt.price == price
    assert len(services.live_calls) == 0
    assert ledger.settlement.outcome is Outcome.UNREACHABLE
    assert ledger.settlement.cost_nano == 0
    assert ledger.open_rows == 0


async def test_unpriced_model() -> None:
    """A model without a price is refused with the line that would price it, before any hold."""
    ledger = FakeLedger()
    problem = (await refused(Proxy(ledger=ledger), make_call(model="claude-unheard-of"))).problem
    assert problem.code is Code.UNPRICED_MODEL
    assert "claude-unheard-of" in problem.title
    assert '"model": "claude-unheard-of"' in problem.hint
    assert ledger.reservations == []


async def test_every_model_is_held() -> None:
    """A request that may fall back to another model holds both; an unpriced one refuses it."""
    ledger = FakeLedger()
    both = make_call(models=(MODEL, "claude-opus-4-5"))
    async with admit(both, make_claims(), "req_1", Proxy(ledger=ledger).services):
        pass
    prices = [PRICES.find("anthropic", model) for model in both.models]
    held = sum(ceiling(both, price) for price in prices if price)
    assert ledger.reservations[0].amount_nano == held
    problem = (await refused(Proxy(), make_call(models=(MODEL, "claude-none")))).problem
    assert problem.code is Code.UNPRICED_MODEL


async def test_budget_exhausted() -> None:
    """A call that can never fit is a 402 that tells what is left, in dollars."""
    ledger = FakeLedger(**{ACCOUNT: 1_000_000})
    problem = (await refused(Proxy(ledger=ledger))).problem
    assert (problem.code, problem.status) == (Code.BUDGET_EXHAUSTED, 402)
    assert problem.should_retry is False
    assert problem.retry_after is None
    assert "0.001 of 0.001 USD are left" in problem.hint
    assert ledger.settlements == []


@pytest.mark.parametrize(
    ("reason", "code", "status"),
    [
        ("held", Code.BUDGET_HELD, 429),
        ("overloaded", Code.RATE_LIMITED, 429),
        ("unknown_account", Code.STORE_UNAVAILABLE, 503),
    ],
)
async def test_other_refusals(reason: str, code: Code, status: int) -> None:
    """Refusals that pass by themselves say when to come back."""
    ledger = FakeLedger()
    ledger.refusal = LedgerRefused(reason)  # type: ignore[arg-type]
    problem = (await refused(Proxy(ledger=ledger))).problem
    assert (problem.code, problem.status) == (code, status)
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
    """An endpoint without a bill passes the ledger by, also when the store is gone."""
    ledger = FakeLedger()
    ledger.unavailable = True
    services = Proxy(ledger=ledger).services
    call = make_call(endpoint="count_tokens", model="claude-unheard-of")
    async with admit(call, make_claims(), "req_1", services) as attempt:
        assert attempt.price is None
        assert len(services.live_calls) == 1
    assert ledger.settlements == []


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
