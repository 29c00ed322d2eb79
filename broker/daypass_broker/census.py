"""What stands in the database, counted every CENSUS_SECONDS for the metrics.

A task of its own and not a part of the scrape: while the database is away a scrape must still say
everything else, and it gets the figures counted last. Runs only where there is a metrics listener.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from daypass_broker import db, schema

CENSUS_SECONDS = 30.0
LIVING = ("idle", "active", "revoked")


@dataclass(frozen=True, slots=True)
class Counted:
    """The figures of one moment; money in nano-dollars, `key_since` in epoch milliseconds.

    `unsealed_ms` is the age of the oldest event that no head of the hash chain covers, or 0.
    """

    sandboxes: Mapping[str, int] = field(default_factory=dict)
    revocations: int = 0
    revocation_version: int = 0
    audit_events: int = 0
    unsealed_ms: int = 0
    held_nano: int = 0
    overdraft_nano: int = 0
    open_calls: int = 0
    key_since: Mapping[str, int] = field(default_factory=dict)


class Census:
    """Counts when told to; `latest` is None until that worked once."""

    def __init__(self, engine: sa.Engine, monotonic: Callable[[], float]) -> None:
        self._engine = engine
        self._monotonic = monotonic
        self._answered_at = monotonic()
        self.latest: Counted | None = None

    @property
    def store_age(self) -> float:
        """Seconds since the database last answered, from the start on."""
        return self._monotonic() - self._answered_at

    def answered(self) -> None:
        """Take note that the database has answered just now."""
        self._answered_at = self._monotonic()

    def count(self) -> None:
        """Count anew; raises db.StoreUnavailable."""
        with db.read(self._engine) as conn:
            self.latest = _counted(conn)
        self.answered()


def _counted(conn: sa.Connection) -> Counted:
    sandbox, revocation, account = schema.sandbox.c, schema.revocation.c, schema.account.c
    states = conn.execute(
        sa.select(sandbox.state, sa.func.count())
        .where(sandbox.state.in_(LIVING))
        .group_by(sandbox.state)
    )
    money = conn.execute(
        sa.select(
            sa.func.coalesce(sa.func.sum(account.reserved_nano), 0),
            sa.func.coalesce(sa.func.sum(account.overdraft_nano), 0),
            sa.func.coalesce(sa.func.sum(account.open_calls), 0),
        ).where(account.kind == "tenant")
    ).one()
    keys = schema.signing_key.c
    active = conn.execute(sa.select(keys.purpose, keys.activated_at).where(keys.state == "active"))
    return Counted(
        sandboxes=dict.fromkeys(LIVING, 0) | {state: int(count) for state, count in states},
        revocations=_one(conn, sa.select(sa.func.count(revocation.id))),
        revocation_version=_one(conn, sa.select(schema.revocation_version.c.version)),
        audit_events=_one(conn, sa.select(sa.func.max(schema.audit.c.seq))),
        unsealed_ms=_unsealed(conn),
        held_nano=int(money[0]),
        overdraft_nano=int(money[1]),
        open_calls=int(money[2]),
        key_since={purpose: since for purpose, since in active if since is not None},
    )


def _unsealed(conn: sa.Connection) -> int:
    event, sealed = schema.audit.c, sa.func.max(schema.audit_head.c.upto)
    upto = sa.select(sa.func.coalesce(sealed, 0)).scalar_subquery()
    oldest = sa.select(event.at).where(event.seq > upto).order_by(event.seq).limit(1)
    at = conn.execute(oldest).scalar()
    return 0 if at is None else max(0, db.now_ms(conn) - int(at))


def _one(conn: sa.Connection, query: sa.Select[Any]) -> int:
    return int(conn.execute(query).scalar_one_or_none() or 0)
