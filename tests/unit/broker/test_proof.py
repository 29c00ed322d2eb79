"""Which credential a request is held to be: said by the request, and never tried another way."""

import threading
from typing import Any

import pytest

from daypass_broker import issue, oauth, schema
from daypass_broker.attest.federation import Federation, Workload
from daypass_broker.issue import TokenEndpoint
from daypass_broker.keys import Purpose, SigningUnavailable
from daypass_broker.rule import Kind, Rule
from daypass_core.verify import Reason, TokenRefused
from tests.support import NOW, TENANT
from tests.unit.broker.rig import Rig, Sandbox

RULE = Rule(
    id="fdrl_github",
    name="github",
    tenant=TENANT,
    profile="coding",
    kind=Kind.OIDC,
    issuer="https://issuer.test",
    audience="daypass",
    conditions={},
    identity=("sub",),
)


class OneRule(Federation):
    """Federation that knows one assertion, and keeps what it was asked."""

    def __init__(self, rig: Rig, expires_at: int = NOW + 300) -> None:
        super().__init__(rig.services)
        self.asked: list[tuple[str, str]] = []
        self.refusal: TokenRefused | None = None
        self.expires_at = expires_at

    async def attest(self, unverified_token: str, rule_id: str, now: float) -> Workload:
        """Verify nothing: the assertion is the word `good`."""
        self.asked.append((unverified_token, rule_id))
        if self.refusal is not None:
            raise self.refusal
        if unverified_token != "good" or rule_id != RULE.id:
            raise TokenRefused(Reason.WRONG_ISSUER, signature_verified=False)
        return Workload(RULE, "{}", NOW, self.expires_at, "digest", {})


