"""What a cut-off marks beside tokens: grants and all below them, sandboxes, a tenant."""

import time
from typing import Any

import pytest
import sqlalchemy as sa

from daypass_broker import revocation, schema, tenant
from daypass_broker.revoke import Order
from daypass_core.problem import Code, Refusal
from tests.unit.broker.desk import ACME, ADMIN, GLOBEX, Desk
from tests.unit.broker.revoking import as_, make, order, state, token_of

TREE = {"a": None, "b": None, "a1": "a", "a2": "a", "a11": "a1"}


def plant(desk: Desk, row: Any, **later: int) -> dict[str, str]:
    """Buy grants below a sandbox's root, as `TREE` says; return all ids by name.

    `later` moves the making of one by so many seconds.
    """
    (root,) = desk.rows(schema.grant_, sandbox=row.id)
    names: dict[str | None, str] = {None: root.id, **{name: f"grt_{name}" for name in TREE}}
    with desk.acting() as act:
        for name, parent in TREE.items():
            made = root.created_at + later.get(name, 0) * 1000
            child = {"id": names[name], "parent": names[parent], "created_at": made}
            act.conn.execute(sa.insert(schema.grant_).values(**{**root._asdict(), **child}))
    return {"root": root.id, **{name: names[name] for name in TREE}}


def revoked_grants(desk: Desk) -> set[str]:
    """The names of the grants that are revoked."""
    rows = desk.rows(schema.grant_, state="revoked")
    return {row.id.removeprefix("grt_") if len(row.id) < 12 else "root" for row in rows}


@pytest.mark.parametrize(
    ("named", "ended"),
    [
        ("a", {"a", "a1", "a2", "a11"}),
        ("a1", {"a1", "a11"}),
        ("a11", {"a11"}),
        ("b", {"b"}),
        ("root", {"root", *TREE}),
    ],
)
def test_a_grant_takes_all_that_was_bought_with_it_along(
    desk: Desk, named: str, ended: set[str]
) -> None:
    """Revoking a node ends its subtree and nothing beside or above it; the root its sandbox too."""
    row, other = make(desk), make(desk)
    ids = plant(desk, row)
    effect = order(desk, "grant", ids[named])
    assert revoked_grants(desk) == ended
    is_root = int(named == "root")
    assert (effect.grants, effect.sandboxes) == (len(ended), is_root)
    assert state(desk, row) == ("revoked" if is_root else "active")
    assert state(desk, other) == "active"
    told = [event.subject for event in desk.rows(schema.audit, tag="grant.revoked")]
    assert sorted(told) == sorted(ids[name] for name in ended)
    assert order(desk, "grant", ids[named]).grants == 0, "marked and told once"


def test_what_came_later_ends_with_what_it_was_bought_with(desk: Desk) -> None:
    """A cut-off before a grant was made spares it; one after it ends also its younger children."""
    row = make(desk)
    ids = plant(desk, row, a=-100, a11=-10)
    made = row.created_at // 1000
    assert order(desk, "grant", ids["a"], not_before=made - 101).grants == 0
    assert order(desk, "grant", ids["a"], not_before=made - 50).grants == 4


@pytest.mark.parametrize("scope", ["sandbox", "tenant", "global"])
def test_a_sandbox_takes_the_grants_bought_in_it_along(desk: Desk, scope: str) -> None:
    """However a sandbox ends, what was bought in it stays ended when it is restored."""
    row, other = make(desk), make(desk, "globex")
    plant(desk, row)
    idents = {"sandbox": row.id, "tenant": "acme", "global": "*"}
    effect = order(desk, scope, idents[scope])
    assert effect.grants == len(TREE)
    assert revoked_grants(desk) == set(TREE), "the root is what it is restored to"
    assert state(desk, other) == ("revoked" if scope == "global" else "active")


def buy_many(desk: Desk, row: Any, count: int, life: int) -> str:
    """Buy so many grants with one token, which end in `life` seconds; return the root's id."""
    (root,) = desk.rows(schema.grant_, sandbox=row.id)
    bought = {"parent": root.id, "depth": 1, "bought_with": token_of(desk, row)}
    with desk.acting() as act:
        bought |= {"expires_at": act.second + life}
        one = {**root._asdict(), **bought}
        act.conn.execute(
            sa.insert(schema.grant_), [{**one, "id": f"grt_{n}"} for n in range(count)]
        )
    return str(root.id)


@pytest.mark.parametrize("scope", ["grant", "sandbox", "global", "jti"])
def test_what_was_bought_and_is_over_does_not_hold_a_revocation_up(desk: Desk, scope: str) -> None:
    """A sandbox that buys all day has tens of thousands of grants; the dead ones cost nothing."""
    row = make(desk)
    root = buy_many(desk, row, 5000, life=-1)
    began = time.thread_time()
    effect = order(desk, scope, {"grant": root, "sandbox": row.id, "jti": "tok_a"}.get(scope, "*"))
    assert time.thread_time() - began < 1.0
    assert effect.grants == int(scope == "grant"), "the root"
    assert len(desk.rows(schema.revocation)) == 1


