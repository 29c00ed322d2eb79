"""Sandboxes, revocations and credentials on both stores, also when many ask at the same time."""

import pytest

from daypass_broker import credential, db, idempotency, revocation, sandbox, schema
from daypass_broker.credential import Principal, Role
from daypass_broker.sandbox_request import SandboxRequest
from daypass_core.problem import Code, Refusal
from tests.contract.brokers import ACME, WORKERS, at_once, cut, make
from tests.unit.broker.desk import ADMIN, Store


def test_a_sandbox_comes_with_its_root_grant_and_account(desk: Store) -> None:
    """One act writes the sandbox, one grant of its scope, an account of its budget, two events."""
    (row,) = make(desk)
    (grant,) = desk.rows(schema.grant_, sandbox=row.id)
    (account,) = desk.rows(schema.account, sandbox=row.id)
    assert (grant.parent, grant.scope, grant.expires_at) == (None, row.scope, row.deadline)
    assert account.id == f"sandbox:{row.id}"
    assert (account.ceiling_nano, account.spent_nano, account.tenant) == (5 * 10**9, 0, "acme")
    assert desk.tags(sandbox=row.id) == ["sandbox.created", "grant.issued"]


def test_a_hundred_sandboxes_are_one_act(desk: Store) -> None:
    """`count` makes that many, each with its own launch credential."""
    rows = make(desk, SandboxRequest(tenant="acme", count=100))
    assert len({row.id for row in rows}) == len({row.launch_jti for row in rows}) == 100


def test_sandboxes_are_listed_page_by_page(desk: Store) -> None:
    """Pages of any size, newest first, show every sandbox once."""
    made = {row.id for _ in range(3) for row in make(desk, SandboxRequest(tenant="acme", count=3))}
    seen: list[str] = []
    after = None
    with db.read(desk.engine) as conn:
        while page := sandbox.search(conn, ADMIN, after=after, limit=2):
            seen += [row.id for row in page]
            after = seen[-1]
        newest = sandbox.search(conn, ADMIN, limit=9)
    assert len(seen) == 9
    assert set(seen) == made
    moments = [row.created_at for row in newest]
    assert moments == sorted(moments, reverse=True)


def test_ending_is_absolute_and_happens_once(desk: Store) -> None:
    """Ended by eight at once, a sandbox has one absolute revocation and one event."""
    (row,) = make(desk)

    def end(_: int) -> str:
        with desk.acting(revocation.lock_version) as act:
            return str(sandbox.end(act, ADMIN, row.id).state)

    assert at_once(end) == ["ended"] * WORKERS
    (written,) = desk.rows(schema.revocation)
    assert (written.scope, written.ident, written.not_before) == ("sandbox", row.id, None)
    assert desk.tags(sandbox=row.id).count("sandbox.ended") == 1


def test_versions_of_revocations_have_no_gap_and_no_twin(desk: Store) -> None:
    """Eight writers at once get the versions 1 to 40, one each, and the counter says 40."""
    rows = make(desk, SandboxRequest(tenant="acme", count=WORKERS))

    def work(number: int) -> list[int]:
        return [cut(desk, "sandbox", rows[number].id).row.version for _ in range(5)]

    versions = at_once(work)
    assert all(mine == sorted(mine) for mine in versions)
    assert sorted(version for mine in versions for version in mine) == list(range(1, 41))
    with db.read(desk.engine) as conn:
        assert revocation.current_version(conn) == 40


def test_nothing_is_made_past_a_revocation_unseen(desk: Store) -> None:
    """Made and revoked at once: whatever is active was issued after every cut-off."""

    def work(number: int) -> None:
        for _ in range(5):
            if number % 2:
                # Not the tenant, which would be closed: nothing could be made any more.
                cut(desk, "global", "*")
            else:
                make(desk)

    at_once(work)
    latest = max(row.not_before for row in desk.rows(schema.revocation))
    for row in desk.rows(schema.sandbox):
        assert row.state == "revoked" or row.launch_iat > latest


