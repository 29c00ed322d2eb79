"""Delegation: the holder of an access token buys a narrower one, and never a wider one."""

from typing import Any

import pytest
import sqlalchemy as sa

from daypass_broker import db, oauth, schema
from daypass_core.claims import access_payload
from daypass_core.scope import scope_to_wire
from tests.support import NOW, TENANT, make_scope, sign, signing_key
from tests.unit.broker.rig import Reply, Rig, Sandbox

USD = 10**9
WIDE = make_scope(
    models=("claude-sonnet-*", "claude-haiku-4-5"),
    features=("web_search",),
    allowed_domains=("example.com",),
    max_output_tokens=1000,
)


async def start(rig: Rig, **more: Any) -> tuple[Sandbox, str]:
    """A sandbox with five dollars, and its access token."""
    sandbox = rig.sandbox(budget=5 * USD, **more)
    return sandbox, (await rig.launch(sandbox)).body["access_token"]


def token(reply: Reply) -> str:
    """The access token of an answer."""
    assert reply.status == 200, reply.body
    return str(reply.body["access_token"])


async def test_a_child_hangs_below_its_buyer(rig: Rig) -> None:
    """A child has the buyer's grants and one more, an account of its own, and says who acts."""
    sandbox, parent = await start(rig)
    reply = await rig.buy(parent)
    claims = rig.verify(reply)
    assert set(reply.body) == {"access_token", "token_type", "expires_in", "issued_token_type"}
    root, child = claims.grants
    assert (root, claims.sandbox, claims.scope) == (sandbox.grant, sandbox.id, make_scope())
    assert claims.account == f"grant:{child}"
    payload = access_payload(claims)
    assert payload["act"] == {"sub": f"{claims.subject}/grant/{child}"}
    account = rig.account(claims.account)
    assert (account.parent, account.kind, account.sandbox) == (
        f"sandbox:{sandbox.id}",
        "grant",
        sandbox.id,
    )


