"""Private halves in files: `<purpose>-<kid>.pem` in one directory that all brokers share.

The default store of `keys`. A file is its owner's alone, and what it holds is checked against its
name, so a file that was exchanged or restored wrongly is told at the start and never signs.
"""

from __future__ import annotations

from pathlib import Path

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from daypass_broker import files
from daypass_broker.keys import KeyRingError, NewKey, Purpose, SigningKey
from daypass_core.jwks import thumbprint

NAME = "file"
_ES256 = jwt.get_algorithm_by_name("ES256")


class FileHalf:
    """A private key in memory."""

    remote = False

    def __init__(self, private: ec.EllipticCurvePrivateKey) -> None:
        self.private = private

    def sign(self, message: bytes) -> bytes:
        """Return the ES256 signature of `message`."""
        signature: bytes = _ES256.sign(message, self.private)
        return signature


class KeyFiles:
    """The keys of one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def make(self, purpose: Purpose, known: frozenset[str]) -> NewKey:
        """Make a key and write its file, before anybody can know of it.

        A file without a row is litter, a row without a file would be an outage.
        """
        private = ec.generate_private_key(ec.SECP256R1())
        kid = thumbprint(private.public_key())
        pem = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        try:
            files.make_private_dir(self._directory)
            files.write_private(self._path(purpose, kid), pem)
        except OSError as error:
            raise self._unusable(error) from error
        return NewKey(kid, private.public_key())

    def load(
        self,
        purpose: Purpose,
        kid: str,
        reference: str | None,
        public: ec.EllipticCurvePublicKey,
    ) -> SigningKey:
        """Read a key's file."""
        path = self._path(purpose, kid)
        try:
            if not files.is_private(path):
                raise KeyRingError(f"{path} is readable by others: run chmod 600 on it")
            private = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except FileNotFoundError:
            raise KeyRingError(
                f"the {purpose} key is not in {path}: copy it from the keys directory it was made"
                " in; all brokers of one database share one keys directory, or keep their keys in"
                " a vault (DAYPASS_SIGNING=transit); if it is lost, run"
                " python -m daypass_broker keys replace"
            ) from None
        except OSError as error:
            raise KeyRingError(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, TypeError):
            raise KeyRingError(f"{path} is not a private key in PEM: restore it") from None
        if (
            not isinstance(private, ec.EllipticCurvePrivateKey)
            or thumbprint(private.public_key()) != kid
        ):
            raise KeyRingError(f"{path} holds another key than its name says: restore it")
        return SigningKey(kid, purpose, FileHalf(private))

    def discard(self, purpose: Purpose, kid: str) -> None:
        """Remove a key's file."""
        try:
            self._path(purpose, kid).unlink(missing_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def _path(self, purpose: Purpose, kid: str) -> Path:
        return self._directory / f"{purpose}-{kid}.pem"

    def _unusable(self, error: OSError) -> KeyRingError:
        return KeyRingError(f"cannot use keys directory {self._directory}: {error.strerror}")
