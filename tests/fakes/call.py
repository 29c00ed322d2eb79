"""A small call, its price, and an attempt of it, for tests of the steps after the body was read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from daypass_core.claims import Claims
from daypass_proxy.attempt import Attempt, Held
from daypass_proxy.ledger import Hold, Ledger, LimitState, Reservation, Reserved, Terms
from daypass_proxy.price import Plan, Price, Rates, Tariff
from daypass_proxy.providers import Call
from daypass_proxy.streams import LiveCall, LiveCalls
from tests.support import make_claims

MODEL = "claude-sonnet-4-6"
BODY = b'{"model":"claude-sonnet-4-6","max_tokens":100,"messages":[{"role":"user","content":"hi"}]}'
RATES = Rates(*(Decimal(rate) for rate in ("3.00", "15.00", "3.75", "6.00", "0.30")))
PRICE = Price(MODEL, 200_000, Plan(RATES))
TARIFF = Tariff(PRICE)
OUTPUT_NANO = 15_000
TERMS = Terms()


def make_call(
    body: bytes = BODY,
    *,
    model: str = MODEL,
    models: Sequence[str] = (),
    endpoint: str = "messages",
    max_output_tokens: int | None = 100,
    stream: bool = True,
    images: int = 0,
    documents: int = 0,
) -> Call:
    """Return a call as a provider module would read it."""
    return Call(
        provider="anthropic",
        endpoint=endpoint,
        method="POST",
        upstream_path=b"/v1/messages",
        query=b"beta=true",
        headers=((b"anthropic-version", b"2023-06-01"), (b"content-type", b"application/json")),
        body=body,
        model=model,
        models=tuple(models) or (model,),
        max_output_tokens=max_output_tokens,
        stream=stream,
        images=images,
        documents=documents,
        billable=endpoint == "messages",
        dialect="anthropic",
    )


def make_held(
    call: Call,
    claims: Claims,
    *,
    tariff: Tariff | None = TARIFF,
    terms: Terms = TERMS,
    output_tokens: int | None = None,
    limits: tuple[LimitState, ...] = (),
    base: Hold = Hold(),  # noqa: B008  a constant
    usage_id: str = "req_test",
    whole: bool = False,
) -> Held:
    """Return the hold of a call; `output_tokens` are held, all it asks for when None."""
    most = (call.max_output_tokens or 0) if tariff else 0
    reservation = Reservation(
        usage_id=usage_id,
        attempt=1,
        account=claims.account,
        tenant=claims.tenant,
        sandbox=claims.sandbox,
        grant_id=claims.grants[-1],
        token_id=claims.token_id,
        provider=call.provider,
        endpoint=call.endpoint,
        model=call.model,
        stream=call.stream,
        base=base,
        output_most=most,
        output_nano=OUTPUT_NANO,
        whole=whole,
    )
    held = most if output_tokens is None else output_tokens
    return Held(reservation, Reserved(usage_id, held, terms, limits), tariff)


def make_attempt(
    ledger: Ledger, call: Call | None = None, *, claims: Claims | None = None, **held: Any
) -> Attempt:
    """Return an attempt as `admit` would make it; `held` as for `make_held`."""
    claims, call = claims or make_claims(), call or make_call()
    if not call.billable:
        held["tariff"] = None
    live = LiveCall("req_test", claims)
    return Attempt(call, claims, live, ledger, make_held(call, claims, **held))


@contextmanager
def entered(calls: LiveCalls, call_id: str, claims: Claims) -> Iterator[LiveCall]:
    """Keep a call in the registry for as long as the block runs, as `admit` does."""
    call = calls.enter(call_id, claims)
    try:
        yield call
    finally:
        calls.leave(call)
