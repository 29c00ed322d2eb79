"""A broker's collaborators over a contract store, heads made with them, and hands that tamper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from daypass_broker import audit, db, schema
from daypass_broker.audit import AuditTag
from daypass_broker.chain import sealing, verify
from daypass_broker.chain.links import Signed
from daypass_broker.chain.verify import Verified
from daypass_broker.key_ring import open_ring
from daypass_broker.services import Services
from daypass_broker.settings import KeySettings
from daypass_broker.signing import Signer
from daypass_core.clock import SystemClock
from daypass_core.ids import new_id
from tests.unit.broker.desk import Store
from tests.unit.broker.rig import make_settings

MINUTE = 60_000


class Trail:
    """The trail of a store: events are written, heads made and verified; each head a minute later.

    What its own fixtures have told is in the first head.
    """

    def __init__(self, desk: Store, folder: Path) -> None:
        self.desk = desk
        self.now = 1_800_000_000_000
        keys = open_ring(desk.engine, KeySettings(directory=folder / "keys"), new_id)
        self.services = Services(
            engine=desk.engine,
            clock=SystemClock(),
            settings=make_settings(folder),
            signer=Signer(keys),
            keys=keys,
            new_id=new_id,
            now_ms=lambda _: self.now,
        )

    def write(self, count: int = 1) -> None:
        """Append events, each in a transaction of its own."""
        for _ in range(count):
            with self.desk.acting() as act:
                act.tell(AuditTag.POLICY_APPLIED, tenant="acme", detail={"created": [new_id("x")]})

    def seal(self) -> int:
        """Make the heads that are due a minute later."""
        self.now += MINUTE
        return sealing.seal(self.services)

    def verify(self, directory: Path | None = None, kept: tuple[Signed, ...] = ()) -> Verified:
        """Verify the trail."""
        return verify.verify(self.desk.engine, directory=directory, kept=kept)

    def heads(self) -> list[sa.Row[Any]]:
        """The heads in their order."""
        return self.desk.rows(schema.audit_head)

    def kept(self) -> tuple[Signed, ...]:
        """The heads as a log would have kept them."""
        return tuple(Signed.of(row._asdict()) for row in self.heads())

    def seqs(self) -> list[int]:
        """The numbers of all events."""
        return [row.seq for row in self.desk.rows(schema.audit)]

    @contextmanager
    def tampering(self) -> Iterator[sa.Connection]:
        """Write as the owner of the database, past what keeps the trail as it is."""
        with db.begin(self.desk.owner) as conn:
            if conn.dialect.name == "postgresql":
                for table in ("audit", "audit_head"):
                    conn.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            else:
                for trigger in ("audit_append_only", "audit_head_update", "audit_head_delete"):
                    conn.exec_driver_sql(f"DROP TRIGGER IF EXISTS {trigger}")
            yield conn

    def with_keys(self, folder: Path) -> Trail:
        """The same trail for somebody who puts a key of his own into the database."""
        other = object.__new__(Trail)
        other.desk, other.now = self.desk, self.now
        with self.tampering() as conn:
            conn.execute(sa.update(schema.signing_key).values(state="retired", retired_at=self.now))
        keys = open_ring(self.desk.engine, KeySettings(directory=folder), new_id)
        signer = Signer(keys)
        other.services = replace(
            self.services, keys=keys, signer=signer, now_ms=lambda _: other.now
        )
        return other


def append(conn: sa.Connection, detail: str = "{}") -> None:
    """Append an event in a transaction that goes on."""
    audit.append(conn, AuditTag.POLICY_APPLIED, "crd_x", at=1, detail={"text": detail})