def test_the_living_are_ended_however_many(desk: Desk) -> None:
    """As many as a sandbox can have alive, its bucket being what it is."""
    row = make(desk)
    root = buy_many(desk, row, 3700, life=60)
    assert order(desk, "grant", root).grants == 3701


def test_a_named_idle_sandbox_is_not_woken_any_more(desk: Desk) -> None:
    """Idle sandboxes have nothing issued, so a wide cut-off leaves them; by name they end."""
    row = make(desk)
    desk.change(schema.sandbox, row.id, state="idle")
    assert order(desk, "tenant", "acme", bounded=True).sandboxes == 0
    assert order(desk, "global").sandboxes == 0
    assert (order(desk, "sandbox", row.id).sandboxes, state(desk, row)) == (1, "revoked")


def test_what_could_still_be_used_is_counted(desk: Desk) -> None:
    """The effect says how many live access tokens end; expired ones and those of others do not."""
    row, other = make(desk), make(desk)
    token_of(desk, row, "tok_a")
    token_of(desk, row, "tok_b")
    token_of(desk, other, "tok_c")
    token_of(desk, row, "tok_old")
    desk.change(schema.token, "tok_old", exp=row.launch_iat - 1)
    (grant,) = desk.rows(schema.grant_, sandbox=row.id)
    assert order(desk, "jti", "tok_a").tokens == 1
    assert order(desk, "grant", grant.id).tokens == 2
    assert order(desk, "sandbox", row.id, not_before=row.launch_iat - 60).tokens == 0
    assert order(desk, "global").tokens == 3


def test_a_tenant_is_closed_until_it_is_restored(desk: Desk) -> None:
    """Without a bound scope tenant closes the tenant: nothing is registered, the policy opens
    nothing, and only an admin does."""
    row = make(desk)
    effect = as_(desk, ACME, Order("tenant", "acme"))
    assert (effect.tenants, effect.sandboxes) == (1, 1)
    assert desk.tags(tenant="acme")[-1] == "tenant.revoked"
    assert order(desk, "tenant", "acme").tenants == 0, "closed and told once"
    with pytest.raises(Refusal, match="tenant: acme is revoked"):
        make(desk)
    desk.apply()
    assert desk.rows(schema.tenant, id="acme")[0].state == "revoked"
    make(desk, "globex")
    for principal, code in ((ACME, Code.FORBIDDEN), (GLOBEX, Code.FORBIDDEN)):
        with pytest.raises(Refusal) as refused, desk.acting(revocation.share_version) as act:
            tenant.restore(act, principal, "acme")
        assert refused.value.problem.code is code
    with desk.acting(revocation.share_version) as act:
        assert tenant.restore(act, ADMIN, "acme").state == "active"
    assert desk.tags(tenant="acme")[-1] == "tenant.restored"
    assert state(desk, row) == "revoked", "what was issued before stays ended"
    make(desk)
    for name, code in (("acme", Code.CONFLICT), ("nobody", Code.NOT_FOUND)):
        with pytest.raises(Refusal) as refused, desk.acting(revocation.share_version) as act:
            tenant.restore(act, ADMIN, name)
        assert refused.value.problem.code is code


@pytest.mark.parametrize("bound", [{"bounded": True}, {"not_before": 1_700_000_000}])
def test_a_bounded_order_closes_no_tenant(desk: Desk, bound: dict[str, Any]) -> None:
    """`--before` ends what was issued up to then, and the tenant goes on."""
    assert order(desk, "tenant", "acme", **bound).tenants == 0
    assert desk.rows(schema.tenant, id="acme")[0].state == "active"
    make(desk)


def test_what_a_token_has_bought_ends_with_it(desk: Desk) -> None:
    """A lone jti ends the grants that were bought with that token, and their subtrees, and leaves
    those bought with another token; the version that comes back is the one that says all of it."""
    row = make(desk)
    for jti in ("tok_stolen", "tok_mine", "tok_child"):
        token_of(desk, row, jti)
    ids = plant(desk, row)
    desk.change(schema.grant_, ids["a"], bought_with="tok_stolen")
    desk.change(schema.grant_, ids["b"], bought_with="tok_mine")
    desk.change(schema.token, "tok_child", grant_id=ids["a11"])
    effect = order(desk, "jti", "tok_stolen")
    assert revoked_grants(desk) == {"a", "a1", "a2", "a11"}
    assert (effect.grants, effect.tokens, effect.sandboxes) == (4, 2, 0)
    scopes = [(found.scope, found.ident) for found in desk.rows(schema.revocation)]
    assert sorted(scopes) == [("grant", ids["a"]), ("jti", "tok_stolen")]
    newest = max(found.version for found in desk.rows(schema.revocation))
    assert effect.row.version == newest