async def test_a_purchase_is_on_record(rig: Rig) -> None:
    """The grant, its token and both audit events are written together, with what it was for."""
    sandbox, parent = await start(rig)
    bought_with = rig.services.new_id
    claims = rig.verify(await rig.buy(parent, daypass_limits={"budget_usd": "1.5"}))
    (grant,) = rig.rows(schema.grant_, id=claims.grants[1])
    assert (grant.parent, grant.depth, grant.expires_at) == (sandbox.grant, 1, NOW + 600)
    assert grant.slice_nano == 3 * USD // 2
    (row,) = rig.rows(schema.token, jti=claims.token_id)
    assert row.grant_id == grant.id
    (told,) = rig.rows(schema.audit, tag="grant.issued")
    assert (told.subject, told.actor) == (grant.id, sandbox.id)
    detail = db.from_json(told.detail)
    assert detail["grants"] == [sandbox.grant]
    assert detail["bought_with"] == grant.bought_with
    assert detail["limits"] == {"ceiling_nano": 3 * USD // 2}
    assert bought_with is not None


async def test_a_child_is_narrower_in_every_dimension_asked_for(rig: Rig) -> None:
    """Models, endpoints, features, domains and the cap are those asked for."""
    _, parent = await start(rig, wide=WIDE)
    wanted = make_scope(
        endpoints=("messages",),
        models=("claude-sonnet-5",),
        features=("web_search",),
        allowed_domains=("docs.example.com",),
        max_output_tokens=10,
    )
    reply = await rig.buy(parent, authorization_details=scope_to_wire(wanted))
    assert rig.verify(reply).scope == wanted


@pytest.mark.parametrize(
    ("wider", "field"),
    [
        ({"models": ["claude-opus-5"]}, "models"),
        ({"models": ["*"]}, "models"),
        ({"endpoints": ["messages", "nonsense"]}, "endpoints"),
        ({"features": ["code_execution"]}, "features"),
        ({"allowed_domains": ["example.org"]}, "allowed_domains"),
        ({"allowed_domains": ["badexample.com"]}, "allowed_domains"),
        ({"max_output_tokens": 1001}, "max_output_tokens"),
        ({"max_output_tokens": None}, "max_output_tokens"),
        ({"limits": {}}, "limits"),
        ({"type": "other"}, "type"),
    ],
)
async def test_what_is_wider_or_not_understood_is_refused(
    rig: Rig, wider: dict[str, Any], field: str
) -> None:
    """RFC 9396 §5: details that cannot be carried over refuse the purchase, and name the field."""
    sandbox, parent = await start(rig, wide=WIDE)
    (wire,) = scope_to_wire(WIDE)
    detail = {key: value for key, value in (wire | wider).items() if value is not None}
    reply = await rig.buy(parent, authorization_details=[detail])
    assert (reply.status, reply.error) == (400, "invalid_authorization_details")
    assert field in reply.description
    assert len(rig.rows(schema.grant_, sandbox=sandbox.id)) == 1


@pytest.mark.parametrize(
    "details", ["", "x", "{}", "[]", '[{"type":"a","type":"llm_inference"}]', "[" * 2000, "\ud800"]
)
async def test_ill_formed_details(rig: Rig, details: str) -> None:
    """Details that are no strict JSON list are refused; none at all mean the buyer's."""
    _, parent = await start(rig)
    reply = await rig.buy(parent, authorization_details=details)
    if details:
        assert reply.error == "invalid_authorization_details"
    else:
        assert rig.verify(reply).scope == make_scope()


async def test_a_child_lives_no_longer_than_its_buyers_token(rig: Rig) -> None:
    """A child asked for late ends with the token it was bought with; a shorter life is kept."""
    _, parent = await start(rig)
    rig.clock.advance(590)
    late = await rig.buy(parent, daypass_lifetime_seconds="3600")
    assert (rig.verify(late).expires_at, late.body["expires_in"]) == (NOW + 600, 10)
    short = rig.verify(await rig.buy(parent, daypass_lifetime_seconds="3"))
    assert short.expires_at == NOW + 593
    (grant,) = rig.rows(schema.grant_, id=short.grants[1])
    assert grant.expires_at == NOW + 593


@pytest.mark.parametrize("seconds", ["0", "-1", "3601", "1.5", "ten", "٣", "9" * 30])
async def test_ill_formed_lifetimes(rig: Rig, seconds: str) -> None:
    """A lifetime is an integer of seconds from 1 to an hour."""
    _, parent = await start(rig)
    reply = await rig.buy(parent, daypass_lifetime_seconds=seconds)
    assert (reply.error, "daypass_lifetime_seconds" in reply.description) == (
        "invalid_request",
        True,
    )


async def test_an_expired_token_buys_nothing(rig: Rig) -> None:
    """At its `exp` a token buys nothing, though a proxy may still take it for its leeway."""
    sandbox, parent = await start(rig)
    rig.clock.advance(600)
    reply = await rig.buy(parent)
    assert (reply.error, reply.description) == (
        "invalid_grant",
        "the access token has expired; present a fresh one",
    )
    rig.clock.advance(10)
    assert "expired" in (await rig.buy(parent)).description
    assert len(rig.rows(schema.grant_, sandbox=sandbox.id)) == 1


@pytest.mark.parametrize("scope", ["global", "tenant", "sandbox", "grant"])
async def test_a_token_cut_off_buys_nothing(rig: Rig, scope: str) -> None:
    """A buyer's token issued at or before a cut-off buys nothing in the seconds after it."""
    sandbox, parent = await start(rig)
    idents = {"global": "*", "tenant": TENANT, "sandbox": sandbox.id, "grant": sandbox.grant}
    rig.revoke(scope, idents[scope], NOW)
    rig.clock.advance(2)
    reply = await rig.buy(parent)
    assert (reply.error, "revoked" in reply.description) == ("invalid_grant", True)
    assert len(rig.rows(schema.grant_, sandbox=sandbox.id)) == 1


@pytest.mark.parametrize("scope", ["jti", "kid", "grant", "sandbox"])
async def test_a_token_ended_for_good_buys_nothing(rig: Rig, scope: str) -> None:
    """An absolute revocation of the token, its key, its grant or its sandbox holds here too."""
    sandbox, parent = await start(rig)
    claims = rig.verify(await rig.launch(sandbox))
    idents = {"jti": claims.token_id, "kid": claims.key_id, "grant": sandbox.grant}
    rig.revoke(scope, idents.get(scope, sandbox.id))
    assert "revoked" in (await rig.buy(parent)).description
    assert len(rig.rows(schema.grant_, sandbox=sandbox.id)) == 1


async def test_a_revoked_grant_in_the_middle_ends_the_tree_below_it(rig: Rig) -> None:
    """With its buyer's grant revoked a child buys nothing, while the root goes on buying."""
    _, root = await start(rig)
    child = await rig.buy(root)
    grandchild = await rig.buy(token(child))
    middle = rig.verify(child).grants[1]
    with db.begin(rig.engine) as conn:
        table = schema.grant_
        conn.execute(sa.update(table).where(table.c.id == middle).values(state="revoked"))
    for below in (child, grandchild):
        reply = await rig.buy(token(below))
        assert (reply.error, "grant of this token is revoked" in reply.description) == (
            "invalid_grant",
            True,
        )
    assert (await rig.buy(root)).status == 200


@pytest.mark.parametrize("state", ["ended", "revoked", "idle"])
async def test_a_sandbox_that_is_not_active_buys_nothing(rig: Rig, state: str) -> None:
    """Whatever its tokens say, a sandbox that is over or not begun buys nothing."""
    sandbox, parent = await start(rig)
    rig.change(sandbox, state=state)
    assert (await rig.buy(parent)).error == "invalid_grant"


async def test_depth_is_bounded(rig: Rig) -> None:
    """Three purchases below each other are sold, the fourth is not: tokens name four grants."""
    _, held = await start(rig)
    for depth in (1, 2, 3):
        reply = await rig.buy(held)
        assert len(rig.verify(reply).grants) == depth + 1
        held = token(reply)
    reply = await rig.buy(held)
    assert (reply.error, "depth" in reply.description) == ("invalid_grant", True)


async def test_a_profile_may_bound_depth_further(rig: Rig) -> None:
    """With max_depth 0 in its profile a sandbox delegates nothing."""
    _, parent = await start(rig)
    with db.begin(rig.engine) as conn:
        conn.execute(sa.update(schema.profile).values(max_depth=0))
    assert (await rig.buy(parent)).error == "invalid_grant"


async def test_a_child_has_nothing_to_renew_with(rig: Rig) -> None:
    """A child's token is no launch credential and no generation, and gets no refresh token."""
    sandbox = rig.sandbox("single_use", budget=USD)
    parent = (await rig.launch(sandbox)).body["access_token"]
    child = await rig.buy(parent)
    assert "refresh_token" not in child.body
    assert (await rig.launch(token(child))).body == {"error": "invalid_grant"}
    assert (await rig.renew(token(child))).body == {"error": "invalid_grant"}


async def test_a_forged_token_buys_nothing(rig: Rig) -> None:
    """A token signed by a stranger under our kid is a stranger's: one word, no row."""
    sandbox, _ = await start(rig)
    claims = rig.verify(await rig.launch(sandbox))
    stranger = signing_key("stranger")
    header = {"alg": "ES256", "typ": "at+jwt", "kid": claims.key_id}
    reply = await rig.buy(sign(stranger, access_payload(claims), header=header))
    assert (reply.status, reply.body) == (400, {"error": "invalid_grant"})
    assert rig.counts(sandbox.id) == {}


async def test_an_actor_token_is_refused(rig: Rig) -> None:
    """The buyer acts by the token it holds; another actor is not carried over."""
    _, parent = await start(rig)
    reply = await rig.buy(parent, actor_token="a.b.c", actor_token_type=oauth.TYPE_JWT)
    assert (reply.error, "actor_token" in reply.description) == ("invalid_request", True)


@pytest.mark.parametrize(
    "name", ["daypass_limit", "daypass_budget_usd", "Daypass_Limits", "Authorization_details"]
)
async def test_a_misspelt_limit_is_not_none(rig: Rig, name: str) -> None:
    """What is called nearly like a parameter of ours is refused; others are ignored (RFC 6749)."""
    token = (await rig.launch(rig.sandbox(budget=10**9))).body["access_token"]
    reply = await rig.buy(token, **{name: '{"budget_usd": "0.10"}'})
    assert (reply.status, reply.error) == (400, "invalid_request")
    assert reply.description.startswith(f"{name} is not known here; there are authorization_det")
    assert (await rig.buy(token, client_id="x", anything="y")).status == 200


async def test_the_buyers_source_is_kept(rig: Rig) -> None:
    """A child of a bound sandbox is bound to the same networks, and bought from inside only."""
    sandbox = rig.sandbox(budget=USD)
    rig.change(sandbox, source="10.1.0.0/16")
    inside, outside = {"x-daypass-peer": "10.1.2.3"}, {"x-daypass-peer": "10.2.2.3"}
    asked = f'{{"grant_type":"{oauth.JWT_BEARER}","assertion":"{sandbox.launch}"}}'
    parent = token(await rig.exchange(asked.encode(), headers=inside))
    buy = (
        f'{{"grant_type":"{oauth.TOKEN_EXCHANGE}","subject_token":"{parent}",'
        f'"subject_token_type":"{oauth.TYPE_ACCESS_TOKEN}"}}'
    ).encode()
    assert rig.verify(await rig.exchange(buy, headers=inside)).source == ("10.1.0.0/16",)
    assert (await rig.exchange(buy, headers=outside)).error == "invalid_grant"
    rig.change(sandbox, source="any")
    assert (await rig.exchange(buy, headers=outside)).error == "invalid_grant"


async def test_sixty_four_live_children(rig: Rig) -> None:
    """A grant has at most 64 live children; when one is over it may buy another."""
    _, parent = await start(rig, level=60.0)
    for _ in range(64):
        assert (await rig.buy(parent, daypass_lifetime_seconds="300")).status == 200
        rig.clock.advance(2.5)
    reply = await rig.buy(parent)
    assert (reply.error, "64" in reply.description) == ("slow_down", True)
    rig.clock.advance(300 - 64 * 2.5)
    assert (await rig.buy(parent)).status == 200


async def test_thirty_purchases_a_minute(rig: Rig) -> None:
    """A grant buys thirty tokens in a minute and no more; the sandbox can still renew."""
    sandbox, parent = await start(rig)
    for _ in range(30):
        assert (await rig.buy(parent)).status == 200
    reply = await rig.buy(parent)
    assert (reply.error, reply.headers["retry-after"]) == ("slow_down", "5")
    assert rig.counts(sandbox.id) == {"token_refused:slow_down": 1}
    assert (await rig.launch(sandbox)).status == 200
    rig.clock.advance(61)
    assert (await rig.buy(parent)).status == 200


async def test_purchases_leave_room_for_renewals(rig: Rig) -> None:
    """However many of its grants buy, a sandbox can renew twenty times at any moment."""
    sandbox, parent = await start(rig)
    buyers = [parent, *[token(await rig.buy(parent)) for _ in range(3)]]
    for buyer in buyers:
        for _ in range(30):
            await rig.buy(buyer)
    assert rig.row(sandbox).bucket_level >= 20
    for _ in range(20):
        assert (await rig.launch(sandbox)).status == 200


async def test_a_token_that_would_not_fit_is_not_sold(rig: Rig) -> None:
    """What is too long with one grant more is refused before anything is written."""
    models = tuple(f"model-{number:02d}-{'x' * 17}" for number in range(64))
    sandbox, held = await start(rig, wide=make_scope(models=models[:58]))
    refused = None
    for _ in range(3):
        reply = await rig.buy(held)
        if reply.status != 200:
            refused = reply
            break
        held = token(reply)
    if refused is not None:
        assert "does not fit" in refused.description
    grants = rig.rows(schema.grant_, sandbox=sandbox.id)
    assert len(grants) == len(rig.rows(schema.token, sandbox=sandbox.id))