@pytest.fixture
def federation(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> OneRule:
    """The rig's token endpoint with one rule, whose workload has the sandbox `workload`."""
    made = OneRule(rig)
    sandbox = rig.sandbox("attested")
    monkeypatch.setattr(issue, "enrol", lambda act, workload, services: sandbox.id)
    rig.endpoint._prover = TokenEndpoint(rig.services, made)._prover
    return made


async def test_a_workload_gets_a_token_that_ends_with_its_assertion(
    rig: Rig, federation: OneRule
) -> None:
    """Nothing outlives the assertion; asked again within five seconds it is the same token."""
    reply = await rig.launch("good", federation_rule_id=RULE.id, organization_id=TENANT)
    claims = rig.verify(reply)
    assert (claims.expires_at, reply.body["expires_in"]) == (NOW + 300, 300)
    assert "refresh_token" not in reply.body
    again = rig.verify(await rig.launch("good", federation_rule_id=RULE.id))
    assert again.token_id == claims.token_id
    assert federation.asked == [("good", RULE.id)] * 2


async def test_no_token_is_shared_beyond_its_assertion(rig: Rig, federation: OneRule) -> None:
    """A token that outlives the assertion shown now is not given out for it."""
    first = rig.verify(await rig.launch("good", federation_rule_id=RULE.id))
    federation.expires_at = NOW + 200
    second = rig.verify(await rig.launch("good", federation_rule_id=RULE.id))
    assert (second.expires_at, second.token_id != first.token_id) == (NOW + 200, True)


async def test_old_assertions_make_no_ninth_token(rig: Rig, federation: OneRule) -> None:
    """With eight live tokens that all outlive the assertion there is none for it."""
    for number in range(8):
        federation.expires_at = NOW + 290 - number
        assert (await rig.launch("good", federation_rule_id=RULE.id)).status == 200
    federation.expires_at = NOW + 100
    reply = await rig.launch("good", federation_rule_id=RULE.id)
    assert (reply.error, "newest assertion" in reply.description) == ("slow_down", True)
    assert len(rig.rows(schema.token)) == 8


async def test_an_expired_assertion_gets_nothing(rig: Rig, federation: OneRule) -> None:
    """Within the leeway of its issuer's clock an assertion verifies, and has no life left."""
    federation.expires_at = NOW
    reply = await rig.launch("good", federation_rule_id=RULE.id)
    assert (reply.error, "fresh one" in reply.description) == ("invalid_grant", True)


async def test_another_organization_is_told(rig: Rig, federation: OneRule) -> None:
    """`organization_id` is the rule's tenant or the request is refused."""
    reply = await rig.launch("good", federation_rule_id=RULE.id, organization_id="globex")
    assert (reply.error, TENANT in reply.description) == ("invalid_grant", True)


@pytest.mark.parametrize("kind", ["launch", "access_token", "refresh_token"])
async def test_row_23_a_named_rule_is_the_only_way(
    rig: Rig, federation: OneRule, kind: str
) -> None:
    """Row 23: under a rule's id our own good credentials are held against that rule alone."""
    sandbox = rig.sandbox("single_use")
    answer = await rig.launch(sandbox)
    other = rig.sandbox()
    credential = other.launch if kind == "launch" else answer.body[kind]
    reply = await rig.launch(credential, federation_rule_id=RULE.id)
    assert (reply.status, reply.body) == (400, {"error": "invalid_grant"})
    assert federation.asked == [(credential, RULE.id)]
    assert rig.rows(schema.token, sandbox=other.id) == []


@pytest.mark.parametrize("rule", [{}, {"federation_rule_id": oauth.FEDERATION_RULE_ID}])
async def test_row_23_without_a_rule_no_rule_is_tried(
    rig: Rig, federation: OneRule, rule: dict[str, str]
) -> None:
    """Row 23: an assertion that names no rule is held against our own keys alone."""
    reply = await rig.launch("good", **rule)
    assert (reply.body, federation.asked) == ({"error": "invalid_grant"}, [])


async def test_strangers_to_a_rule_learn_and_write_nothing(rig: Rig, federation: OneRule) -> None:
    """An unknown rule, an unknown issuer and a bad signature all get one word."""
    for token, rule in (("bad", RULE.id), ("good", "fdrl_other"), ("good", "x" * 200)):
        reply = await rig.launch(token, federation_rule_id=rule)
        assert (reply.status, reply.body) == (400, {"error": "invalid_grant"})
    assert rig.rows(schema.incident) == []


async def test_a_signed_assertion_that_does_not_fit_is_counted_for_its_rule(
    rig: Rig, federation: OneRule
) -> None:
    """Whose it is only its issuer says: the rule is counted, and what failed stays in our log."""
    federation.refusal = TokenRefused(
        Reason.BAD_CLAIMS, signature_verified=True, detail="repository_id"
    )
    reply = await rig.launch("good", federation_rule_id=RULE.id)
    assert (reply.error, reply.description) == (
        "invalid_grant",
        "the assertion does not meet this rule",
    )
    assert rig.counts(RULE.id) == {"token_refused:bad_claims": 1}


async def test_a_launch_credential_of_an_attested_sandbox_works_never(
    rig: Rig, federation: OneRule
) -> None:
    """A sandbox that stands for a workload is had by its assertions, not by a launch id."""
    (row,) = rig.rows(schema.sandbox, launch="attested")
    rig.change(Sandbox(row.id, "", "", row.deadline, ""), launch_jti="lch_none")
    claims = rig.launch_claims(row.id, "reusable", "lch_x", NOW, row.deadline)
    reply = await rig.launch(rig.services.signer.sign_launch(claims))
    assert reply.error == "invalid_grant"


async def test_keys_are_asked_for_at_each_use(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch credential signed with a key that is new since the start verifies, one gone not."""
    sandbox = rig.sandbox()
    known: dict[Purpose, Any] = {Purpose.LAUNCH: {}}
    real = rig.keys.public
    monkeypatch.setattr(
        type(rig.keys), "public", lambda self, purpose: known.get(purpose, real(purpose))
    )
    assert (await rig.launch(sandbox)).body == {"error": "invalid_grant"}
    known.clear()
    assert (await rig.launch(sandbox)).status == 200


async def test_no_signature_today_is_503(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the vault away the answer is 503 with its Retry-After; the row stays, harmless."""
    sandbox = rig.sandbox()

    def sealed(self: object, claims: object) -> str:
        raise SigningUnavailable("nothing can be signed right now", retry_after=7)

    monkeypatch.setattr(type(rig.services.signer), "sign_access", sealed)
    reply = await rig.launch(sandbox)
    assert (reply.status, reply.error) == (503, "temporarily_unavailable")
    assert reply.headers["retry-after"] == "7"


@pytest.mark.parametrize("remote", [True, False])
async def test_a_remote_signer_waits_in_a_thread(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    """Signing that asks another machine leaves the loop free; signing here needs no thread."""
    signed_in: list[int] = []
    signer = type(rig.services.signer)
    sign = signer.sign_access

    def noted(self: Any, claims: Any) -> str:
        signed_in.append(threading.get_ident())
        return sign(self, claims)

    monkeypatch.setattr(signer, "sign_access", noted)
    monkeypatch.setattr(signer, "remote", property(lambda self: remote))
    rig.verify(await rig.launch(rig.sandbox()))
    assert (signed_in == [threading.get_ident()]) is not remote
