"""Two of one sandbox, as its profile says: nobody renews, all ends, or each has its own."""

import json
from dataclasses import replace

import pytest

from daypass_broker import clone, db, schema
from daypass_broker.lineage import CLONE, LAUNCH_REUSED
from daypass_broker.refused import Refused
from tests.unit.broker.rig import Reply, Rig, Sandbox


def made(rig: Rig, on_clone: str) -> Sandbox:
    """A single-use sandbox with an account, whose profile says so."""
    sandbox = rig.sandbox("single_use", budget=10**9)
    rig.change(sandbox, on_clone=on_clone)
    return sandbox


async def copied(rig: Rig, sandbox: Sandbox) -> tuple[Reply, str]:
    """Start it, renew it, and come with the copy of its first renewal a minute later."""
    old = str((await rig.launch(sandbox)).body["refresh_token"])
    rig.clock.advance(480)
    current = str((await rig.renew(old)).body["refresh_token"])
    rig.clock.advance(60)
    return await rig.renew(old), current


async def test_quarantine_leaves_the_tokens_there_are(rig: Rig) -> None:
    """Nobody renews any more; the sandbox is neither revoked nor ended."""
    sandbox = made(rig, "quarantine")
    reply, current = await copied(rig, sandbox)
    assert (reply.error, (await rig.renew(current)).error) == ("invalid_grant",) * 2
    assert rig.row(sandbox).state == "active"
    assert rig.rows(schema.revocation) == []


async def test_revoke_ends_all_at_once(rig: Rig) -> None:
    """The copy is refused, and what the first holds ends with it: one revocation, told once."""
    sandbox = made(rig, "revoke")
    reply, current = await copied(rig, sandbox)
    assert (reply.status, reply.error) == (400, "invalid_grant")
    assert rig.row(sandbox).state == "revoked"
    (row,) = rig.rows(schema.revocation)
    assert (row.scope, row.ident, row.actor) == ("sandbox", sandbox.id, "system")
    assert row.reason == "a copy was seen: clone"
    assert "restore" in (await rig.renew(current)).description
    assert len(rig.rows(schema.audit, tag="sandbox.revoked")) == 1


async def test_revoke_at_the_second_use_of_a_launch_credential(rig: Rig) -> None:
    """Whoever was first may be the thief."""
    sandbox = made(rig, "revoke")
    await rig.launch(sandbox)
    assert (await rig.launch(sandbox)).status == 400
    assert rig.row(sandbox).state == "revoked"
    for _ in range(3):
        await rig.launch(sandbox)
    assert len(rig.rows(schema.revocation)) == 1


@pytest.mark.parametrize("reason", ["slow_down", "deadline", "foreign_source"])
def test_other_refusals_revoke_nothing(rig: Rig, reason: str) -> None:
    """Only what means that there are two."""
    sandbox = made(rig, "revoke")
    clone.end_both(rig.services, sandbox.id, Refused(reason, ""))
    assert rig.row(sandbox).state == "active"
    rig.change(sandbox, on_clone="quarantine")
    clone.end_both(rig.services, sandbox.id, Refused(CLONE, ""))
    assert rig.row(sandbox).state == "active"


async def test_child_gives_a_copy_its_own_grant(rig: Rig) -> None:
    """A token below the sandbox's grant, with an account of its own, that cannot be renewed; it is
    an incident still, and the first goes on.
    """
    sandbox = made(rig, "child")
    reply, current = await copied(rig, sandbox)
    claims = rig.verify(reply)
    assert "refresh_token" not in reply.body
    assert claims.grants[0] == sandbox.grant
    assert (len(claims.grants), claims.account) == (2, f"grant:{claims.grants[1]}")
    (account,) = rig.rows(schema.account, id=claims.account)
    assert account.parent == f"sandbox:{sandbox.id}"
    assert rig.counts(sandbox.id) == {"clone": 1}
    again = await rig.renew(current)
    assert len(rig.verify(again).grants) == 1
    assert {row.state for row in rig.rows(schema.lineage)} == {"active"}


async def test_each_copy_has_its_own(rig: Rig) -> None:
    """Copies made before the first exchange too: no two share a grant, and neither is the first."""
    sandbox = made(rig, "child")
    first = rig.verify(await rig.launch(sandbox))
    copies = [rig.verify(await rig.launch(sandbox)) for _ in range(3)]
    assert {claims.grants[0] for claims in copies} == {first.grants[0]}
    assert len({claims.grants for claims in copies}) == 3
    assert rig.counts(sandbox.id) == {"launch_reused": 3}
    for claims in copies:
        assert claims.expires_at <= first.expires_at + 600
        (told,) = rig.rows(schema.audit, tag="grant.issued", subject=claims.grants[1])
        assert json.loads(told.detail)["grants"] == [sandbox.grant]


async def test_copies_are_bounded(rig: Rig) -> None:
    """No more than purchases are, and never so many that the first cannot renew."""
    sandbox = made(rig, "child")
    refresh = str((await rig.launch(sandbox)).body["refresh_token"])
    replies = [await rig.launch(sandbox) for _ in range(40)]
    assert [reply.status for reply in replies[:20]] == [200] * 20
    assert replies[-1].error == "slow_down"
    assert (await rig.renew(refresh)).status == 200


async def test_a_profile_without_depth_has_no_children(rig: Rig) -> None:
    """The bound of the profile holds for copies as for purchases."""
    sandbox = made(rig, "child")
    with db.begin(rig.engine) as conn:
        conn.execute(schema.profile.update().values(max_depth=0))
    await rig.launch(sandbox)
    assert (await rig.launch(sandbox)).error == "invalid_grant"


@pytest.mark.parametrize("reason", [CLONE, LAUNCH_REUSED])
def test_a_sandbox_that_has_ended_is_not_revoked(rig: Rig, reason: str) -> None:
    """What is over for good is not put back to where it could be restored."""
    sandbox = made(rig, "revoke")
    rig.change(sandbox, state="ended")
    clone.end_both(replace(rig.services), sandbox.id, Refused(reason, ""))
    assert rig.row(sandbox).state == "ended"
