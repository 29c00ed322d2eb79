"""What a token request proves: which credential it is, chosen by what the request says, verified.

The choice is made by grant type, subject type and rule id alone, before anything is looked at, and
there is no second one: whatever fails its own check has failed. So a credential of ours is never
held against somebody's rule, and somebody's assertion never against our keys (attacks row 23).
"""

from __future__ import annotations

from daypass_broker.attest import Attested, Attestor, signed_sandbox
from daypass_broker.attest.federation import Federation, Workload
from daypass_broker.attest.launch import launch_attestor, renewal_attestor
from daypass_broker.keys import Purpose
from daypass_broker.oauth import FEDERATION_RULE_ID
from daypass_broker.services import Services
from daypass_broker.token_request import Presented, TokenRequest
from daypass_core.claims import Claims
from daypass_core.verify import Reason, TokenRefused, verify_access

Proof = Attested | Workload | Claims
"""A sandbox by a credential of ours, a workload by a rule, or the holder of an access token."""


class Prover:
    """The ways there are to prove something at the token endpoint."""

    def __init__(self, services: Services, federation: Federation) -> None:
        self._services = services
        self._federation = federation
        self._own: dict[Presented, Attestor] = {
            Presented.ASSERTION: launch_attestor(services),
            Presented.RENEWAL: renewal_attestor(services),
        }

    async def prove(self, asked: TokenRequest, now: float) -> Proof:
        """Verify the credential of a request at `now` (epoch seconds); raises TokenRefused."""
        token, rule = asked.unverified_credential, asked.federation_rule_id
        if asked.presented is Presented.ACCESS:
            settings = self._services.settings
            keys = self._services.keys.public(Purpose.ACCESS)
            issuer, audience = settings.issuer, settings.audience
            return verify_access(token, keys, issuer=issuer, audience=audience, now=now)
        if rule is not None and rule != FEDERATION_RULE_ID:
            return await self._federation.attest(token, rule, now)
        return self._own[asked.presented].attest(token, now)


_TOLD_SANDBOX = {
    Reason.EXPIRED: "credential expired, as its sandbox has; register a new sandbox",
    Reason.NOT_YET_VALID: "credential was issued in the future; check the clocks of the brokers",
}
_TOLD_HOLDER = {Reason.EXPIRED: "the access token has expired; present a fresh one"}
_TOLD_WORKLOAD = {
    Reason.EXPIRED: "the assertion has expired; read the token file anew at each exchange",
    Reason.NOT_YET_VALID: "the assertion is not valid yet; check the clocks",
}


def refusal_to_tell(asked: TokenRequest, refused: TokenRefused) -> tuple[str, str | None]:
    """Return what the caller is told of a refused proof, and of whom it is counted.

    Nothing and nobody as long as no signature held: strangers all get one answer, and write
    nothing. Of an assertion that fails its rule, the rule is counted: whose it is, its issuer says.
    """
    if not refused.signature_verified:
        return "", None
    rule = asked.federation_rule_id
    if rule is not None and rule != FEDERATION_RULE_ID:
        return _TOLD_WORKLOAD.get(refused.reason, "the assertion does not meet this rule"), rule
    table = _TOLD_HOLDER if asked.presented is Presented.ACCESS else _TOLD_SANDBOX
    told = table.get(refused.reason, "credential is not for this token endpoint")
    return told, signed_sandbox(asked.unverified_credential)
