"""The key ring: which keys sign and verify now, kept in step with the store by every broker.

`app` refreshes it each second; a request never waits for that. Whoever signs, attests or publishes
asks at each use, because the answer changes: `key_rotation` says when. What is asked for comes from
one snapshot that is replaced whole.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy as sa

from daypass_broker import db, key_files, key_rotation, revocation
from daypass_broker.act import SYSTEM, Act
from daypass_broker.key_rotation import NOTICE_MS, SHORT_NOTICE_MS, Kind, Rows, Step
from daypass_broker.keys import (
    PROBE,
    KeyRingError,
    KeyStore,
    KeyStores,
    NewKey,
    Purpose,
    SigningKey,
    SigningUnavailable,
)
from daypass_core.jwks import MAX_KEYS, PublicKeys, parse_jwks, to_jwk
from daypass_core.log import event, get_logger
from daypass_core.problem import Code, refuse

if TYPE_CHECKING:
    from daypass_broker.settings import KeySettings

log = get_logger(__name__)

GRACE_MS = 120_000
"""A key that was retired still signs what was recorded with it before that was known here."""
STALE_SECONDS = 60.0
"""Nothing is signed with a ring this old: its keys may have been retired since."""
_DAY_MS = 86_400_000
_DISCARD_MS = 600_000  # then the private half of a retired key is destroyed

Opening = Callable[..., AbstractContextManager[Act]]
"""Opens the write transaction of an act: `lock` is taken before the clock is read."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The ring at one moment; `signers` holds keys only just retired too."""

    active: Mapping[Purpose, SigningKey] = field(default_factory=dict)
    signers: Mapping[str, SigningKey] = field(default_factory=dict)
    public: Mapping[Purpose, PublicKeys] = field(default_factory=dict)
    jwks: Mapping[str, object] = field(default_factory=dict)


