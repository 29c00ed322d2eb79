"""When keys change: prepared, active, retired; planned from rows and the store's time alone.

A prepared key is published before it signs, so that whoever verifies knows it already; one that is
retired stays published until the last thing it signed has expired. `key_ring` asks what is `due`
each second and carries it out under the version row's lock, so that several brokers on one database
do each step once. A revoked key is retired at once and replaced with the shortest notice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from daypass_broker import db, schema
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_broker.keys import NewKey, Purpose
from daypass_core.claims import MAX_ACCESS_LIFE
from daypass_core.jwks import to_jwk

NOTICE_MS = 600_000
"""How long a key is published before it signs: whoever obeys max-age (300 s) knows it by then."""
SHORT_NOTICE_MS = 5_000
"""The same at once: our proxies look when they meet an unknown key, our brokers each second."""
MAX_KEYS = 16
"""So many keys of one purpose may be known to verifiers before a rotation is refused."""
_MARGIN_MS = 300_000  # leeway of verifiers, and brokers that learn of a rotation late
_SANDBOX_LIFE_MS = 86_400_000  # the longest a policy may allow: launch and renewal end with it
_SIGNED_FOR_MS = {
    Purpose.ACCESS: MAX_ACCESS_LIFE * 1000,
    Purpose.LAUNCH: _SANDBOX_LIFE_MS,
    Purpose.RENEWAL: _SANDBOX_LIFE_MS,
}

Rows = Sequence[sa.Row[Any]]


class Kind(StrEnum):
    """What can happen to a key."""

    MAKE = "make"
    ACTIVATE = "activate"
    RETIRE = "retire"


@dataclass(frozen=True, slots=True)
class Step:
    """One change that is due: `kid` for a key there is, `usable_at` (ms) for one to be made.

    `replaces` is the active key that is retired when another one begins to sign.
    """

    kind: Kind
    purpose: Purpose
    kid: str = ""
    usable_at: int = 0
    replaces: str | None = None


def read(conn: sa.Connection) -> tuple[Rows, frozenset[str]]:
    """Return the rows of all keys, oldest first, and the kids that are revoked."""
    table, ended = schema.signing_key, schema.revocation.c
    rows = conn.execute(sa.select(table).order_by(table.c.created_at, table.c.usable_at)).all()
    named = conn.execute(sa.select(ended.ident).where(ended.scope == "kid"))
    return rows, frozenset(named.scalars())


def due(rows: Rows, revoked: Collection[str], now: int, life: int | None) -> list[Step]:
    """Return what is to be done at `now`, in order.

    `now` and `life` are milliseconds; an active key older than `life` gets a successor, None: never
    by itself.
    """
    steps = list[Step]()
    for purpose in Purpose:
        mine = [row for row in rows if row.purpose == purpose]
        steps += _due_for(purpose, mine, revoked, now, life)
    return steps


def _due_for(
    purpose: Purpose, mine: Rows, revoked: Collection[str], now: int, life: int | None
) -> Iterator[Step]:
    left = list[sa.Row[Any]]()
    for row in mine:
        if row.state != "retired" and row.kid in revoked:
            yield Step(Kind.RETIRE, purpose, row.kid)
        elif row.state != "retired":
            left.append(row)
    active = next((row for row in left if row.state == "active"), None)
    prepared = next_key(left)
    if prepared is not None and now >= _usable_at(prepared, alone=active is None):
        replaces = None if active is None else active.kid
        yield Step(Kind.ACTIVATE, purpose, prepared.kid, replaces=replaces)
    elif active is None and prepared is None:
        # With the very first key nobody can know an older set.
        yield Step(Kind.MAKE, purpose, usable_at=now + SHORT_NOTICE_MS if mine else now)
    elif active is not None and prepared is None and _is_old(active, now, life):
        yield Step(Kind.MAKE, purpose, usable_at=now + NOTICE_MS)


def _is_old(active: sa.Row[Any], now: int, life: int | None) -> bool:
    return life is not None and now >= active.activated_at + life


def next_key(rows: Rows) -> sa.Row[Any] | None:
    """Return the prepared key among these that will sign first, None without one."""
    prepared = [row for row in rows if row.state == "prepared"]
    return min(prepared, key=lambda row: (row.usable_at, row.kid), default=None)


def _usable_at(prepared: sa.Row[Any], *, alone: bool) -> int:
    """Return from when a prepared key may sign; without an active key the shortest notice does."""
    usable_at = int(prepared.usable_at)
    return min(usable_at, int(prepared.created_at) + SHORT_NOTICE_MS) if alone else usable_at


def carry_out(act: Act, steps: Sequence[Step], made: Mapping[Purpose, NewKey], store: str) -> None:
    """Write steps that are due; the caller holds the version row's lock and looked under it.

    `made` are the keys that lie in `store` already; what is to be made and is not among them waits.
    """
    for step in steps:
        if step.kind is Kind.RETIRE:
            retire(act, step.purpose, step.kid)
        elif step.kind is Kind.ACTIVATE:
            if step.replaces is not None:
                retire(act, step.purpose, step.replaces)
            _change(act, step.kid, state="active", activated_at=act.at)
            _tell(act, AuditTag.KEY_ACTIVATED, step.purpose, step.kid)
        elif step.purpose in made:
            record(act, step.purpose, made[step.purpose], step.usable_at, store)


def record(act: Act, purpose: Purpose, key: NewKey, usable_at: int, store: str) -> None:
    """Put a key on record that was just made: active at once, or prepared until `usable_at`."""
    at_once = usable_at <= act.at
    act.conn.execute(
        sa.insert(schema.signing_key).values(
            kid=key.kid,
            purpose=purpose.value,
            state="active" if at_once else "prepared",
            public_jwk=db.to_json(to_jwk(key.public)),
            created_at=act.at,
            activated_at=act.at if at_once else None,
            usable_at=usable_at,
            store=store,
            reference=key.reference,
        )
    )
    tag = AuditTag.KEY_ACTIVATED if at_once else AuditTag.KEY_PREPARED
    _tell(act, tag, purpose, key.kid, store=store, usable_at=usable_at // 1000)


def hasten(act: Act, row: sa.Row[Any]) -> None:
    """Let a prepared key sign as soon as the shortest notice allows."""
    usable_at = max(act.at, int(row.created_at) + SHORT_NOTICE_MS)
    if usable_at < row.usable_at:
        _change(act, row.kid, usable_at=usable_at)
        purpose = Purpose(row.purpose)
        _tell(act, AuditTag.KEY_PREPARED, purpose, row.kid, usable_at=usable_at // 1000)


def verifies_until(row: sa.Row[Any]) -> int | None:
    """Return until when (ms) a key must be known to verifiers; None while it is not retired."""
    if row.retired_at is None:
        return None
    return int(row.retired_at) + _SIGNED_FOR_MS[Purpose(row.purpose)] + _MARGIN_MS


def verifying(rows: Rows, now: int) -> list[sa.Row[Any]]:
    """Return the rows of keys that verifiers must know at `now` (ms)."""
    return [row for row in rows if (until := verifies_until(row)) is None or now < until]


def retire(act: Act, purpose: Purpose, kid: str) -> None:
    """Take a key out of use; the row stays: while it is known its revocation is never pruned."""
    _change(act, kid, state="retired", retired_at=act.at)
    _tell(act, AuditTag.KEY_RETIRED, purpose, kid)


def _change(act: Act, kid: str, **values: object) -> None:
    table = schema.signing_key
    act.conn.execute(sa.update(table).where(table.c.kid == kid).values(**values))


def _tell(act: Act, tag: AuditTag, purpose: Purpose, kid: str, **more: object) -> None:
    act.tell(tag, subject=kid, detail={"purpose": purpose.value, **more})
