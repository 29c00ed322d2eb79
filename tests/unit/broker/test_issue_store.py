"""Issuing when things go wrong with the store: its clock goes back, its commit fails."""

import logging

import pytest
import sqlalchemy as sa

from daypass_broker import db, revocation, token_request
from daypass_broker.act import Act
from daypass_broker.credential import Principal, Role
from daypass_broker.revoke import Order, revoke
from tests.support import NOW
from tests.unit.broker.desk import Desk
from tests.unit.broker.rig import Rig

ADMIN = Principal("crd_admin", Role.ADMIN)


async def test_a_token_bears_the_stores_second(rig: Rig) -> None:
    """`iat` is read from the store under the locks: a broker whose own clock lags is no matter."""
    sandbox = rig.sandbox()
    rig.behind = -3.0
    assert rig.verify(await rig.launch(sandbox)).issued_at == NOW + 3


async def test_no_token_outlives_its_revocation(rig: Rig) -> None:
    """Revoked after the store's clock has gone back, a sandbox has no token that lives on."""
    sandbox = rig.sandbox()
    claims = rig.verify(await rig.launch(sandbox))
    rig.behind = 60.0
    with db.begin(rig.engine) as conn:
        revocation.lock_version(conn)
        act = Act(conn, "crd_admin", rig.services.now_ms(conn), rig.services.new_id)
        effect = revoke(act, ADMIN, Order("sandbox", sandbox.id))
    assert effect.row.not_before >= claims.issued_at
    assert (await rig.launch(sandbox)).error == "invalid_grant"


async def test_what_has_expired_stays_expired(rig: Rig) -> None:
    """A sandbox past its deadline is not revived by a store whose clock goes back."""
    sandbox = rig.sandbox(life=100)
    rig.clock.advance(101)
    rig.behind = 60.0
    assert "deadline" in (await rig.launch(sandbox)).description


def fail_to_commit(engine: sa.Engine) -> None:
    """From now on every COMMIT of this engine fails, as when the disk is full."""

    def commit(_: sa.Connection) -> None:
        raise sa.exc.OperationalError("COMMIT", {}, Exception("disk I/O error"))

    sa.event.listen(engine, "commit", commit)


def test_a_failed_commit_is_in_doubt(rig: Rig) -> None:
    """An error of COMMIT is told from errors that mean that nothing was written."""
    fail_to_commit(rig.engine)
    with pytest.raises(db.StoreInDoubt, match="disk I/O error"), db.begin(rig.engine):
        pass


async def test_a_token_in_doubt_is_not_to_be_asked_for_again(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """When the commit fails that spends a credential, the answer is 500, which no proxy repeats."""
    sandbox = rig.sandbox("single_use")
    fail_to_commit(rig.engine)
    reply = await rig.launch(sandbox)
    assert (reply.status, reply.body) == (500, {"error": "server_error"})
    assert [record.msg for record in caplog.records] == ["store_in_doubt"]


async def test_a_token_in_doubt_that_spends_nothing_may_be_asked_for_again(rig: Rig) -> None:
    """A reusable credential is as good as before: 503, so that the proxy asks again by itself."""
    sandbox = rig.sandbox()
    fail_to_commit(rig.engine)
    reply = await rig.launch(sandbox)
    assert (reply.status, reply.body["error"]) == (503, "temporarily_unavailable")


@pytest.mark.parametrize("sqlstate", ["42501", "25006"])
def test_a_login_that_may_not_is_no_fault_of_ours(rig: Rig, sqlstate: str) -> None:
    """A role taken away, or a server that became a standby, is a store that cannot answer now."""
    said = Exception("permission denied for table token")
    said.sqlstate = sqlstate  # type: ignore[attr-defined]
    with (
        pytest.raises(db.StoreUnavailable, match="permission denied"),
        db.begin(rig.engine),
    ):
        raise sa.exc.ProgrammingError("SELECT", {}, said)


def test_an_admin_is_told_that_it_is_in_doubt(desk: Desk) -> None:
    """At the admin listener it is a 500 that says to look first, not a 503 that says try again."""
    fail_to_commit(desk.engine)
    reply = desk.call("POST", "/v1/sandboxes", {"tenant": "acme"})
    assert (reply.status, reply.body["code"]) == (500, "internal_error")
    assert "look before trying again" in reply.body["detail"]
    assert "retry-after" not in reply.headers


async def test_the_text_of_a_foreign_error_is_not_logged(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What breaks at the token endpoint is logged by kind and place; its text may hold anything."""

    def fail(*_: object, **__: object) -> object:
        raise RuntimeError("canary-of-a-request")

    monkeypatch.setattr(token_request, "parse", fail)
    with caplog.at_level(logging.DEBUG):
        assert (await rig.launch("x")).status == 500
    (record,) = [one for one in caplog.records if one.msg == "token_endpoint_failed"]
    assert record.__dict__["fields"]["kind"] == "RuntimeError"
    assert "canary" not in caplog.text
