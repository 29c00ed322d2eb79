"""Attestation by a credential of our own: a launch credential, or a renewal generation after it.

Both are JWTs this broker signed, each with its own `typ` and key, for the audience of the token
endpoint. The signature says who was meant; whether it still holds is `standing`'s question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from daypass_broker.attest import Attested
from daypass_broker.oauth import Presented
from daypass_core.claims import LAUNCH_TYPE, RENEWAL_TYPE, LaunchClaims, RenewalClaims
from daypass_core.jwks import PublicKeys
from daypass_core.verify import verify_launch, verify_renewal


@dataclass(frozen=True, slots=True)
class OwnAttestor:
    """Proof by a credential that this broker signed; `verify` is core's for its type."""

    token_type: str
    presented: Presented
    verify: Callable[..., LaunchClaims | RenewalClaims]
    keys: PublicKeys
    issuer: str
    audience: str

    def attest(self, unverified_token: str, now: float) -> Attested:
        """Verify the credential; raises TokenRefused."""
        claims = self.verify(
            unverified_token, self.keys, issuer=self.issuer, audience=self.audience, now=now
        )
        renewal = claims if isinstance(claims, RenewalClaims) else None
        return Attested(
            tenant=claims.tenant,
            sandbox=claims.sandbox,
            token_id=claims.token_id,
            key_id=claims.key_id,
            issued_at=claims.issued_at,
            lineage=None if renewal is None else renewal.lineage,
            generation=0 if renewal is None else renewal.generation,
        )


def launch_attestor(keys: PublicKeys, issuer: str, audience: str) -> OwnAttestor:
    """Return the attestor of launch credentials."""
    return OwnAttestor(LAUNCH_TYPE, Presented.ASSERTION, verify_launch, keys, issuer, audience)


def renewal_attestor(keys: PublicKeys, issuer: str, audience: str) -> OwnAttestor:
    """Return the attestor of renewal generations."""
    return OwnAttestor(RENEWAL_TYPE, Presented.RENEWAL, verify_renewal, keys, issuer, audience)