def test_a_cut_off_marks_each_sandbox_and_tells_it(desk: Store) -> None:
    """A tenant's cut-off revokes its sandboxes, not those of others, with one event each."""
    mine = make(desk, SandboxRequest(tenant="acme", count=3))
    (other,) = make(desk, SandboxRequest(tenant="globex", profile="coding"))
    effect = cut(desk, "tenant", "acme")
    assert effect.sandboxes == 3
    for row in mine:
        assert desk.rows(schema.sandbox, id=row.id)[0].state == "revoked"
        assert desk.tags(sandbox=row.id)[-1] == "sandbox.revoked"
    assert desk.rows(schema.sandbox, id=other.id)[0].state == "active"


def test_a_replaced_launch_credential_can_be_revoked(desk: Store) -> None:
    """Its id is known while it lives its last minute, and listed for its tenant."""
    (row,) = make(desk)
    with desk.acting(revocation.share_version) as act:
        sandbox.replace_launch(act, ADMIN, row.id)
    written = cut(desk, "jti", row.launch_jti).row
    with db.read(desk.engine) as conn:
        assert [found.id for found in revocation.newest(conn, "acme", limit=9)] == [written.id]


def test_one_key_at_the_same_time_makes_one_sandbox(desk: Store) -> None:
    """Eight requests with one Idempotency-Key get the same sandbox, and only that one exists."""
    key = idempotency.Key.of("once", {"tenant": "acme"})

    def work(_: int) -> tuple[str, str, int]:
        with desk.acting(revocation.share_version) as act:
            (row,) = sandbox.create(act, ADMIN, ACME, min_token_ttl=2, key=key)
            return row.id, row.launch_jti, row.launch_iat

    assert len(set(at_once(work))) == 1
    assert len(desk.rows(schema.sandbox)) == len(desk.rows(schema.account, kind="sandbox")) == 1


def test_a_key_with_another_request_is_refused(desk: Store) -> None:
    """The same Idempotency-Key with another body is a mismatch and makes nothing."""
    for number, request in enumerate((ACME, SandboxRequest(tenant="acme", count=2))):
        key = idempotency.Key.of("once", number)
        with desk.acting(revocation.share_version) as act:
            if number == 0:
                sandbox.create(act, ADMIN, request, min_token_ttl=2, key=key)
                continue
            with pytest.raises(Refusal) as refused:
                sandbox.create(act, ADMIN, request, min_token_ttl=2, key=key)
            assert refused.value.problem.code is Code.IDEMPOTENCY_MISMATCH
    assert len(desk.rows(schema.sandbox)) == 1


def test_a_refused_request_gives_its_key_back(desk: Store) -> None:
    """A key whose request was refused can be used for the corrected one."""
    bad, corrected = idempotency.Key.of("k", "bad"), idempotency.Key.of("k", "corrected")
    with pytest.raises(Refusal), desk.acting(revocation.share_version) as act:
        sandbox.create(act, ADMIN, SandboxRequest("nobody"), min_token_ttl=2, key=bad)
    with desk.acting(revocation.share_version) as act:
        assert sandbox.create(act, ADMIN, ACME, min_token_ttl=2, key=corrected)


def test_a_credential_is_known_until_it_is_revoked(desk: Store) -> None:
    """A credential authenticates, revoking it by eight at once ends it with one event."""
    issued = desk.credential(Role.ORCHESTRATOR, "acme-ci")

    def known() -> Principal | None:
        with db.read(desk.engine) as conn:
            return credential.authenticate(conn, f"Bearer {issued.text}")

    assert known() == Principal(issued.id, Role.ORCHESTRATOR, "acme-ci", "acme")

    def end(_: int) -> bool:
        with desk.acting() as act:
            return credential.revoke(act, issued.id)

    assert sorted(at_once(end)) == [False] * (WORKERS - 1) + [True]
    assert known() is None
    assert desk.tags(subject=issued.id) == ["credential.issued", "credential.revoked"]
