"""What a sandbox may ask about itself: scope, models, budget; and the probes."""

import json
from typing import Any

import pytest

from daypass_core.problem import Code, Refusal
from daypass_core.scope import Detail
from daypass_proxy import me
from daypass_proxy.ledger import Balance, LedgerUnavailable, Limit, LimitState
from daypass_proxy.me import allowed_models, usd
from tests.fakes.asgi import Wire, make_exchange
from tests.fakes.proxy import KEY, Proxy
from tests.support import SANDBOX, access_token, make_claims, make_scope

ACCOUNT = f"sandbox:{SANDBOX}"


async def get(
    handler: Any,
    proxy: Proxy,
    path: bytes,
    query: bytes = b"",
    *,
    grants: tuple[str, ...] = ("grt_root",),
    **scope: Any,
) -> Wire:
    """Call one handler with a good token of the given scope and grants."""
    token = access_token(KEY, make_claims(scope=make_scope(**scope), grants=grants))
    headers = [(b"authorization", f"Bearer {token}".encode())]
    exchange, wire = make_exchange("GET", path, query, headers)
    await handler(exchange, proxy.services)
    return wire


async def test_self() -> None:
    """A sandbox reads who it is, what it may call and what is left."""
    proxy = Proxy()
    proxy.ledger.ceilings[ACCOUNT] = 5_000_000_000
    proxy.ledger.spent[ACCOUNT] = 1_234_500_000
    wire = await get(me.describe_self, proxy, b"/v1/self")
    assert wire.status == 200
    assert wire.json["sandbox"] == SANDBOX
    assert wire.json["tenant"] == "acme"
    assert wire.json["authorization_details"][0]["models"] == ["claude-sonnet-*"]
    assert wire.json["budget"] == {
        "budget_usd": "5.00",
        "spent_usd": "1.2345",
        "reserved_usd": "0.00",
        "set_aside_usd": "0.00",
        "remaining_usd": "3.7655",
    }
    assert wire.json["limits"]["budget_usd"]["left"] == "3.7655"
    assert wire.json["grants"] == ["grt_root"]


async def test_self_of_a_token_that_was_bought() -> None:
    """Its own account is told, and the least that is left for it under those above."""
    proxy, mine = Proxy(), "grant:grt_leaf"
    proxy.ledger.ceilings[mine] = 5_000_000_000
    proxy.ledger.limits = (
        LimitState(Limit.TOKENS, mine, 900, 100, 0),
        LimitState(Limit.BUDGET, ACCOUNT, 9_000_000_000, 1_000_000_000, 6_500_000_000),
        LimitState(Limit.RPM, "tenant:acme", 9, 1, 0, 1_796_083_200_000),
    )
    wire = await get(me.describe_self, proxy, b"/v1/self", grants=("grt_root", "grt_leaf"))
    assert wire.json["grants"] == ["grt_root", "grt_leaf"]
    assert list(wire.json["limits"]) == ["budget_usd", "token_budget"]
    assert wire.json["budget"]["remaining_usd"] == "5.00"
    assert wire.json["remaining"] == {
        "usd": "1.50",
        "tokens": 800,
        "requests": 8,
        "resets_at": "2026-12-01T00:00:00Z",
    }


async def test_self_tells_what_was_sold() -> None:
    """What is left of the slices that were bought from the account is told apart."""
    proxy = Proxy()
    proxy.ledger.limits = (
        LimitState(Limit.BUDGET, ACCOUNT, 9_000_000_000, 10**9, 3 * 10**9, set_aside=2 * 10**9),
    )
    wire = await get(me.describe_self, proxy, b"/v1/self")
    assert wire.json["budget"]["set_aside_usd"] == "2.00"
    assert wire.json["budget"]["remaining_usd"] == "5.00"


async def test_self_tells_every_limit() -> None:
    """Each limit of the sandbox's own account is told: used, held, left, and when it resets."""
    proxy = Proxy()
    proxy.ledger.limits = (
        LimitState(Limit.DAY, ACCOUNT, 2_000_000_000, 500_000_000, 250_000_000, 1_796_083_200_000),
        LimitState(Limit.CONCURRENCY, ACCOUNT, 4, 1, 0),
        LimitState(Limit.DAY, "tenant:acme", 9, 1, 0),
    )
    wire = await get(me.describe_self, proxy, b"/v1/self")
    assert wire.json["limits"] == {
        "budget_per_day_usd": {
            "limit": "2.00",
            "used": "0.50",
            "held": "0.25",
            "left": "1.25",
            "resets_at": "2026-12-01T00:00:00Z",
        },
        "concurrency": {"limit": 4, "used": 1, "held": 0, "left": 3, "resets_at": None},
    }
    assert wire.json["budget"]["budget_usd"] is None
    assert wire.json["budget"]["remaining_usd"] is None
    assert wire.json["remaining"]["usd"] == "0.000000008"
    assert wire.json["remaining"]["tokens"] is None


async def test_model_under_another_name() -> None:
    """B40: a model of the scope is shown under each of its names."""
    dated = b"/v1/models/claude-sonnet-4-5-20250929"
    wire = await get(me.show_model, Proxy(), dated, models=("claude-sonnet-4-5",))
    assert wire.json["id"] == "claude-sonnet-4-5-20250929"


async def test_self_needs_a_token() -> None:
    """B01: nobody is told anything without a token."""
    exchange, _ = make_exchange("GET", b"/v1/self")
    with pytest.raises(Refusal) as caught:
        await me.describe_self(exchange, Proxy().services)
    assert caught.value.problem.code is Code.MISSING_TOKEN


