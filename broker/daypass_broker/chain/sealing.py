"""Makes the heads of the hash chain: one a minute, if there is anything new, by one broker.

Every broker runs this; `previous` is unique in the table, so the chain cannot fork, and the broker
that comes second finds its head refused and nothing to do. Nothing is ever locked: `_settled` finds
a number up to which none can appear any more, by waiting for those who are appending.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from daypass_broker import db, schema
from daypass_broker.chain.links import FIELDS, GENESIS, Head, Running, Signed
from daypass_broker.keys import SigningUnavailable
from daypass_broker.services import Services
from daypass_core.log import event, get_logger

log = get_logger(__name__)

SEAL_SECONDS = 60.0
_FRESH_MS = 30_000
"""A head this young was made by another broker, which makes the next one too."""
PORTION = 5_000
"""Events of one head at most: what has piled up gets several."""
WAIT_SECONDS = 2.0
"""How long those who are appending are waited for; they do not notice."""
_POLL_SECONDS = 0.05

# Who appends has locked the table as every INSERT does before he gets a number, and keeps that lock
# until his transaction ends. Each of those who hold it, by the id of his transaction.
_APPENDING = sa.text(
    "SELECT DISTINCT virtualtransaction FROM pg_locks"
    " WHERE locktype = 'relation' AND relation = 'audit'::regclass AND mode = 'RowExclusiveLock'"
    " AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def seal(services: Services) -> int:
    """Make the heads that are due; return how many events they cover.

    Raises StoreUnavailable. What cannot be signed now is covered by the next head that can be.
    """
    with db.read(services.engine) as conn:
        last, now = _last(conn), services.now_ms(conn)
    if last is not None and now - _FRESH_MS < last.at <= now:
        return 0
    settled = _settled(services.engine)
    if settled is None:
        event(log, "audit_head_delayed", level=logging.WARNING, reason="events are being written")
        return 0
    covered = 0
    # What has piled up may take minutes; a broker that is to stop leaves it to others.
    while not services.ending.begun and (head := _next(services, last, settled)) is not None:
        if not _record(services, head):
            break
        covered += head.events
        last = head
    return covered


def _last(conn: sa.Connection) -> Head | None:
    table = schema.audit_head
    row = conn.execute(sa.select(table).order_by(table.c.upto.desc()).limit(1)).first()
    return None if row is None else Signed.of(row._asdict()).head


def _settled(engine: sa.Engine) -> int | None:
    """Return a number up to which no event can appear any more; None: not to be had now.

    On SQLite one transaction writes at a time, so whoever comes later gets a higher number. On
    PostgreSQL a lower one may be committed after it, by somebody who was appending when it was
    read: once all of those have ended there is none, and who comes later gets a higher number.
    """
    with db.read(engine) as conn:
        highest = int(conn.execute(sa.select(sa.func.max(schema.audit.c.seq))).scalar() or 0)
        if conn.dialect.name != "postgresql":
            return highest
        appending = set(conn.execute(_APPENDING).scalars())
    until = time.monotonic() + WAIT_SECONDS
    while appending:
        if time.monotonic() > until:
            return None
        time.sleep(_POLL_SECONDS)
        with db.read(engine) as conn:
            appending &= set(conn.execute(_APPENDING).scalars())
    return highest


def _next(services: Services, last: Head | None, settled: int) -> Head | None:
    """Return the head that follows `last`; None without an event for it."""
    table = schema.audit
    after = 0 if last is None else last.upto
    query = (
        sa.select(*(table.c[name] for name in FIELDS))
        .where(table.c.seq > after, table.c.seq <= settled)
        .order_by(table.c.seq)
        .limit(PORTION)
    )
    with db.read(services.engine) as conn:
        rows: Sequence[sa.Row[Any]] = conn.execute(query).all()
        now = services.now_ms(conn)
    if not rows:
        return None
    running = Running(GENESIS if last is None else last.hash)
    previous = running.hash
    for row in rows:
        running.add(row._asdict())
    return Head(rows[0].seq, rows[-1].seq, running.events, now, previous, running.hash)


def _record(services: Services, head: Head) -> bool:
    """Sign a head, write it and tell it; False when another broker was first, or nobody can sign.

    It is told in fields and not as a JWS: those are blotted out of the log.
    """
    try:
        kid, signature = services.signer.sign_head(head.text())
    except SigningUnavailable as unavailable:
        event(log, "audit_head_delayed", level=logging.WARNING, reason=unavailable.told)
        return False
    row: dict[str, Any] = {**head.as_dict(), "kid": kid, "signature": signature.hex()}
    with db.begin(services.engine) as conn:
        if not db.insert_once(conn, schema.audit_head, **row):
            return False
    event(log, "audit_head", **row)
    return True
