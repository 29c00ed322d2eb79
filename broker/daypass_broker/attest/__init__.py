"""Attestation: who is calling, shown by something verifiable. One file per way to show it.

`proof` chooses the one way by what the request says it presents. A credential that fails its own
check never falls through to another (attacks row 23).
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Attested:
    """A sandbox whose credential of ours verified; whether it may have a token is not decided here.

    `token_id`, `key_id` and `issued_at` (epoch seconds) are the credential's own, so that
    revocations can name it; `lineage` and `generation` are set when it is a renewal generation.
    `works_once`: its use cannot be taken back, and a renewal generation goes along with the token.
    """

    tenant: str
    sandbox: str
    token_id: str
    key_id: str
    issued_at: int
    lineage: str | None = None
    generation: int = 0
    works_once: bool = False


class Attestor(Protocol):
    """One way to prove with a credential of ours."""

    def attest(self, unverified_token: str, now: float) -> Attested:
        """Verify the proof at `now` (epoch seconds) without touching the store.

        Raises daypass_core.verify.TokenRefused; its `signature_verified` decides whether the caller
        may be helped.
        """
        ...


def signed_sandbox(verified_token: str) -> str:
    """Return the sandbox a token of ours speaks of, refused *after* its signature held.

    Only for counting the refusal: such a token proves who was meant, and no more.
    """
    payload = verified_token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return str(claims.get("sub", "")).rpartition("/")[2]
