"""One act of an admin, orchestrator or sandbox: who, when, and in which write transaction.

Everything that changes state below the routes is handed an `Act`, so that what is done and what is
told about it share one transaction, one moment and one actor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from daypass_broker import audit, db
from daypass_broker.audit import AuditTag

if TYPE_CHECKING:
    from collections.abc import Iterator

SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Act:
    """`at` is the store's clock in epoch milliseconds, read after the first lock was taken."""

    conn: sa.Connection
    actor: str
    at: int
    new_id: Callable[[str], str]
    request_id: str | None = None

    @property
    def second(self) -> int:
        """The act's moment in epoch seconds, as JWT claims count."""
        return self.at // 1000

    def tell(
        self,
        tag: AuditTag,
        *,
        tenant: str | None = None,
        sandbox: str | None = None,
        subject: str | None = None,
        detail: Mapping[str, object] | None = None,
    ) -> None:
        """Append an audit event of this act."""
        audit.append(
            self.conn,
            tag,
            self.actor,
            at=self.at,
            tenant=tenant,
            sandbox=sandbox,
            subject=subject,
            detail=detail,
            request_id=self.request_id,
        )


@contextmanager
def acting(
    engine: sa.Engine,
    actor: str,
    new_id: Callable[[str], str],
    *,
    lock: Callable[[sa.Connection], object] | None = None,
    request_id: str | None = None,
) -> Iterator[Act]:
    """Open the write transaction of one act; `lock` is taken before the clock is read.

    Raises StoreUnavailable.
    """
    with db.begin(engine) as conn:
        if lock is not None:
            lock(conn)
        yield Act(conn, actor, db.now_ms(conn), new_id, request_id)
