"""Signing keys: what one is, what it signs, and what a place that keeps private halves must do.

Access tokens, launch credentials and renewal generations have keys of their own, so none of the
three can pass for another whatever else goes wrong (RFC 8725 §3.9). Public halves are rows of
`signing_key`; private ones lie in files (`key_files`) or never leave a vault (`transit`). Who signs
now, and who next, is decided in `key_rotation` and known to `key_ring`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

PROBE = b"daypass: can this be signed?"
"""What is signed to see whether anything can be; no JWT: those have a dot."""
RETRY_SECONDS = 5
"""What callers are told to wait when nothing can be signed and nobody knows for how long."""


class Purpose(StrEnum):
    """What a key signs; never more than one kind of JWT."""

    ACCESS = "access"
    LAUNCH = "launch"
    RENEWAL = "renewal"


class KeyRingError(Exception):
    """A signing key cannot be used; the message names the place and what to do, never content."""


class SigningUnavailable(Exception):
    """Nothing can be signed now; the message is for callers, `retry_after` in seconds."""

    def __init__(
        self, told: str = "nothing can be signed right now", retry_after: int = RETRY_SECONDS
    ) -> None:
        super().__init__(told)
        self.told = told
        self.retry_after = retry_after


class PrivateHalf(Protocol):
    """What makes signatures with one key."""

    @property
    def remote(self) -> bool:
        """Whether `sign` may wait for another machine."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Return the ES256 signature of `message`, 64 bytes; raises SigningUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One key that can sign, named by its RFC 7638 thumbprint."""

    kid: str
    purpose: Purpose
    half: PrivateHalf = field(repr=False)


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key just made and not on record yet; `reference` is its name in a vault."""

    kid: str
    public: EllipticCurvePublicKey
    reference: str | None = None


class KeyStore(Protocol):
    """A place that makes and keeps private halves: column `store` of `signing_key`."""

    def make(self, purpose: Purpose, known: frozenset[str]) -> NewKey:
        """Make a key that is none of the `known` kids; raises KeyRingError."""
        ...

    def load(
        self,
        purpose: Purpose,
        kid: str,
        reference: str | None,
        public: EllipticCurvePublicKey,
    ) -> SigningKey:
        """Return the key of a row; raises KeyRingError saying what to do."""
        ...

    def discard(self, purpose: Purpose, kid: str) -> None:
        """Destroy the private half of a key that signs nothing any more, where that is ours to do.

        Does nothing when it is gone. Raises KeyRingError.
        """
        ...


KeyStores = Mapping[str, KeyStore]
"""The places by their name in the column: `file`, `transit`."""
