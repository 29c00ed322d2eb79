"""Single-use sandboxes: one use of the launch credential, then generations; clones are found."""

import asyncio
import threading

from daypass_broker import db, oauth, schema, standing
from daypass_broker.act import Act
from daypass_broker.keys import Purpose
from daypass_broker.lineage import Copy, Generation, advance
from daypass_broker.refused import Refused
from daypass_core.claims import RenewalClaims
from daypass_core.verify import verify_renewal
from tests.support import ISSUER, NOW
from tests.unit.broker.rig import Reply, Rig, Sandbox


def generation(rig: Rig, reply: Reply) -> RenewalClaims:
    """Verify the renewal generation of an answer."""
    rig.verify(reply)
    return verify_renewal(
        reply.body["refresh_token"],
        rig.keys.public(Purpose.RENEWAL),
        issuer=ISSUER,
        audience=rig.services.settings.broker_audience,
        now=rig.clock.now(),
    )


def states(rig: Rig, sandbox: Sandbox) -> list[str]:
    """The states of the sandbox's lineages, oldest first."""
    rows = rig.rows(schema.lineage, sandbox=sandbox.id)
    return [row.state for row in sorted(rows, key=lambda row: row.created_at)]


async def test_first_use_starts_a_lineage(rig: Rig) -> None:
    """The first use gives an access token and generation 1, good until the deadline."""
    sandbox = rig.sandbox("single_use")
    claims = generation(rig, await rig.launch(sandbox))
    assert (claims.sandbox, claims.generation) == (sandbox.id, 1)
    assert claims.expires_at == sandbox.deadline
    assert rig.row(sandbox).launch_used_at == NOW * 1000
    assert states(rig, sandbox) == ["active"]
    assert len(rig.rows(schema.audit, tag="lineage.started")) == 1


async def test_reusable_sandboxes_have_no_lineage(rig: Rig) -> None:
    """A reusable launch credential gives no refresh token and may be used again and again."""
    sandbox = rig.sandbox()
    for _ in range(2):
        assert "refresh_token" not in (await rig.launch(sandbox)).body
    assert states(rig, sandbox) == []


async def test_second_use_of_the_launch_credential_is_an_incident(rig: Rig) -> None:
    """Who comes second with a single-use credential gets nothing and ends the lineage."""
    sandbox = rig.sandbox("single_use")
    first = await rig.launch(sandbox)
    second = await rig.launch(sandbox)
    assert (second.status, second.error) == (400, "invalid_grant")
    assert "works once" in second.description
    assert rig.counts(sandbox.id) == {"launch_reused": 1, "token_refused:launch_reused": 1}
    assert states(rig, sandbox) == ["quarantined"]
    (told,) = rig.rows(schema.audit, tag="lineage.quarantined")
    assert "launch_reused" in told.detail
    renewal = await rig.renew(first.body["refresh_token"])
    assert (renewal.error, "quarantined" in renewal.description) == ("invalid_grant", True)


async def test_a_hundred_reuses_fill_nothing(rig: Rig) -> None:
    """Repeating the offence raises counters of one row and adds no audit event."""
    sandbox = rig.sandbox("single_use")
    for _ in range(20):
        await rig.launch(sandbox)
    assert rig.counts(sandbox.id)["launch_reused"] == 19
    assert len(rig.rows(schema.incident, subject=sandbox.id, kind="launch_reused")) == 1
    assert len(rig.rows(schema.audit, tag="lineage.quarantined")) == 1


async def test_two_first_uses_at_once(rig: Rig) -> None:
    """Of two simultaneous uses of a single-use credential exactly one is answered."""
    sandbox = rig.sandbox("single_use")
    replies = await asyncio.gather(rig.launch(sandbox), rig.launch(sandbox))
    assert sorted(reply.status for reply in replies) == [200, 400]
    assert states(rig, sandbox) == ["quarantined"]


async def test_renewal_rotates(rig: Rig) -> None:
    """Each renewal gives an access token and the next generation of the same lineage."""
    sandbox = rig.sandbox("single_use")
    reply = await rig.launch(sandbox)
    first = generation(rig, reply)
    for expected in (2, 3, 4):
        rig.clock.advance(480)
        reply = await rig.renew(reply.body["refresh_token"])
        claims = generation(rig, reply)
        assert (claims.lineage, claims.generation) == (first.lineage, expected)
        assert reply.body["issued_token_type"] == oauth.TYPE_ACCESS_TOKEN
        assert rig.verify(reply).issued_at == rig.clock.now()
    assert len(rig.rows(schema.audit, tag="lineage.rotated")) == 3


async def test_b21_a_lost_answer_may_be_asked_for_again(rig: Rig) -> None:
    """B21: within 10 s the generation before the current one gets the current one once more."""
    sandbox = rig.sandbox("single_use")
    old = (await rig.launch(sandbox)).body["refresh_token"]
    rig.clock.advance(480)
    lost = await rig.renew(old)
    rig.clock.advance(10)
    again = await rig.renew(old)
    assert generation(rig, again).token_id == generation(rig, lost).token_id
    assert generation(rig, again).generation == 2
    assert states(rig, sandbox) == ["active"]


