"""Private halves that never leave Vault or OpenBao: each version of a transit key is one key.

A store of `keys`, chosen by DAYPASS_SIGNING=transit. Every purpose has a transit key of its own
(`<name>-access`, …) of type ecdsa-p256; a row's reference is `<key>:<version>`. The version is
named in each request, and what comes back is verified here before it leaves: a signature by another
key or version would be refused by every proxy, and it would be our fault.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from daypass_broker.keys import KeyRingError, NewKey, Purpose, SigningKey, SigningUnavailable
from daypass_core.jwks import JwksError, thumbprint
from daypass_core.log import event, get_logger
from daypass_core.vault import TIMEOUT, Vault, VaultError, VaultMissing, VaultUnavailable

log = get_logger(__name__)

NAME = "transit"
KEY_TYPE = "ecdsa-p256"
PAUSE_SECONDS = 1.0
"""How long nobody asks a vault that did not answer."""
_PROBE_SECONDS = 3.0 * TIMEOUT  # a request, and a login before it
_ES256 = jwt.get_algorithm_by_name("ES256")
_SIGNATURE = re.compile(r"vault:v([1-9][0-9]{0,8}):([A-Za-z0-9_-]{86})")
_REFERENCE = re.compile(r"([A-Za-z0-9_-]{1,200}):([1-9][0-9]{0,8})")


class Transit:
    """The keys of one transit mount; may be used from several threads."""

    def __init__(
        self,
        vault: Vault,
        mount: str,
        name: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` is what the names of the transit keys begin with."""
        self._vault = vault
        self._mount = mount
        self._name = name
        self._monotonic = monotonic
        # One for each key: that one of them is gone, or not ours to use, must not stop the others.
        self._gates: dict[str, _Gate] = {}

    def make(self, purpose: Purpose, known: frozenset[str]) -> NewKey:
        """Return the newest version when it is not in use, else rotate the transit key.

        Raises KeyRingError, and SigningUnavailable when the vault does not answer.
        """
        name = f"{self._name}-{purpose}"
        try:
            newest = self._newest(name)
            if newest is None or newest.kid in known:
                self._rotate(name) if newest else self._create(name)
                newest = self._newest(name)
        except VaultUnavailable as error:
            raise SigningUnavailable(str(error)) from None
        except VaultError as error:
            raise KeyRingError(
                f"{error}; the broker needs a transit engine at {self._mount}/, read and update on"
                f" {self._mount}/keys/{name} and {self._mount}/keys/{name}/rotate, and update on"
                f" {self._mount}/sign/{name}"
            ) from None
        if newest is None or newest.kid in known:
            raise KeyRingError(f"vault gave no new version of {self._mount}/keys/{name}")
        return newest

    def load(
        self, purpose: Purpose, kid: str, reference: str | None, public: EllipticCurvePublicKey
    ) -> SigningKey:
        """Return the key of a row; asks nobody, so a sealed vault stops no start."""
        found = _REFERENCE.fullmatch(reference or "")
        if found is None:
            raise KeyRingError(f"the reference of transit key {kid} is damaged: restore its row")
        return SigningKey(kid, purpose, TransitHalf(self, found[1], int(found[2]), public))

    def discard(self, purpose: Purpose, kid: str) -> None:
        """Leave it to the vault's operator, who alone can trim versions."""

    def sign(self, name: str, version: int, digest: bytes) -> bytes:
        """Return the signature of a SHA-256 digest by one version; raises SigningUnavailable."""
        reference = f"{name}:{version}"
        with self._gates.setdefault(reference, _Gate(reference, self._monotonic)).passing():
            answer = self._vault.ask(
                f"sign with {self._mount}/{name}",
                lambda client: client.secrets.transit.sign_data(
                    name,
                    hash_input=base64.b64encode(digest).decode("ascii"),
                    key_version=version,
                    hash_algorithm="sha2-256",
                    prehashed=True,
                    marshaling_algorithm="jws",
                    mount_point=self._mount,
                ),
            )
        found = _SIGNATURE.fullmatch(str(_data(answer).get("signature")))
        if found is None or int(found[1]) != version:
            return b""  # no signature at all: refused by whoever verifies it
        return base64.urlsafe_b64decode(found[2] + "==")

    def _newest(self, name: str) -> NewKey | None:
        """Read the newest version of a transit key, None when there is no such key."""
        try:
            answer = self._vault.ask(
                f"read of {self._mount}/keys/{name}",
                lambda client: client.secrets.transit.read_key(name, mount_point=self._mount),
            )
        except VaultMissing:
            return None
        data = _data(answer)
        version = data.get("latest_version")
        try:
            public = load_pem_public_key(data["keys"][str(version)]["public_key"].encode())
            if data["type"] != KEY_TYPE or not isinstance(public, EllipticCurvePublicKey):
                raise ValueError
            return NewKey(thumbprint(public), public, f"{name}:{version}")
        except (KeyError, TypeError, AttributeError, ValueError, JwksError):
            raise KeyRingError(
                f"{self._mount}/keys/{name} is no transit key of type {KEY_TYPE}: choose another"
                " DAYPASS_TRANSIT_KEY"
            ) from None

    def _create(self, name: str) -> None:
        self._vault.ask(
            f"making of {self._mount}/keys/{name}",
            lambda client: client.secrets.transit.create_key(
                name, key_type=KEY_TYPE, exportable=False, mount_point=self._mount
            ),
        )

    def _rotate(self, name: str) -> None:
        self._vault.ask(
            f"rotation of {self._mount}/keys/{name}",
            lambda client: client.secrets.transit.rotate_key(name, mount_point=self._mount),
        )


