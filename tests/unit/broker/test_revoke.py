"""Revoking: who may, what is marked, and how long a row lives."""

import pytest

from daypass_broker import revocation, sandbox, schema
from daypass_broker.act import Act
from daypass_broker.revoke import Effect, Order, Target, revoke
from daypass_core.problem import Code, Refusal
from tests.unit.broker.desk import ACME, ADMIN, GLOBEX, Desk
from tests.unit.broker.revoking import as_, make, order, state, token_of

DAY, MARGIN = 24 * 3600, 60


def test_a_sandbox_cut_off_marks_that_sandbox(desk: Desk) -> None:
    """Scope sandbox ends this sandbox as of now, not its neighbour."""
    mine, other = make(desk), make(desk)
    effect = order(desk, "sandbox", mine.id, reason="leaked")
    assert (effect.sandboxes, effect.grants, effect.row.reason) == (1, 0, "leaked")
    assert effect.row.not_before >= mine.launch_iat
    assert (state(desk, mine), state(desk, other)) == ("revoked", "active")
    assert desk.tags(sandbox=mine.id)[-2:] == ["revocation.created", "sandbox.revoked"]


def test_a_global_cut_off_marks_every_sandbox(desk: Desk) -> None:
    """Scope global ends the sandboxes of all tenants."""
    rows = [make(desk), make(desk, "globex")]
    assert order(desk, "global").sandboxes == 2
    assert [state(desk, row) for row in rows] == ["revoked", "revoked"]


def test_a_cut_off_in_the_past_spares_what_came_later(desk: Desk) -> None:
    """A sandbox whose launch credential is younger than the cut-off goes on."""
    row = make(desk)
    effect = order(desk, "tenant", "acme", not_before=row.launch_iat - 1)
    assert (effect.sandboxes, state(desk, row)) == (0, "active")
    assert order(desk, "tenant", "acme", not_before=row.launch_iat).sandboxes == 1


def test_a_revocation_replaces_what_it_covers(desk: Desk) -> None:
    """Revoking the same again and again leaves one row; an earlier cut-off takes nothing away."""
    row = make(desk)
    jti = token_of(desk, row)
    for _ in range(3):
        order(desk, "jti", jti)
    assert len(desk.rows(schema.revocation, scope="jti", ident=jti)) == 1
    order(desk, "sandbox", row.id)
    (now,) = desk.rows(schema.revocation, scope="sandbox", ident=row.id)
    order(desk, "sandbox", row.id, not_before=now.not_before - 60)
    kept = {r.not_before for r in desk.rows(schema.revocation, scope="sandbox", ident=row.id)}
    assert now.not_before in kept


def test_the_root_grant_takes_its_sandbox_along(desk: Desk) -> None:
    """Scope grant marks the grant; a root grant's end is its sandbox's end."""
    row = make(desk)
    (grant,) = desk.rows(schema.grant_, sandbox=row.id)
    effect = order(desk, "grant", grant.id)
    assert (effect.sandboxes, effect.grants) == (1, 1)
    assert desk.rows(schema.grant_, id=grant.id)[0].state == "revoked"
    assert state(desk, row) == "revoked"
    assert desk.tags(sandbox=row.id)[-2:] == ["grant.revoked", "sandbox.revoked"]


def test_a_verified_token_without_a_row_is_revoked_all_the_same(desk: Desk) -> None:
    """What a stolen key has signed is on no record; its jti must be revocable nevertheless."""
    row = make(desk)
    with desk.acting(revocation.lock_version) as act:
        effect = revoke(act, ACME, Order("jti", "tok_forged"), Target("acme", row.id))
    assert (effect.row.ident, effect.row.not_before) == ("tok_forged", None)
    with pytest.raises(Refusal), desk.acting(revocation.lock_version) as act:
        revoke(act, GLOBEX, Order("jti", "tok_forged"), Target("acme", row.id))