async def test_self_without_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the store the budget is not known: 503, not a guess."""
    proxy = Proxy()

    async def gone(account: str) -> Balance | None:
        raise LedgerUnavailable

    monkeypatch.setattr(proxy.ledger, "balance", gone)
    with pytest.raises(Refusal) as caught:
        await get(me.describe_self, proxy, b"/v1/self")
    assert caught.value.problem.status == 503


async def test_models_come_from_the_scope() -> None:
    """B01: the list needs a token and holds what the scope allows, not what the provider has."""
    wire = await get(
        me.list_models, Proxy(), b"/v1/models", models=("my-model", "claude-sonnet-4-5*")
    )
    names = [model["id"] for model in wire.json["data"]]
    assert names[0] == "my-model"
    assert len(names) > 1
    assert all(name.startswith("claude-sonnet-4-5") for name in names[1:])
    assert wire.json["has_more"] is False
    assert wire.json["first_id"] == "my-model"
    assert wire.json["last_id"] == names[-1]
    assert wire.json["data"][0]["type"] == "model"
    exchange, _ = make_exchange("GET", b"/v1/models")
    with pytest.raises(Refusal):
        await me.list_models(exchange, Proxy().services)


async def test_model_pages() -> None:
    """limit and after_id page through the list without loss."""
    whole = await get(me.list_models, Proxy(), b"/v1/models", b"limit=1000", models=("*",))
    names = [model["id"] for model in whole.json["data"]]
    seen: list[str] = []
    query = b"limit=5"
    while True:
        page = (await get(me.list_models, Proxy(), b"/v1/models", query, models=("*",))).json
        seen += [model["id"] for model in page["data"]]
        if not page["has_more"]:
            break
        query = f"limit=5&after_id={page['last_id']}".encode()
    assert seen == names


@pytest.mark.parametrize(
    "query",
    [b"limit=0", b"limit=1001", b"limit=x", b"limit=1&limit=2", b"key=x", b"limit", b"\xff=1"],
)
async def test_model_query_allow_list(query: bytes) -> None:
    """Any other query is a 400 (rows 10-12)."""
    with pytest.raises(Refusal) as caught:
        await get(me.list_models, Proxy(), b"/v1/models", query)
    assert caught.value.problem.status == 400


async def test_one_model() -> None:
    """A model of the scope is shown, any other does not exist."""
    wire = await get(me.show_model, Proxy(), b"/v1/models/claude-sonnet-4-5")
    assert wire.json["id"] == "claude-sonnet-4-5"
    with pytest.raises(Refusal) as caught:
        await get(me.show_model, Proxy(), b"/v1/models/claude-opus-5")
    assert caught.value.problem.status == 404


async def test_models_endpoint_must_be_in_scope() -> None:
    """B19: a token without the endpoint gets 403, and its sandbox is counted."""
    proxy = Proxy()
    for handler, path in ((me.list_models, b"/v1/models"), (me.show_model, b"/v1/models/x")):
        with pytest.raises(Refusal) as caught:
            await get(handler, proxy, path, endpoints=("messages",))
        assert caught.value.problem.code is Code.INSUFFICIENT_SCOPE
    assert proxy.ledger.counted[SANDBOX, "call_refused:insufficient_scope"] == 2


async def test_hello() -> None:
    """The warm-up of Claude Code is a bare 200 without a credential."""
    exchange, wire = make_exchange("HEAD", b"/api/hello")
    await me.hello(exchange, Proxy().services)
    assert wire.status == 200
    assert wire.body == b""


async def test_probes() -> None:
    """B12: live is always 200; ready needs the revocation view, all keys, and no end (B55)."""
    proxy = Proxy()
    proxy.jwks_down = True
    proxy.view.stale = proxy.ledger.unavailable = True
    proxy.keyring.lacking = "provider keys: none"

    async def probe(handler: Any) -> Wire:
        exchange, wire = make_exchange("GET", b"/readyz")
        await handler(exchange, proxy.services)
        return wire

    assert (await probe(me.live)).status == 200
    wire = await probe(me.ready)
    assert wire.status == 503
    assert wire.json["missing"] == [
        "revocations",
        "ledger",
        "keys of the broker",
        "provider keys: none",
    ]
    proxy.keyring.lacking = None
    proxy.jwks_down = proxy.view.stale = False
    proxy.clock.advance(1)
    # Calls would get 503, so it does not say anything else.
    wire = await probe(me.ready)
    assert (wire.status, wire.json["missing"]) == (503, ["ledger"])
    proxy.ledger.unavailable = False
    assert (await probe(me.ready)).json == {"status": "ready"}
    proxy.services.gate.close()
    wire = await probe(me.ready)
    assert (wire.status, wire.json) == (503, {"status": "stopping"})
    assert (await probe(me.live)).status == 200


def test_wildcards_expand_over_known_models() -> None:
    """B39: a wildcard stands for the known models it covers, an exact name for itself."""
    detail = Detail("anthropic", ("models",), ("claude-sonnet-*", "own"))
    known = ("claude-sonnet-4", "claude-opus-5", "xclaude-sonnet-4")
    assert allowed_models(detail, known) == ["own", "claude-sonnet-4"]
    assert allowed_models(Detail("anthropic", ("models",), ("*",)), known) == list(known)


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (None, None),
        (0, "0.00"),
        (1, "0.000000001"),
        (10_000_000, "0.01"),
        (5_000_000_000, "5.00"),
        (1_500_000_000, "1.50"),
        (-1_500_000_000, "-1.50"),
    ],
)
def test_usd(nano: int | None, text: str | None) -> None:
    """Money is shown exactly, with at least two places and never as a float."""
    assert usd(nano) == text


async def test_answers_are_not_cached() -> None:
    """What depends on the token is no-store."""
    wire = await get(me.list_models, Proxy(), b"/v1/models")
    assert wire.headers[b"cache-control"] == b"no-store"
    json.loads(wire.body)