class KeyRing:
    """The keys of one installation."""

    def __init__(
        self,
        engine: sa.Engine,
        stores: KeyStores,
        new_id: Callable[[str], str],
        *,
        make_in: str = "file",
        life_ms: int | None = None,
        now_ms: Callable[[sa.Connection], int] = db.now_ms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make_in` names the store of new keys; active ones older than `life_ms` are replaced."""
        self._engine = engine
        self._stores = stores
        self._new_id = new_id
        self._make_in = make_in
        self._life = life_ms
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._lock = threading.Lock()  # one refresh or rotation at a time
        self._now = _Snapshot()
        self._read_at = float("-inf")
        self._seen: tuple[Rows, Rows] | None = None  # what the snapshot was made of
        self._unusable: dict[str, str] = {}  # kid: why its private half cannot be used
        self._not_made = ""  # why a key that is due could not be made
        self._discarded: set[str] = set()

    @classmethod
    def load(
        cls, engine: sa.Engine, stores: KeyStores, new_id: Callable[[str], str], **more: Any
    ) -> Self:
        """Return the ring, with the keys made that do not exist yet.

        Raises KeyRingError when an active key cannot be used or a first one not be made, and
        db.StoreUnavailable.
        """
        ring = cls(engine, stores, new_id, **more)
        ring.refresh()
        for row in ring._lost():
            raise KeyRingError(ring._unusable[row.kid])
        if len(ring._now.public) < len(Purpose):
            raise KeyRingError(ring._not_made)
        return ring

    def active(self, purpose: Purpose) -> SigningKey:
        """Return the key that signs for `purpose` now; raises SigningUnavailable."""
        if self._monotonic() - self._read_at > STALE_SECONDS:
            raise SigningUnavailable("signing keys could not be read for a minute")
        key = self._now.active.get(purpose)
        if key is None:
            raise SigningUnavailable(f"no {purpose} key can sign yet")
        return key

    def signer(self, purpose: Purpose, kid: str) -> SigningKey | None:
        """Return the key `kid` while it is active or only just retired, else None."""
        key = self._now.signers.get(kid)
        return key if key is not None and key.purpose is purpose else None

    @property
    def remote(self) -> bool:
        """Whether signing may wait for another machine."""
        return any(key.half.remote for key in self._now.signers.values())

    def public(self, purpose: Purpose) -> PublicKeys:
        """Return the keys that verify for `purpose` now, prepared and retired ones included."""
        return self._now.public[purpose]

    def jwks(self) -> Mapping[str, object]:
        """Return the published key set (RFC 7517): access keys only, in one order everywhere."""
        return self._now.jwks

    def refresh(self) -> None:
        """Do what is due, then take over what the store says; blocks.

        A key that cannot be made is told in the log and tried again. Raises db.StoreUnavailable.
        """
        with self._lock:
            self._refresh()

    def rotate(self, purpose: Purpose, opening: Opening, *, at_once: bool) -> None:
        """Prepare the next key of `purpose`, or let the prepared one sign at once; blocks.

        With one prepared already and nothing to hasten it does nothing, so it may be repeated.
        Raises Refusal, KeyRingError, SigningUnavailable and db.StoreUnavailable.
        """
        with self._lock:
            made = None if self._prepared(purpose) else self._make_next(purpose)
            with opening(revocation.lock_version) as act:
                prepared = self._prepared(purpose, act.conn)
                if prepared is not None:
                    if at_once:
                        key_rotation.hasten(act, prepared)
                elif made is not None:
                    usable_at = act.at + (SHORT_NOTICE_MS if at_once else NOTICE_MS)
                    key_rotation.record(act, purpose, made, usable_at, self._make_in)
            if made is not None and prepared is not None:
                self._stores[self._make_in].discard(purpose, made.kid)
            self._refresh()

    def replace_lost(self, opening: Opening) -> list[Purpose]:
        """Retire active keys whose private halves are lost here, and make new ones; blocks.

        Returns their purposes. Raises db.StoreUnavailable.
        """
        with self._lock:
            self._refresh()
            lost = self._lost()
            with opening(revocation.lock_version) as act:
                for row in lost:
                    key_rotation.retire(act, Purpose(row.purpose), row.kid)
            self._refresh()
            return [Purpose(row.purpose) for row in lost]

    # -- all of the following with the lock held

    def _refresh(self) -> None:
        began = self._monotonic()
        with db.read(self._engine) as conn:
            rows, revoked = key_rotation.read(conn)
            now = self._now_ms(conn)
        self._take_over(rows, revoked, now)
        steps = key_rotation.due(rows, revoked, now, self._life)
        unready = self._unready(steps)
        if any(step.kid not in unready for step in steps):
            self._carry_out(steps, unready)
            self._take_over(self._rows(), revoked, now)
        self._read_at = began

    def _unready(self, steps: list[Step]) -> set[str]:
        """Return the keys that are due to sign and cannot, here and now.

        What works stays in use until they can; another broker, which can, does not wait for us.
        """
        due = [step.kid for step in steps if step.kind is Kind.ACTIVATE]
        return {kid for kid in due if not _signs(self._now.signers.get(kid))}

    def _carry_out(self, steps: list[Step], unready: Collection[str]) -> None:
        """Do what is due, as far as it is still due once the lock is held."""
        # Before the lock: a vault may be slow. A key without a row is litter, no more.
        made = self._make_due(steps)
        with db.begin(self._engine) as conn:
            # The one row that every revocation locks: it must come before the look, or two brokers
            # would both find nothing done.
            revocation.lock_version(conn)
            act = Act(conn, SYSTEM, self._now_ms(conn), self._new_id)
            rows, revoked = key_rotation.read(conn)
            due = key_rotation.due(rows, revoked, act.at, self._life)
            steps = [step for step in due if step.kid not in unready]
            key_rotation.carry_out(act, steps, made, self._make_in)
        used = {step.purpose for step in steps if step.kind is Kind.MAKE}
        for purpose in made.keys() - used:
            self._stores[self._make_in].discard(purpose, made[purpose].kid)

    def _make_due(self, steps: list[Step]) -> dict[Purpose, NewKey]:
        made, problem = dict[Purpose, NewKey](), ""
        for step in steps:
            if step.kind is Kind.MAKE:
                try:
                    made[step.purpose] = self._make(step.purpose)
                except (KeyRingError, SigningUnavailable) as error:
                    problem = str(error)
        if problem and problem != self._not_made:
            event(log, "signing_key_not_made", level=logging.ERROR, reason=problem)
        self._not_made = problem
        return made

    def _make_next(self, purpose: Purpose) -> NewKey:
        known = len(self._now.public[purpose])
        if known >= key_rotation.MAX_KEYS:
            raise refuse(
                Code.CONFLICT, f"{known} {purpose} keys are known to verifiers; wait for some to go"
            )
        return self._make(purpose)

    def _make(self, purpose: Purpose) -> NewKey:
        store = self._stores.get(self._make_in)
        if store is None:
            raise KeyRingError(f"no settings say where keys of store {self._make_in} lie")
        return store.make(purpose, frozenset(row.kid for row in self._rows()))

    def _rows(self) -> Rows:
        with db.read(self._engine) as conn:
            return key_rotation.read(conn)[0]

    def _lost(self) -> list[sa.Row[Any]]:
        rows = self._rows()
        return [row for row in rows if row.state == "active" and row.kid in self._unusable]

    def _prepared(self, purpose: Purpose, conn: sa.Connection | None = None) -> sa.Row[Any] | None:
        """Return the next key of a purpose, by a look of its own unless `conn` is given."""
        if conn is None:
            with db.read(self._engine) as reading:
                return self._prepared(purpose, reading)
        rows, revoked = key_rotation.read(conn)
        return key_rotation.next_key([row for row in _of(purpose, rows) if row.kid not in revoked])

    def _take_over(self, rows: Rows, revoked: Collection[str], now: int) -> None:
        known = key_rotation.verifying(rows, now)
        signing = [
            row
            for row in known
            if row.kid not in revoked and (row.retired_at or now) + GRACE_MS > now
        ]
        if (known, signing) != self._seen or self._unusable:
            self._now = self._snapshot(known, signing)
            self._seen = (known, signing)
        self._discard_retired(rows, now)

    def _snapshot(self, known: Rows, signing: Rows) -> _Snapshot:
        public = {
            purpose: parse_jwks(_key_set(mine))
            for purpose in Purpose
            if (mine := _of(purpose, known))
        }
        self._unusable = {kid: why for kid, why in self._unusable.items() if kid in _kids(signing)}
        signers = dict[str, SigningKey]()
        for row in signing:
            if row.kid not in public[Purpose(row.purpose)]:
                continue  # nobody could verify it
            key = self._signer_of(row, public[Purpose(row.purpose)])
            if key is not None:
                signers[row.kid] = key
        active = {
            signers[row.kid].purpose: signers[row.kid]
            for row in signing
            if row.state == "active" and row.kid in signers
        }
        access = sorted(public.get(Purpose.ACCESS, PublicKeys({})).items())
        jwks = {"keys": [to_jwk(key) for _, key in access]}
        return _Snapshot(active, signers, public, jwks)

    def _signer_of(self, row: sa.Row[Any], public: PublicKeys) -> SigningKey | None:
        """Return a key that can sign; None, and one line in the log, when it cannot be used."""
        key = self._now.signers.get(row.kid)
        if key is not None:
            return key
        try:
            store = self._stores.get(row.store)
            if store is None:
                raise KeyRingError(
                    f"{row.purpose} key {row.kid} lies in store {row.store}, of which no settings"
                    " speak: give all brokers the same ones"
                )
            key = store.load(Purpose(row.purpose), row.kid, row.reference, public[row.kid])
        except KeyRingError as error:
            if row.state != "retired" and row.kid not in self._unusable:
                event(
                    log,
                    "signing_key_unusable",
                    level=logging.ERROR,
                    kid=row.kid,
                    state=row.state,
                    reason=str(error),
                )
            self._unusable[row.kid] = str(error)
            return None
        self._unusable.pop(row.kid, None)
        return key

    def _discard_retired(self, rows: Rows, now: int) -> None:
        for row in rows:
            gone = row.retired_at is not None and now >= row.retired_at + _DISCARD_MS
            store = self._stores.get(row.store)
            if not gone or store is None or row.kid in self._discarded:
                continue
            self._discarded.add(row.kid)
            try:
                store.discard(Purpose(row.purpose), row.kid)
            except KeyRingError as error:
                # Its directory may be read-only; that must not end signing.
                reason = str(error)
                event(log, "signing_key_kept", level=logging.WARNING, kid=row.kid, reason=reason)


def _signs(key: SigningKey | None) -> bool:
    if key is None:
        return False
    try:
        key.half.sign(PROBE)
    except SigningUnavailable:
        return False
    return True


def open_ring(engine: sa.Engine, settings: KeySettings, new_id: Callable[[str], str]) -> KeyRing:
    """Return the ring that the settings speak of; raises what `KeyRing.load` does."""
    return KeyRing.load(engine, open_stores(settings), new_id, **options(settings))


def options(settings: KeySettings) -> dict[str, Any]:
    """Return how the ring of these settings makes keys."""
    life_ms = settings.days * _DAY_MS if settings.days else None
    return {"make_in": settings.store, "life_ms": life_ms}


def open_stores(settings: KeySettings) -> KeyStores:
    """Return the places that may hold private halves; new keys are made in one of them."""
    stores = dict[str, KeyStore]()
    if settings.directory is not None:
        stores[key_files.NAME] = key_files.KeyFiles(settings.directory)
    if settings.vault is not None:
        # Imported here alone: its client is large, and most installations have no vault.
        from daypass_broker import transit
        from daypass_core.vault import Vault

        vault = Vault(settings.vault)
        stores[transit.NAME] = transit.Transit(vault, settings.transit_mount, settings.transit_key)
    return stores


def _of(purpose: Purpose, rows: Rows) -> list[sa.Row[Any]]:
    return [row for row in rows if row.purpose == purpose]


def _kids(rows: Rows) -> set[str]:
    return {row.kid for row in rows}


def _key_set(rows: Rows) -> dict[str, object]:
    """Return rows as a key set; of too many those that were retired first are left out."""
    by_end = sorted(rows, key=lambda row: (row.retired_at is None, row.retired_at))
    return {"keys": [json.loads(row.public_jwk) for row in by_end[-MAX_KEYS:]]}
