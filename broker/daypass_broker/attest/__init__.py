"""Attestation: who is calling, shown by something verifiable. One `Attestor` per way to show it.

`attest` picks the attestor by the unverified `typ` alone and lets no other one try: a credential
that fails its own check never falls through to another path (attacks row 23).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from daypass_broker.oauth import Presented
from daypass_core.verify import Reason, TokenRefused, unverified_type


@dataclass(frozen=True, slots=True)
class Attested:
    """A caller whose proof verified. Whether it may have a token is decided elsewhere.

    `token_id`, `key_id` and `issued_at` (epoch seconds) are the proof's own, so that revocations
    can name it; `lineage` and `generation` are set when the proof is a renewal generation.
    """

    tenant: str
    sandbox: str
    token_id: str
    key_id: str
    issued_at: int
    lineage: str | None = None
    generation: int = 0


class Attestor(Protocol):
    """One way to prove identity."""

    @property
    def token_type(self) -> str:
        """The `typ` of the tokens it verifies."""
        ...

    @property
    def presented(self) -> Presented:
        """What the caller must have said the token is."""
        ...

    def attest(self, unverified_token: str, now: float) -> Attested:
        """Verify the proof at `now` (epoch seconds); raises daypass_core.verify.TokenRefused."""
        ...


def attest(
    attestors: Sequence[Attestor], presented: Presented, unverified_token: str, now: float
) -> Attested:
    """Verify a proof with the one attestor for its type, without touching the store.

    Raises TokenRefused; its `signature_verified` decides whether the caller may be helped.
    """
    token_type = unverified_type(unverified_token)
    for attestor in attestors:
        if attestor.token_type == token_type and attestor.presented is presented:
            return attestor.attest(unverified_token, now)
    raise TokenRefused(Reason.WRONG_TYPE, signature_verified=False)


def signed_sandbox(verified_token: str) -> str:
    """Return the sandbox a token speaks of, for a token refused *after* its signature held.

    Only for counting the refusal: such a token proves who was meant, and no more.
    """
    payload = verified_token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return str(claims.get("sub", "")).rpartition("/")[2]