def test_a_token_and_a_key_are_absolute_and_mark_nothing(desk: Desk) -> None:
    """Scopes jti and kid have no cut-off and leave the sandbox active."""
    row = make(desk)
    (kid, *_) = [key.kid for key in desk.rows(schema.signing_key)]
    for scope, ident in (("jti", token_of(desk, row)), ("jti", row.launch_jti), ("kid", kid)):
        effect = order(desk, scope, ident)
        assert (effect.row.not_before, effect.sandboxes, effect.grants) == (None, 0, 0)
    assert state(desk, row) == "active"


@pytest.mark.parametrize("scope", ["tenant", "sandbox", "grant", "kid", "jti"])
def test_what_does_not_exist_is_not_revoked(desk: Desk, scope: str) -> None:
    """A typing error is refused with 404 and writes nothing."""
    with pytest.raises(Refusal) as refused:
        order(desk, scope, "sbx_nobody")
    assert (refused.value.problem.code, refused.value.problem.field) == (Code.NOT_FOUND, "ident")
    assert desk.rows(schema.revocation) == []


def test_an_orchestrator_revokes_in_its_tenant_only(desk: Desk) -> None:
    """Nothing of another tenant exists for an orchestrator, and global and kid are closed to it."""
    row = make(desk)
    (grant,) = desk.rows(schema.grant_, sandbox=row.id)
    mine = [
        Order("jti", token_of(desk, row)),
        Order("grant", grant.id),
        Order("sandbox", row.id),
        Order("tenant", "acme"),
    ]
    for wanted in mine:
        with pytest.raises(Refusal) as refused:
            as_(desk, GLOBEX, wanted)
        assert refused.value.problem.code is Code.NOT_FOUND
    for wanted in (Order("global"), Order("kid", "k")):
        with pytest.raises(Refusal) as refused:
            as_(desk, ACME, wanted)
        assert (refused.value.problem.code, refused.value.problem.field) == (
            Code.FORBIDDEN,
            "scope",
        )
    assert desk.rows(schema.revocation) == []
    for version, wanted in enumerate(mine, start=1):
        assert as_(desk, ACME, wanted).row.version == version


@pytest.mark.parametrize(("scope", "not_before"), [("tenant", 2**40), ("jti", 1), ("kid", 1)])
def test_a_cut_off_must_make_sense(desk: Desk, scope: str, not_before: int) -> None:
    """A cut-off in the future, or one for what is absolute, is refused naming the field."""
    row = make(desk)
    idents = {"tenant": "acme", "jti": token_of(desk, row)}
    ident = idents.get(scope) or desk.rows(schema.signing_key)[0].kid
    with pytest.raises(Refusal) as refused:
        order(desk, scope, ident, not_before=not_before)
    assert (refused.value.problem.status, refused.value.problem.field) == (400, "not_before")


def test_a_row_outlives_what_it_ends(desk: Desk) -> None:
    """Rows live a day past their moment, as launch credentials may do; a key's for ever."""
    row = make(desk)
    kid = desk.rows(schema.signing_key)[0].kid
    cut_off = order(desk, "sandbox", row.id, not_before=row.launch_iat - 500).row
    assert cut_off.expires_at == row.launch_iat - 500 + DAY + MARGIN
    launch = order(desk, "jti", row.launch_jti).row
    assert launch.expires_at == launch.created_at // 1000 + DAY + MARGIN
    assert order(desk, "kid", kid).row.expires_at > 10**11


def test_rows_that_end_nothing_any_more_are_pruned(desk: Desk) -> None:
    """B22: the next revocation removes rows past their end, but no row of a key that is known."""
    row = make(desk)
    kid = desk.rows(schema.signing_key)[0].kid
    old = {order(desk, "tenant", "acme").row.id, order(desk, "jti", token_of(desk, row)).row.id}
    key = order(desk, "kid", kid).row.id
    as_(desk, ADMIN, Order("tenant", "globex"), later=DAY + MARGIN - 60)
    left = {found.id for found in desk.rows(schema.revocation)}
    assert left > old
    as_(desk, ADMIN, Order("tenant", "globex"), later=2 * DAY)
    left = {found.id for found in desk.rows(schema.revocation)}
    assert not left & old
    assert key in left


