"""The only file that signs. Everything signed is recorded first (see `issue` and `sandbox`).

ES256 JWTs with exactly the header `alg`, `typ`, `kid`. Each of the three kinds has its own `typ`,
key and claims, so a verifier of one refuses the other two before it looks at a claim.
"""

from __future__ import annotations

from collections.abc import Mapping

import jwt

from daypass_broker.keys import KeyRing, Purpose, SigningKey
from daypass_core.claims import (
    ACCESS_TYPE,
    LAUNCH_TYPE,
    RENEWAL_TYPE,
    Claims,
    LaunchClaims,
    RenewalClaims,
    access_payload,
    launch_payload,
    renewal_payload,
)
from daypass_core.verify import MAX_TOKEN_BYTES

ALGORITHM = "ES256"
_TYPES = {
    Purpose.ACCESS: ACCESS_TYPE,
    Purpose.LAUNCH: LAUNCH_TYPE,
    Purpose.RENEWAL: RENEWAL_TYPE,
}


class Signer:
    """Signs claims that are on record, with the active key of their kind."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    def sign_access(self, claims: Claims) -> str:
        """Return the access token of RFC 9068 with these claims.

        Raises ValueError when `claims.key_id` is not the active key: the row and the token would
        name different keys, and revoking by key id would miss this token.
        """
        key = self._keys.active(Purpose.ACCESS)
        if claims.key_id != key.kid:
            raise ValueError("claims name another key than the active one")
        return _sign(key, access_payload(claims))

    def sign_launch(self, claims: LaunchClaims) -> str:
        """Return a launch credential with these claims."""
        return _sign(self._keys.active(Purpose.LAUNCH), launch_payload(claims))

    def sign_renewal(self, claims: RenewalClaims) -> str:
        """Return a renewal generation with these claims."""
        return _sign(self._keys.active(Purpose.RENEWAL), renewal_payload(claims))


def _sign(key: SigningKey, payload: Mapping[str, object]) -> str:
    header = {"typ": _TYPES[key.purpose], "kid": key.kid}
    token = jwt.encode(  # noqa: TID251 - this is the one place
        dict(payload), key.private, algorithm=ALGORITHM, headers=header
    )
    if len(token) > MAX_TOKEN_BYTES:
        raise ValueError(f"token would be over {MAX_TOKEN_BYTES} bytes, narrow the scope")
    return token
