"""A small call, its price, and an attempt of it, for tests of the steps after the body was read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal

from daypass_core.claims import Claims
from daypass_proxy.attempt import Attempt
from daypass_proxy.ledger import Ledger
from daypass_proxy.price import Price, Rates
from daypass_proxy.providers import Call
from daypass_proxy.streams import LiveCall, LiveCalls
from tests.support import make_claims

MODEL = "claude-sonnet-4-6"
BODY = b'{"model":"claude-sonnet-4-6","max_tokens":100,"messages":[{"role":"user","content":"hi"}]}'
RATES = Rates(*(Decimal(rate) for rate in ("3.00", "15.00", "3.75", "6.00", "0.30")))
PRICE = Price(MODEL, 200_000, RATES)


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
    )


def make_attempt(
    ledger: Ledger,
    call: Call | None = None,
    *,
    claims: Claims | None = None,
    price: Price | None = PRICE,
) -> Attempt:
    """Return an attempt as `admit` would make it."""
    claims = claims or make_claims()
    live = LiveCall("req_test", claims)
    return Attempt(call or make_call(), claims, live, "req_test", ledger, price)


@contextmanager
def entered(calls: LiveCalls, call_id: str, claims: Claims) -> Iterator[LiveCall]:
    """Keep a call in the registry for as long as the block runs, as `admit` does."""
    call = calls.enter(call_id, claims)
    try:
        yield call
    finally:
        calls.leave(call)