def test_cut_offs_combine_by_the_latest(desk: Desk) -> None:
    """The latest of global, tenant, sandbox and grant counts; absolute rows are no cut-off."""
    row, other = make(desk), make(desk, "globex")
    (grant,) = desk.rows(schema.grant_, sandbox=row.id)
    now = row.launch_iat

    def cut_off() -> int | None:
        with desk.acting() as act:
            return revocation.cut_off(act.conn, "acme", row.id, [grant.id])

    order(desk, "jti", token_of(desk, row))
    order(desk, "sandbox", other.id)
    assert cut_off() is None
    steps = [("grant", grant.id, 40), ("sandbox", row.id, 30), ("tenant", "acme", 35)]
    seen = []
    for scope, ident, ago in [*steps, ("global", "*", 20)]:
        order(desk, scope, ident, not_before=now - ago)
        seen.append(cut_off())
    assert seen == [now - 40, now - 30, now - 30, now - 20]


def test_a_second_cut_off_in_one_second_ends_what_was_made_between(desk: Desk) -> None:
    """A sandbox whose launch credential starts in the next second does not slip through."""
    order(desk, "tenant", "acme", bounded=True)
    row = make(desk)
    assert order(desk, "tenant", "acme").sandboxes == 1
    assert state(desk, row) == "revoked"


def test_an_orchestrator_sees_revocations_of_its_tenant(desk: Desk) -> None:
    """Listed are those that name the tenant or something of it; an admin sees all."""
    row, other = make(desk), make(desk, "globex")
    token = token_of(desk, row)
    for scope, ident in (("jti", token), ("sandbox", row.id), ("tenant", "acme"), ("global", "*")):
        order(desk, scope, ident)
    order(desk, "sandbox", other.id)
    with desk.acting() as act:
        mine = revocation.newest(act.conn, "acme", limit=10)
        everything = revocation.newest(act.conn, None, limit=10)
    assert [found.scope for found in mine] == ["tenant", "sandbox", "jti"]
    assert len(everything) == 5


def test_an_act_is_one_moment(desk: Desk) -> None:
    """Row, audit events and marks of one revocation carry the same moment and actor."""
    row = make(desk)
    desk.actor = "crd_hand"
    effect = order(desk, "sandbox", row.id)
    events = desk.rows(schema.audit, actor="crd_hand")
    assert {event.at for event in events} == {effect.row.created_at}
    assert isinstance(effect, Effect)
    assert Act.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_a_replaced_launch_credential_can_be_revoked(desk: Desk) -> None:
    """While the old launch credential lives its last minute its id is known, to its tenant too."""
    old = make(desk)
    with desk.acting(revocation.share_version) as act:
        sandbox.replace_launch(act, ADMIN, old.id)
    effect = as_(desk, ACME, Order("jti", old.launch_jti))
    with desk.acting() as act:
        assert [row.id for row in revocation.newest(act.conn, "acme", limit=9)] == [effect.row.id]
        assert revocation.newest(act.conn, "globex", limit=9) == []


@pytest.mark.parametrize("scope", ["global", "tenant", "sandbox", "grant"])
def test_now_is_not_before_a_token_that_is_to_end(desk: Desk, scope: str) -> None:
    """With the database's clock gone back an hour, a cut-off of now ends the tokens there are."""
    row = make(desk)
    token_of(desk, row)
    (token,) = desk.rows(schema.token)
    (grant,) = desk.rows(schema.grant_, sandbox=row.id)
    idents = {"global": "*", "tenant": "acme", "sandbox": row.id, "grant": grant.id}
    effect = as_(desk, ADMIN, Order(scope, idents[scope]), later=-3600)
    assert effect.row.not_before == token.iat


def test_tokens_of_others_do_not_move_now(desk: Desk) -> None:
    """Only the tokens a cut-off is about count; a young one of a neighbour does not."""
    mine, other = make(desk), make(desk)
    token_of(desk, other)
    effect = as_(desk, ADMIN, Order("sandbox", mine.id), later=-3600)
    assert effect.row.not_before == effect.row.created_at // 1000