class TransitHalf:
    """One version of a transit key."""

    remote = True

    def __init__(
        self, transit: Transit, name: str, version: int, public: EllipticCurvePublicKey
    ) -> None:
        self._transit = transit
        self._name = name
        self._version = version
        self._public = public

    def sign(self, message: bytes) -> bytes:
        """Return the ES256 signature of `message`, verified; raises SigningUnavailable."""
        digest = hashlib.sha256(message).digest()
        signature = self._transit.sign(self._name, self._version, digest)
        if not _ES256.verify(message, self._public, signature):
            reference = f"{self._name}:{self._version}"
            event(log, "signature_not_ours", level=logging.ERROR, reference=reference)
            raise SigningUnavailable("the vault signed with another key than it was asked to")
        return signature


class _Gate:
    """Lets everybody ask a vault that signs with a key, and one at a time one that did not.

    The broker has a handful of threads, which also carry revocations: a vault that hangs may hold
    one of them for each key, not all of them again and again.
    """

    def __init__(self, reference: str, monotonic: Callable[[], float]) -> None:
        self._reference = reference
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._closed_until: float | None = None  # None while the vault answers

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Ask inside; raises SigningUnavailable for VaultError, and while nobody may ask."""
        with self._lock:
            if self._closed_until is not None:
                if self._monotonic() < self._closed_until:
                    raise SigningUnavailable("the vault that signs does not answer")
                self._closed_until = self._monotonic() + _PROBE_SECONDS
        try:
            yield
        except VaultError as error:
            self._close(str(error))
            raise SigningUnavailable("the vault that signs does not answer") from None
        with self._lock:
            was_closed, self._closed_until = self._closed_until is not None, None
        if was_closed:
            event(log, "signing_vault_back", reference=self._reference)

    def _close(self, reason: str) -> None:
        with self._lock:
            was_closed = self._closed_until is not None
            self._closed_until = self._monotonic() + PAUSE_SECONDS
        if not was_closed:
            event(
                log,
                "signing_vault_away",
                level=logging.ERROR,
                reference=self._reference,
                reason=reason,
            )


def _data(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    data = answer.get("data")
    return data if isinstance(data, dict) else {}