async def test_a_clone_after_the_grace_is_found_out(rig: Rig) -> None:
    """The generation before the current one, over 10 s later, is a clone: all of it ends."""
    sandbox = rig.sandbox("single_use")
    old = (await rig.launch(sandbox)).body["refresh_token"]
    rig.clock.advance(480)
    current = (await rig.renew(old)).body["refresh_token"]
    rig.clock.advance(10.001)
    clone = await rig.renew(old)
    assert (clone.status, clone.error) == (400, "invalid_grant")
    assert "copy" in clone.description
    assert rig.counts(sandbox.id) == {"clone": 1, "token_refused:clone": 1}
    assert states(rig, sandbox) == ["quarantined"]
    assert (await rig.renew(current)).error == "invalid_grant"


async def test_two_generations_back_is_a_clone_at_once(rig: Rig) -> None:
    """A generation older than the last but one is a clone even within the grace."""
    sandbox = rig.sandbox("single_use")
    oldest = (await rig.launch(sandbox)).body["refresh_token"]
    rig.clock.advance(20)
    second = (await rig.renew(oldest)).body["refresh_token"]
    rig.clock.advance(20)
    await rig.renew(second)
    assert (await rig.renew(oldest)).error == "invalid_grant"
    assert states(rig, sandbox) == ["quarantined"]


async def test_b21_twenty_renewals_at_once(rig: Rig) -> None:
    """B21: twenty simultaneous renewals of one generation all succeed and rotate once."""
    sandbox = rig.sandbox("single_use")
    token = (await rig.launch(sandbox)).body["refresh_token"]
    rig.clock.advance(480)
    replies = await asyncio.gather(*(rig.renew(token) for _ in range(20)))
    assert {generation(rig, reply).generation for reply in replies} == {2}
    assert len(rig.rows(schema.audit, tag="lineage.rotated")) == 1


async def test_b21_a_young_generation_does_not_rotate(rig: Rig) -> None:
    """B21: of many that come at once with two answers of the same moment none is left behind.

    Were the young second generation to rotate, whoever still has the first were a clone.
    """
    sandbox = rig.sandbox("single_use")
    first = (await rig.launch(sandbox)).body["refresh_token"]
    rig.clock.advance(480)
    second = (await rig.renew(first)).body["refresh_token"]
    rig.clock.advance(1)
    for token in (second, first, second, first):
        assert generation(rig, await rig.renew(token)).generation == 2
    rig.clock.advance(9.001)
    assert generation(rig, await rig.renew(second)).generation == 3
    assert states(rig, sandbox) == ["active"]


async def test_two_threads_renewing_at_once_rotate_once(rig: Rig) -> None:
    """Two transactions that start together are put in order: both get generation 2."""
    sandbox = rig.sandbox("single_use")
    claims = generation(rig, await rig.launch(sandbox))
    meeting, results = threading.Barrier(2), list[Generation | Refused | Copy]()

    def renew() -> None:
        meeting.wait(20)
        with db.begin(rig.engine) as conn:
            subject = standing.Subject(claims.tenant, claims.sandbox)
            found = standing.look_up(conn, subject, "y", NOW)
            assert found is not None
            act = Act(conn, sandbox.id, (NOW + 20) * 1000, rig.services.new_id)
            results.append(advance(act, found.sandbox, Generation(claims.lineage, 1)))

    threads = [threading.Thread(target=renew) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == [Generation(claims.lineage, 2)] * 2


async def test_a_cut_off_kills_renewal_generations(rig: Rig) -> None:
    """A renewal generation issued at or before a cut-off is dead."""
    sandbox = rig.sandbox("single_use")
    token = (await rig.launch(sandbox)).body["refresh_token"]
    rig.revoke("sandbox", sandbox.id, NOW)
    rig.clock.advance(2)
    reply = await rig.renew(token)
    assert (reply.error, reply.description[:15]) == ("invalid_grant", "sandbox revoked")


async def test_a_new_launch_credential_supersedes_the_lineage(rig: Rig) -> None:
    """Using a replaced sandbox's new launch credential ends whoever held the old lineage."""
    old = rig.sandbox("single_use")
    token = (await rig.launch(old)).body["refresh_token"]
    new = rig.replace_launch(old)
    rig.clock.advance(1)
    assert (await rig.launch(new)).status == 200
    assert states(rig, new) == ["quarantined", "active"]
    assert (await rig.renew(token)).error == "invalid_grant"


async def test_a_replaced_single_use_credential_has_no_grace(rig: Rig) -> None:
    """A single-use launch credential that was replaced does not work at all."""
    old = rig.sandbox("single_use")
    rig.replace_launch(old)
    assert (await rig.launch(old)).description.startswith("launch credential replaced")


async def test_a_renewal_of_another_sandboxs_lineage_is_refused(rig: Rig) -> None:
    """A lineage belongs to its sandbox: named with another, it is not known."""
    first, second = rig.sandbox("single_use"), rig.sandbox("single_use")
    claims = generation(rig, await rig.launch(first))
    values = {name: getattr(claims, name) for name in RenewalClaims.__dataclass_fields__}
    subject = claims.subject.replace(first.id, second.id)
    crossed = RenewalClaims(**values | {"sandbox": second.id, "subject": subject})
    reply = await rig.renew(rig.services.signer.sign_renewal(crossed))
    assert (reply.error, "not known" in reply.description) == ("invalid_grant", True)
    assert states(rig, first) == ["active"]
