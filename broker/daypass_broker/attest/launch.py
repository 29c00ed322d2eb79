"""Attestation by a credential of our own: a launch credential, or a renewal generation after it.

Both are JWTs this broker signed, each with its own `typ` and key, for the audience of the token
endpoint. The signature says who was meant; whether it still holds is `standing`'s question.
"""

from __future__ import annotations

from dataclasses import dataclass

from daypass_broker.attest import Attested
from daypass_broker.oauth import Presented
from daypass_core.claims import LAUNCH_TYPE, RENEWAL_TYPE
from daypass_core.jwks import PublicKeys
from daypass_core.verify import verify_launch, verify_renewal


@dataclass(frozen=True, slots=True)
class LaunchAttestor:
    """Proof by launch credential."""

    keys: PublicKeys
    issuer: str
    audience: str
    token_type: str = LAUNCH_TYPE
    presented: Presented = Presented.ASSERTION

    def attest(self, unverified_token: str, now: float) -> Attested:
        """Verify a launch credential; raises TokenRefused."""
        claims = verify_launch(
            unverified_token, self.keys, issuer=self.issuer, audience=self.audience, now=now
        )
        return Attested(
            tenant=claims.tenant,
            sandbox=claims.sandbox,
            token_id=claims.token_id,
            key_id=claims.key_id,
            issued_at=claims.issued_at,
        )


@dataclass(frozen=True, slots=True)
class RenewalAttestor:
    """Proof by renewal generation."""

    keys: PublicKeys
    issuer: str
    audience: str
    token_type: str = RENEWAL_TYPE
    presented: Presented = Presented.RENEWAL

    def attest(self, unverified_token: str, now: float) -> Attested:
        """Verify a renewal generation; raises TokenRefused."""
        claims = verify_renewal(
            unverified_token, self.keys, issuer=self.issuer, audience=self.audience, now=now
        )
        return Attested(
            tenant=claims.tenant,
            sandbox=claims.sandbox,
            token_id=claims.token_id,
            key_id=claims.key_id,
            issued_at=claims.issued_at,
            lineage=claims.lineage,
            generation=claims.generation,
        )
