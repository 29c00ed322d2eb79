"""Attested workloads at the token endpoint: one sandbox each, for as long as it is theirs."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import sqlalchemy as sa

from daypass_broker import db, schema
from daypass_broker.act import Act, acting
from daypass_broker.credential import Principal, Role
from daypass_broker.enrol import REPLAYED
from daypass_broker.reaper import reap
from daypass_broker.revocation import lock_version, share_version
from daypass_broker.revoke import Order, revoke
from daypass_broker.rule import Rule, State
from daypass_broker.sandbox import end, restore
from tests.servers.ca import Authority
from tests.servers.issuer import Issuer
from tests.support import TENANT
from tests.unit.broker.rig import Reply, Rig
from tests.unit.broker.workloads import Gate

ADMIN = Principal("crd_admin", Role.ADMIN)
LIFE = 4 * 3600


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    """An issuer whose keys stand in the rules."""
    with Issuer(Authority(tmp_path_factory.mktemp("ca"))) as made:
        yield made


@pytest.fixture
def gate(rig: Rig, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Gate:
    """A token endpoint that takes assertions."""
    made = Gate(rig, issuer, Authority(tmp_path_factory.mktemp("unused")), ())
    made.serve()
    return made


@pytest.fixture
def rule(gate: Gate) -> Rule:
    """A rule whose assertions may be shown until they expire."""
    return make_rule(gate)


def make_rule(gate: Gate, **fields: object) -> Rule:
    """A rule with the issuer's keys in it."""
    return gate.rule(keys={"inline": {"keys": gate.issuer.keys}}, **fields)


def told(reply: Reply) -> str:
    """What a refused caller is told."""
    assert (reply.status, reply.body.get("error")) == (400, "invalid_grant")
    return reply.description


def sandboxes(gate: Gate) -> list[str]:
    """The ids of all sandboxes."""
    return [row.id for row in gate.rig.rows(schema.sandbox)]


async def test_the_first_exchange_makes_a_sandbox(gate: Gate, rule: Rule) -> None:
    """It has the profile's scope, budget and deadline, says whose it is, and is audited."""
    reply = await gate.exchange(gate.token(), rule)
    claims = gate.rig.verify(reply)
    (row,) = gate.rig.rows(schema.sandbox)
    assert (row.rule, row.identity, row.launch) == (rule.id, '{"sub":"workload-1"}', "attested")
    assert (row.id, row.tenant, row.created_by) == (claims.sandbox, TENANT, rule.id)
    assert json.loads(row.labels) == {"rule": rule.name}
    assert row.deadline == int(gate.rig.clock.now()) + LIFE
    (account,) = gate.rig.rows(schema.account, sandbox=row.id)
    assert account.ceiling_nano == 10**9
    (told,) = gate.rig.rows(schema.audit, tag="sandbox.enrolled")
    assert json.loads(told.detail)["claims"] == {"sub": "workload-1"}
    assert told.actor == rule.id


async def test_the_same_workload_has_the_same_sandbox(gate: Gate, rule: Rule) -> None:
    """B18: whoever re-reads its token file, changed or not, stays who it was."""
    first = gate.token()
    one = gate.rig.verify(await gate.exchange(first, rule))
    gate.rig.clock.advance(200)
    again = gate.rig.verify(await gate.exchange(first, rule))
    fresh = gate.rig.verify(await gate.exchange(gate.token(), rule))
    other = gate.rig.verify(await gate.exchange(gate.token(sub="workload-2"), rule))
    assert one.sandbox == again.sandbox == fresh.sandbox != other.sandbox
    assert len(sandboxes(gate)) == 2


async def test_two_rules_are_two_workloads(gate: Gate, rule: Rule) -> None:
    """The same proof by another rule is another sandbox, and cannot be both."""
    other = make_rule(gate)
    shown = gate.token()
    mine = gate.rig.verify(await gate.exchange(shown, rule)).sandbox
    assert told(await gate.exchange(shown, other))
    assert len(sandboxes(gate)) == 1
    assert gate.rig.counts(mine)[REPLAYED] == 1
    theirs = gate.rig.verify(await gate.exchange(gate.token(jti="fresh"), other)).sandbox
    assert mine != theirs


