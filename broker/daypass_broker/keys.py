"""The key ring: one active signing key per purpose, private halves in files, public ones in SQL.

Access tokens, launch credentials and renewal generations have a key each, so none of the three can
pass for another whatever else goes wrong (RFC 8725 §3.9). Keys are made at the first start, under
the store's write lock, so that brokers starting together agree on one set. A key that was revoked
is replaced at the next start; what it signed stays dead, launch credentials included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import sqlalchemy as sa
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from daypass_broker import db, files, revocation, schema
from daypass_broker.act import SYSTEM, Act, acting
from daypass_broker.audit import AuditTag
from daypass_core.jwks import PublicKeys, parse_jwks, thumbprint, to_jwk


class Purpose(StrEnum):
    """What a key signs; never more than one kind of JWT."""

    ACCESS = "access"
    LAUNCH = "launch"
    RENEWAL = "renewal"


class KeyRingError(Exception):
    """A signing key cannot be used; the message names the file and what to do, never content."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One private key and its RFC 7638 thumbprint."""

    kid: str
    purpose: Purpose
    private: ec.EllipticCurvePrivateKey = field(repr=False)


class KeyRing:
    """The keys of one installation, as they were when it was loaded."""

    def __init__(
        self, active: Mapping[Purpose, SigningKey], public: Mapping[Purpose, PublicKeys]
    ) -> None:
        self._active = dict(active)
        self._public = dict(public)

    @classmethod
    def load(cls, engine: sa.Engine, keys_dir: Path, new_id: Callable[[str], str]) -> KeyRing:
        """Read the ring, making the keys that do not exist yet or were revoked.

        Raises KeyRingError when a private key is missing, readable by others or not the one the
        store knows, and db.StoreUnavailable.
        """
        try:
            files.make_private_dir(keys_dir)
            # On Postgres the one row every revocation locks serves as the lock here too; it must
            # come before the look, or two brokers would both find nothing.
            with acting(engine, SYSTEM, new_id, lock=revocation.lock_version) as act:
                _retire_revoked(act)
                for purpose in Purpose:
                    _ensure_active(act, keys_dir, purpose)
                rows = act.conn.execute(sa.select(schema.signing_key)).all()
        except OSError as error:
            raise KeyRingError(f"cannot use keys directory {keys_dir}: {error.strerror}") from error
        active = {
            Purpose(row.purpose): _read_private(keys_dir, Purpose(row.purpose), row.kid)
            for row in rows
            if row.state == "active"
        }
        public = {
            purpose: parse_jwks(_key_set([row for row in rows if row.purpose == purpose]))
            for purpose in Purpose
        }
        return cls(active, public)

    def active(self, purpose: Purpose) -> SigningKey:
        """Return the key that signs for `purpose` now."""
        return self._active[purpose]

    def public(self, purpose: Purpose) -> PublicKeys:
        """Return the keys that verify for `purpose`, retired ones included."""
        return self._public[purpose]

    def jwks(self) -> dict[str, object]:
        """Return the published key set (RFC 7517): access keys only, in one order everywhere."""
        access = self._public[Purpose.ACCESS]
        return {"keys": [to_jwk(access[kid]) for kid in sorted(access)]}


def _retire_revoked(act: Act) -> None:
    """Take active keys that a revocation names out of use, or nothing could be issued ever again.

    The row stays: while the key is known its revocation is never pruned.
    """
    table, ended = schema.signing_key, schema.revocation.c
    named = sa.select(ended.ident).where(ended.scope == "kid")
    revoked = (table.c.state == "active") & table.c.kid.in_(named)
    for row in act.conn.execute(sa.select(table.c.kid, table.c.purpose).where(revoked)).all():
        act.conn.execute(
            sa.update(table)
            .where(table.c.kid == row.kid)
            .values(state="retired", retired_at=act.at)
        )
        act.tell(AuditTag.KEY_RETIRED, subject=row.kid, detail={"purpose": row.purpose})


def _ensure_active(act: Act, keys_dir: Path, purpose: Purpose) -> None:
    table = schema.signing_key
    query = sa.select(table.c.kid).where(table.c.purpose == purpose, table.c.state == "active")
    if act.conn.execute(query).first() is not None:
        return
    private = ec.generate_private_key(ec.SECP256R1())
    kid = thumbprint(private.public_key())
    # File first: a file without a row is litter, a row without a file would be an outage.
    pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    files.write_private(_path(keys_dir, purpose, kid), pem)
    act.conn.execute(
        sa.insert(table).values(
            kid=kid,
            purpose=purpose.value,
            state="active",
            public_jwk=db.to_json(to_jwk(private.public_key())),
            created_at=act.at,
            activated_at=act.at,
        )
    )
    act.tell(AuditTag.KEY_ACTIVATED, subject=kid, detail={"purpose": purpose.value})


def _path(keys_dir: Path, purpose: Purpose, kid: str) -> Path:
    return keys_dir / f"{purpose}-{kid}.pem"


def _key_set(rows: list[sa.Row[tuple[object, ...]]]) -> dict[str, object]:
    return {"keys": [json.loads(row.public_jwk) for row in rows]}


def _read_private(keys_dir: Path, purpose: Purpose, kid: str) -> SigningKey:
    path = _path(keys_dir, purpose, kid)
    try:
        if not files.is_private(path):
            raise KeyRingError(f"{path} is readable by others: run chmod 600 on it")
        private = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise KeyRingError(
            f"the active {purpose} key is not in {path}: copy it from the keys directory it was"
            " made in; all brokers of one database share one keys directory"
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
    return SigningKey(kid, purpose, private)
