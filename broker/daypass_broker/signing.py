"""The only file that signs. Everything signed is recorded first (see `issue` and `sandbox`).

ES256 JWTs with exactly the header `alg`, `typ`, `kid`. Each of the three kinds has its own `typ`,
key and claims, so a verifier of one refuses the other two before it looks at a claim. A head of the
audit trail is no JWT, and could not pass for one. The signature itself is made where the key lies:
in memory, or in a vault that has to be asked.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping

from daypass_broker.key_ring import KeyRing
from daypass_broker.keys import PROBE, Purpose, SigningKey
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
_SIGNATURE_CHARS = 86  # 64 bytes in base64url


class Signer:
    """Signs claims that are on record, with the key of their kind.

    Every method may raise keys.SigningUnavailable, and waits for a vault when `remote`.
    """

    def __init__(
        self, keys: KeyRing, signed: Callable[[str, float], None] = lambda *_: None
    ) -> None:
        """`signed` is told of each signature: its purpose, and the seconds it took."""
        self._keys = keys
        self._signed = signed

    @property
    def remote(self) -> bool:
        """Whether signing may wait for another machine: then call it in a thread."""
        return self._keys.remote

    def check(self, *purposes: Purpose) -> None:
        """Raise SigningUnavailable when these kinds could not be signed now.

        Called before something is recorded that cannot be taken back, such as the use of a
        credential that works once: its answer would be lost. Free unless `remote`.
        """
        for purpose in purposes:
            half = self._keys.active(purpose).half
            if half.remote:
                half.sign(PROBE)

    def sign_access(self, claims: Claims) -> str:
        """Return the access token of RFC 9068 with these claims.

        Raises ValueError when `claims.key_id` is neither the active key nor one only just retired:
        the row and the token would name different keys, and revoking by key id would miss this one.
        """
        key = self._keys.signer(Purpose.ACCESS, claims.key_id)
        if key is None:
            raise ValueError("claims name another key than the active one")
        return self._sign(key, access_payload(claims))

    def sign_launch(self, claims: LaunchClaims) -> str:
        """Return a launch credential with these claims."""
        return self._sign(self._keys.active(Purpose.LAUNCH), launch_payload(claims))

    def sign_renewal(self, claims: RenewalClaims) -> str:
        """Return a renewal generation with these claims."""
        return self._sign(self._keys.active(Purpose.RENEWAL), renewal_payload(claims))

    def sign_head(self, text: bytes) -> tuple[str, bytes]:
        """Return the kid of the active access key and its signature of a head of the audit trail.

        64 bytes, as of ES256. Raises ValueError for a text that could be what is signed of a JWT.
        """
        if not text.startswith(b"{"):
            raise ValueError("a head begins with a brace")
        key = self._keys.active(Purpose.ACCESS)
        return key.kid, key.half.sign(text)

    def _sign(self, key: SigningKey, payload: Mapping[str, object]) -> str:
        began = time.perf_counter()
        token = _sign(key, payload)
        self._signed(key.purpose.value, time.perf_counter() - began)
        return token


def _sign(key: SigningKey, payload: Mapping[str, object]) -> str:
    header = {"alg": ALGORITHM, "kid": key.kid, "typ": _TYPES[key.purpose]}
    message = f"{_part(header)}.{_part(payload)}"
    if len(message) + 1 + _SIGNATURE_CHARS > MAX_TOKEN_BYTES:
        raise ValueError(f"token would be over {MAX_TOKEN_BYTES} bytes, narrow the scope")
    return f"{message}.{_base64url(key.half.sign(message.encode('ascii')))}"


def _part(value: Mapping[str, object]) -> str:
    return _base64url(json.dumps(value, separators=(",", ":")).encode())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