async def test_a_token_never_outlives_its_assertion(gate: Gate, rule: Rule) -> None:
    """Whatever the profile allows: who stole the assertion gets no longer out of it."""
    now = int(gate.rig.clock.now())
    claims = gate.rig.verify(await gate.exchange(gate.token(exp=now + 90), rule))
    assert claims.expires_at <= now + 90
    gate.rig.clock.advance(6)
    longer = gate.rig.verify(await gate.exchange(gate.token(exp=now + 3600), rule))
    assert longer.expires_at > now + 90


async def test_a_later_assertion_is_not_cut_by_an_earlier_one(gate: Gate, rule: Rule) -> None:
    """Within the five seconds of one token, a shorter proof does not get the longer's token."""
    now = int(gate.rig.clock.now())
    assert (await gate.exchange(gate.token(exp=now + 3600), rule)).status == 200
    short = gate.rig.verify(await gate.exchange(gate.token(exp=now + 60), rule))
    assert short.expires_at <= now + 60


async def test_twenty_at_once_are_one_sandbox(gate: Gate, rule: Rule) -> None:
    """B21: twenty threads of one workload with one token file all get a token."""
    shown = gate.token()
    replies = await asyncio.gather(*(gate.exchange(shown, rule) for _ in range(20)))
    assert {gate.rig.verify(reply).sandbox for reply in replies} == set(sandboxes(gate))
    assert len(sandboxes(gate)) == 1


async def test_once_is_once(gate: Gate) -> None:
    """A second use is refused and an incident; a fresh assertion is a first use."""
    rule = make_rule(gate, replay="once")
    shown = gate.token()
    claims = gate.rig.verify(await gate.exchange(shown, rule))
    assert "used before" in told(await gate.exchange(shown, rule))
    assert gate.rig.counts(claims.sandbox)[REPLAYED] == 1
    assert (await gate.exchange(gate.token(jti="fresh"), rule)).status == 200


async def test_once_at_once_is_once(gate: Gate) -> None:
    """Of many that show one assertion at the same moment, one gets a token."""
    rule = make_rule(gate, replay="once")
    shown = gate.token()
    replies = await asyncio.gather(*(gate.exchange(shown, rule) for _ in range(8)))
    assert sorted(reply.status for reply in replies) == [200] + [400] * 7


async def test_a_wait_for_the_next_second_is_one_use(gate: Gate) -> None:
    """An exchange in the second of a cut-off is decided twice, and is no replay of itself."""
    rule = make_rule(gate, replay="once")
    first = gate.rig.verify(await gate.exchange(gate.token(jti="1"), rule))
    gate.rig.revoke("tenant", TENANT, int(gate.rig.clock.now()))
    reply = await gate.exchange(gate.token(jti="2"), rule)
    assert gate.rig.verify(reply).sandbox == first.sandbox
    assert gate.rig.slept
    assert REPLAYED not in gate.rig.counts(first.sandbox)


async def test_a_disabled_rule_issues_nothing_from_that_moment(gate: Gate, rule: Rule) -> None:
    """Even by a broker that has not looked yet: the transaction asks once more."""
    assert (await gate.exchange(gate.token(), rule)).status == 200
    gate.set_state(rule, State.DISABLED)
    assert told(await gate.exchange(gate.token(), rule))
    gate.set_state(rule, State.ACTIVE)
    assert (await gate.exchange(gate.token(), rule)).status == 200


async def test_an_ended_sandbox_stays_ended(gate: Gate, rule: Rule) -> None:
    """The pod lives, its assertions are fresh, and its sandbox is over."""
    claims = gate.rig.verify(await gate.exchange(gate.token(), rule))
    with acting(gate.rig.engine, "crd_admin", gate.services.new_id, lock=lock_version) as act:
        end(act, ADMIN, claims.sandbox)
    gate.rig.clock.advance(10)
    assert told(await gate.exchange(gate.token(), rule))
    assert sandboxes(gate) == [claims.sandbox]


async def test_a_revoked_sandbox_is_restored_by_an_admin_alone(gate: Gate, rule: Rule) -> None:
    """Fresh assertions do not lift a revocation; `restore` does, and the workload goes on."""
    claims = gate.rig.verify(await gate.exchange(gate.token(), rule))
    make_acts_now(gate)
    with acting(gate.rig.engine, "crd_admin", gate.services.new_id, lock=lock_version) as act:
        revoke(act, ADMIN, Order("sandbox", claims.sandbox, None, "test"))
    gate.rig.clock.advance(10)
    assert f"daypass sandbox restore {claims.sandbox}" in told(
        await gate.exchange(gate.token(), rule)
    )
    with acting(gate.rig.engine, "crd_admin", gate.services.new_id, lock=share_version) as act:
        restore(act, ADMIN, claims.sandbox)
    gate.rig.clock.advance(2)
    assert gate.rig.verify(await gate.exchange(gate.token(), rule)).sandbox == claims.sandbox


