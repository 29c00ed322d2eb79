"""Accounts as the broker sees them: it writes what they may, and reads what they did.

A sandbox's account has its tenant's as parent, and every call is booked in both. The counters are
the ledger's: nothing here ever writes one, so a limit may be changed while calls are in flight, and
the next call meets it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from daypass_broker import db, limits, schema, times
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_broker.credential import Principal
from daypass_broker.limits import Key, Limits, Value
from daypass_broker.policy import Tenant
from daypass_core.claims import account_id, grant_account_id
from daypass_core.problem import Code, refuse

_MINUTE_MS = 60_000


def tenant_id(tenant: str) -> str:
    """Return the id of a tenant's account, the parent of its sandboxes' accounts."""
    return f"tenant:{tenant}"


def make(act: Act, sandbox: str, tenant: Tenant, given: Limits) -> None:
    """Write the account of a new sandbox."""
    ident = account_id(sandbox)
    _insert(act, ident, "sandbox", tenant.name, sandbox, tenant.time_zone, given)


def make_child(act: Act, grant: str, buyer: sa.Row[Any], given: Limits) -> None:
    """Write the account of a grant bought by another, whose account is its parent.

    A ceiling among the limits is a slice, which the caller sets aside in the buyer's account.
    """
    act.conn.execute(
        sa.insert(schema.account).values(
            id=grant_account_id(grant),
            kind="grant",
            tenant=buyer.tenant,
            sandbox=buyer.sandbox,
            parent=buyer.id,
            time_zone=buyer.time_zone,
            sliced=0 if given.ceiling_nano is None else 1,
            updated_at=act.at,
            **given.columns(),
        )
    )


def put_tenants(act: Act, tenants: Sequence[Tenant]) -> None:
    """Bring the accounts of tenants to what the policy says, and those below to their time zones.

    Locks accounts in the order of their ids, as the ledger does.
    """
    table = schema.account.c
    by_zone: dict[str, list[str]] = {}
    for one in tenants:
        by_zone.setdefault(one.time_zone, []).append(one.name)
    # A condition for each zone and not for each tenant: SQLite takes no thousand of them.
    moved = [table.tenant.in_(names) & (table.time_zone != zone) for zone, names in by_zone.items()]
    own = table.id.in_([tenant_id(one.name) for one in tenants])
    query = sa.select(table.id).where(sa.or_(own, *moved)).order_by(table.id).with_for_update()
    known = set(act.conn.execute(query).scalars())
    for one in tenants:
        ident = tenant_id(one.name)
        if ident in known:
            _update(act, table.id == ident, **one.limits.columns())
        else:
            _insert(act, ident, "tenant", one.name, None, one.time_zone, one.limits)
    for (zone, _), is_moved in zip(by_zone.items(), moved, strict=True):
        _update(act, is_moved, time_zone=zone)


def change(
    act: Act, principal: Principal, sandbox: sa.Row[Any], wanted: Mapping[str, Value | None]
) -> None:
    """Write limits of a live sandbox's account, by column; None takes a limit away.

    Raises Refusal (forbidden) naming a limit of which somebody who is no admin wants more than
    there is.
    """
    ident = account_id(sandbox.id)
    own = load(act.conn, ident)
    before = own.columns()
    after = {name: value for name, value in wanted.items() if before[name] != value}
    if not principal.is_admin:
        _check_less(own.below(terms(act.conn, sandbox.id, sandbox.tenant)), after)
    if after:
        _update(act, schema.account.c.id == ident, **after)
        told = {"before": {name: before[name] for name in after}, "after": after}
        act.tell(
            AuditTag.SANDBOX_LIMITED,
            tenant=sandbox.tenant,
            sandbox=sandbox.id,
            subject=sandbox.id,
            detail=told,
        )


def load(conn: sa.Connection, account: str) -> Limits:
    """Return the limits of an account, none at all when there is no such account."""
    columns = [schema.account.c[name] for name in limits.UNLIMITED.columns()]
    row = conn.execute(sa.select(*columns).where(schema.account.c.id == account)).first()
    return limits.UNLIMITED if row is None else Limits(**row._mapping)


def terms(conn: sa.Connection, sandbox: str, tenant: str) -> Limits:
    """Return how the calls of a sandbox are held: as its account says, its tenant's, or usually."""
    own, parent = load(conn, account_id(sandbox)), load(conn, tenant_id(tenant))
    return limits.terms(own.below(parent).below(limits.USUAL))


