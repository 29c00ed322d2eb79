"""Attestation by a credential of our own: a launch credential, or a renewal generation after it.

Both are JWTs this broker signed, each with its own `typ` and key, for the audience of the token
endpoint. The signature says who was meant; whether it still holds is `standing`'s question. Keys
are asked for at each use, because they change while the broker runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from daypass_broker.attest import Attested
from daypass_broker.keys import Purpose
from daypass_broker.services import Services
from daypass_core.claims import LaunchClaims, RenewalClaims
from daypass_core.verify import verify_launch, verify_renewal


@dataclass(frozen=True, slots=True)
class OwnAttestor:
    """Proof by a credential that this broker signed; `verify` is core's for its type."""

    services: Services
    purpose: Purpose
    verify: Callable[..., LaunchClaims | RenewalClaims]

    def attest(self, unverified_token: str, now: float) -> Attested:
        """Verify the credential; raises TokenRefused."""
        settings = self.services.settings
        claims = self.verify(
            unverified_token,
            self.services.keys.public(self.purpose),
            issuer=settings.issuer,
            audience=settings.broker_audience,
            now=now,
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
            works_once=not isinstance(claims, LaunchClaims) or claims.mode == "single_use",
        )


def launch_attestor(services: Services) -> OwnAttestor:
    """Return the attestor of launch credentials."""
    return OwnAttestor(services, Purpose.LAUNCH, verify_launch)


def renewal_attestor(services: Services) -> OwnAttestor:
    """Return the attestor of renewal generations."""
    return OwnAttestor(services, Purpose.RENEWAL, verify_renewal)