def make_acts_now(gate: Gate) -> None:
    """Give the sandbox a deadline that the real clock of admin acts has not passed."""
    with db.begin(gate.rig.engine) as conn:
        conn.execute(sa.update(schema.sandbox).values(deadline=2**33))
        conn.execute(sa.update(schema.grant_).values(expires_at=2**33))


async def test_after_the_deadline_a_workload_has_nothing(gate: Gate, rule: Rule) -> None:
    """The profile's lifetime holds for attested workloads as for all others."""
    assert (await gate.exchange(gate.token(), rule)).status == 200
    gate.rig.clock.advance(LIFE)
    assert told(await gate.exchange(gate.token(), rule))
    assert len(sandboxes(gate)) == 1


async def test_or_a_new_sandbox_if_the_rule_says_so(gate: Gate) -> None:
    """`after_deadline: new` is for workloads that live longer than a sandbox may."""
    rule = make_rule(gate, after_deadline="new")
    first = gate.rig.verify(await gate.exchange(gate.token(), rule)).sandbox
    gate.rig.clock.advance(LIFE - 10)
    assert gate.rig.verify(await gate.exchange(gate.token(), rule)).sandbox == first
    gate.rig.clock.advance(10)
    second = gate.rig.verify(await gate.exchange(gate.token(), rule)).sandbox
    assert second != first
    gate.rig.clock.advance(60)
    assert gate.rig.verify(await gate.exchange(gate.token(), rule)).sandbox == second


@pytest.mark.parametrize("how", ["ended", "revoked", "grant"])
async def test_but_not_in_place_of_one_that_was_taken_away(gate: Gate, how: str) -> None:
    """Waiting for the deadline does not undo what an administrator did before it."""
    rule = make_rule(gate, after_deadline="new")
    claims = gate.rig.verify(await gate.exchange(gate.token(), rule))
    ended_at = int(gate.rig.clock.now() * 1000) + 1
    with db.begin(gate.rig.engine) as conn:
        if how == "grant":
            conn.execute(sa.update(schema.grant_).values(state="revoked"))
        else:
            conn.execute(sa.update(schema.sandbox).values(state=how, ended_at=ended_at))
    gate.rig.clock.advance(LIFE)
    assert told(await gate.exchange(gate.token(), rule))
    assert sandboxes(gate) == [claims.sandbox]


@pytest.mark.parametrize("revoked", [False, True])
async def test_the_reaper_makes_no_difference(gate: Gate, revoked: bool) -> None:
    """Ended at its deadline is run out; revoked before and ended at its deadline is not."""
    rule = make_rule(gate, after_deadline="new")
    first = gate.rig.verify(await gate.exchange(gate.token(), rule)).sandbox
    if revoked:
        with acting(gate.rig.engine, "crd_admin", gate.services.new_id, lock=lock_version) as act:
            revoke(act, ADMIN, Order("sandbox", first, None, "test"))
    gate.rig.clock.advance(LIFE)
    reap(gate.services)
    gate.rig.clock.advance(2)
    reply = await gate.exchange(gate.token(), rule)
    if revoked:
        assert told(reply)
        assert sandboxes(gate) == [first]
    else:
        assert gate.rig.verify(reply).sandbox != first


@pytest.mark.parametrize("how", ["end", "revoke"])
async def test_nor_in_place_of_one_that_was_taken_away_after_it(gate: Gate, how: str) -> None:
    """An administrator who names a sandbox that has just run out means its workload."""
    rule = make_rule(gate, after_deadline="new")
    first = gate.rig.verify(await gate.exchange(gate.token(), rule)).sandbox
    gate.rig.clock.advance(LIFE)
    assert reap(gate.services) == 1
    with db.begin(gate.rig.engine) as conn:
        lock_version(conn)
        moment = int(gate.rig.clock.now() * 1000)
        act = Act(conn, "crd_admin", moment, gate.rig.services.new_id)
        if how == "end":
            assert end(act, ADMIN, first).state == "ended"
        else:
            assert revoke(act, ADMIN, Order("sandbox", first)).grants == 1
    gate.rig.clock.advance(2)
    assert told(await gate.exchange(gate.token(), rule))
    assert sandboxes(gate) == [first]