def most(rows: Sequence[sa.Row[Any]]) -> Limits:
    """Return the most that one bought from the first of these accounts may have of each limit.

    `rows` are an account and its parents; what one does not limit, the next one may.
    """
    found = limits.UNLIMITED
    for row in rows:
        found = found.below(Limits(**{name: row._mapping[name] for name in found.columns()}))
    return found.below(limits.USUAL)


def states(conn: sa.Connection, account: str) -> dict[str, dict[str, object]]:
    """Return every limit of an account as it stands, by its name in the policy document."""
    table, now = schema.account, db.now_ms(conn)
    row = conn.execute(sa.select(table).where(table.c.id == account)).first()
    return {} if row is None else figures(row, now)


def figures(row: sa.Row[Any], now: int) -> dict[str, dict[str, object]]:
    """Say what is used, held and left of each limit of an account's row; `now` in milliseconds."""
    found: dict[str, dict[str, object]] = {}
    for key in limits.KEYS:
        limit = getattr(row, key.column)
        if limit is not None and key.column in _TAKEN:
            found[key.name] = _state(key, limit, _TAKEN[key.column](row, now))
    return found


def _check_less(most: Limits, wanted: Mapping[str, Value | None]) -> None:
    for key in limits.KEYS:
        limit = getattr(most, key.column)
        if key.column in wanted and not key.allows(limit, wanted[key.column]):
            raise refuse(
                Code.FORBIDDEN,
                f"{key.name}: {key.bound(limit)}; raising a limit is for admins only",
                field=key.name,
            )


@dataclass(frozen=True, slots=True)
class _Taken:
    """What is taken of one limit; `resets_at` in epoch milliseconds."""

    used: int
    held: int = 0
    resets_at: int | None = None


def _state(key: Key, limit: int, taken: _Taken) -> dict[str, object]:
    # A part of a second counts whole: at the moment that is told, it is free again.
    resets_at = (
        None if taken.resets_at is None else times.format_second(-(-taken.resets_at // 1000))
    )
    return {
        "limit": key.shown(limit),
        "used": key.shown(taken.used),
        "held": key.shown(taken.held),
        "left": key.shown(max(limit - taken.used - taken.held, 0)),
        "resets_at": resets_at,
    }


def _window(row: sa.Row[Any], now: int, name: str) -> _Taken:
    """A window that is over counts for nothing, though nobody has closed it yet."""
    until = getattr(row, f"{name}_until")
    if now >= until:
        return _Taken(0, row.reserved_nano)
    return _Taken(getattr(row, f"{name}_spent_nano"), row.reserved_nano, until)


def _minute(row: sa.Row[Any], now: int, column: int, held: int) -> _Taken:
    slices = [each for each in db.from_json(row.minute) if each[0] > now - _MINUTE_MS]
    resets_at = min((each[0] for each in slices), default=None)
    used = sum(each[column] for each in slices)
    return _Taken(used, held, None if resets_at is None else resets_at + _MINUTE_MS)


_TAKEN: dict[str, Callable[[sa.Row[Any], int], _Taken]] = {
    "ceiling_nano": lambda row, _: _Taken(
        row.spent_nano, row.reserved_nano + row.lent_nano - row.lent_used_nano
    ),
    "day_ceiling_nano": lambda row, now: _window(row, now, "day"),
    "month_ceiling_nano": lambda row, now: _window(row, now, "month"),
    "token_ceiling": lambda row, _: _Taken(row.tokens_spent, row.tokens_reserved),
    "rpm_limit": lambda row, now: _minute(row, now, 1, 0),
    "tpm_limit": lambda row, now: _minute(row, now, 2, row.tokens_reserved),
    "concurrency_limit": lambda row, _: _Taken(0, row.open_calls),
}


def _insert(
    act: Act,
    ident: str,
    kind: str,
    tenant: str,
    sandbox: str | None,
    time_zone: str,
    given: Limits,
) -> None:
    act.conn.execute(
        sa.insert(schema.account).values(
            id=ident,
            kind=kind,
            tenant=tenant,
            sandbox=sandbox,
            parent=tenant_id(tenant) if kind == "sandbox" else None,
            time_zone=time_zone,
            updated_at=act.at,
            **given.columns(),
        )
    )


def _update(act: Act, which: sa.ColumnElement[bool], **values: object) -> None:
    table = schema.account
    act.conn.execute(sa.update(table).where(which).values(**values, updated_at=act.at))