async def test_a_second_that_ends_in_between_is_one_use_as_well(gate: Gate) -> None:
    """An assertion of `once` is noted also where a cut-off's second is over before the answer."""
    rule = make_rule(gate, replay="once")
    first = gate.rig.verify(await gate.exchange(gate.token(jti="1"), rule))
    gate.rig.revoke("tenant", TENANT, int(gate.rig.clock.now()))

    looks = itertools.count()

    def ticking(_: object) -> int:
        gate.rig.clock.advance(min(next(looks), 1))
        return int(gate.rig.clock.now() * 1000)

    gate.services = replace(gate.services, now_ms=ticking)
    gate.serve()
    shown = gate.token(jti="2")
    assert gate.rig.verify(await gate.exchange(shown, rule)).sandbox == first.sandbox
    assert "used before" in told(await gate.exchange(shown, rule))


async def test_a_name_that_no_store_can_hold_is_refused(gate: Gate) -> None:
    """Half a character is legal in JSON, and must not become an error of ours."""
    rule = make_rule(gate, identity=["sub", "name"])
    assert told(await gate.exchange(gate.token(name="\ud800"), rule)) == ""
    assert sandboxes(gate) == []


async def test_a_rule_has_so_many_sandboxes_alive(gate: Gate) -> None:
    """Who can name itself anew at will cannot fill the store; those that were over do not count."""
    rule = make_rule(gate, max_sandboxes=1)
    assert (await gate.exchange(gate.token(), rule)).status == 200
    assert "1 sandboxes alive" in told(await gate.exchange(gate.token(sub="workload-2"), rule))
    assert (await gate.exchange(gate.token(jti="x"), rule)).status == 200
    gate.rig.clock.advance(LIFE)
    assert (await gate.exchange(gate.token(sub="workload-2"), rule)).status == 200


async def test_the_tenant_must_still_have_the_profile(gate: Gate, rule: Rule) -> None:
    """What the policy took from the tenant, a rule made before does not give."""
    with db.begin(gate.rig.engine) as conn:
        conn.execute(sa.update(schema.tenant).values(profiles='["other"]'))
    assert "profile" in told(await gate.exchange(gate.token(), rule))
    assert sandboxes(gate) == []


async def test_organization_id_is_the_rules_tenant(gate: Gate, rule: Rule) -> None:
    """Another organization's id is refused, and the hint names the right one."""
    assert TENANT in told(await gate.exchange(gate.token(), rule, organization_id="globex"))


async def test_strangers_are_told_nothing_and_write_nothing(gate: Gate, rule: Rule) -> None:
    """A made-up rule, another rule's proof and a forged one are the same words, without a row."""
    bad = [
        await gate.exchange(gate.token(), rule, federation_rule_id="fdrl_unknown"),
        await gate.exchange(gate.token()[:-8] + "AAAAAAAA", rule),
        await gate.exchange(gate.token(aud="https://evil.test"), rule),
    ]
    assert {json.dumps(reply.body) for reply in bad} == {json.dumps(bad[0].body)}
    assert {reply.status for reply in bad} == {400}
    assert gate.rig.rows(schema.incident) == []
    assert sandboxes(gate) == []


async def test_our_own_credentials_are_no_assertions(gate: Gate, rule: Rule) -> None:
    """Launch credential and access token of a sandbox buy nothing by a rule."""
    sandbox = gate.rig.sandbox()
    access = (await gate.rig.launch(sandbox)).body["access_token"]
    for own in (sandbox.launch, access):
        assert told(await gate.exchange(own, rule)) == ""
    assert sandboxes(gate) == [sandbox.id]


async def test_no_assertion_is_kept(gate: Gate, rule: Rule) -> None:
    """The store has its digest, until the assertion could not be shown any more."""
    shown = gate.token()
    await gate.exchange(shown, rule)
    (row,) = gate.rig.rows(schema.assertion)
    assert row.rule == rule.id
    assert row.expires_at >= int(gate.rig.clock.now()) + 300
    for table in schema.metadata.sorted_tables:
        assert shown.split(".")[2] not in repr(gate.rig.rows(table))
