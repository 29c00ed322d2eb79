"""The broker's side of slices: a part of an account's budget set aside for one bought from it.

What is set aside is added to `lent_nano` of the lender, and the child has it as its ceiling; what
of it is used is the ledger's to count. What is left when a child is over is taken off `lent_nano`
again; what was used stays, and cancels against the lender's `lent_used_nano`. docs/money.md has the
arithmetic of both sides. Runs inside the caller's write transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from daypass_broker import schema
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_core.claims import grant_account_id
from daypass_core.verify import LEEWAY

AT_ONCE = 200
"""How many slices are given back in one transaction: the ledger waits for its locks."""


def free_nano(account: sa.Row[Any]) -> int | None:
    """Return what of an account's ceiling is neither spent, held nor set aside; None without one.

    What is used of slices was set aside already, so it is not counted twice.
    """
    if account.ceiling_nano is None:
        return None
    aside = account.lent_nano - account.lent_used_nano
    return int(account.ceiling_nano - account.spent_nano - account.reserved_nano - aside)


def set_aside(act: Act, account: sa.Row[Any], nano: int) -> None:
    """Set an amount aside in an account, whose row is locked and has so much free."""
    _update(act, account.id, lent_nano=schema.account.c.lent_nano + nano)


def give_back(act: Act, *, most: int = AT_ONCE) -> int:
    """Give back what is left of the slices of grants that are over; return how many slices.

    A grant is over when it is revoked or expired, or its sandbox is, and no call of it is open: the
    bill of an open call is paid from the slice. Nothing can be spent from it afterwards, whatever a
    proxy has not heard of yet.
    """
    grants = act.conn.execute(over(act.second).limit(most)).all()
    if not grants:
        return 0
    accounts = _lock(act, grants)
    returned = 0
    for grant in grants:
        account = accounts[grant_account_id(grant.id)]
        # Seen under the lock: another broker may have come first, or a call just before the end.
        if account.sliced and account.open_calls == 0:
            _return(act, grant, account)
            returned += 1
    return returned


def over(second: int) -> sa.Select[Any]:
    """Select the grants, with their tenant, whose slice can be given back at `second` (epoch)."""
    grant, sandbox, account = schema.grant_.c, schema.sandbox.c, schema.account.c
    # A token is taken for a moment after its end; until then its calls are answered by its budget.
    expired = grant.expires_at + LEEWAY <= second
    return (
        sa.select(schema.grant_, sandbox.tenant)
        .join(schema.sandbox, sandbox.id == grant.sandbox)
        .join(schema.account, account.id == sa.literal(grant_account_id("")) + grant.id)
        .where(
            grant.slice_nano.is_not(None),
            grant.returned_at.is_(None),
            account.open_calls == 0,
            sa.or_(expired, grant.state != "active", sandbox.state.in_(("ended", "revoked"))),
        )
        .order_by(grant.expires_at, grant.id)
    )


def _lock(act: Act, grants: Sequence[sa.Row[Any]]) -> dict[str, sa.Row[Any]]:
    """Lock the accounts of grants and of their buyers in the order of the ledger: by id."""
    table = schema.account
    own = [grant_account_id(grant.id) for grant in grants]
    lenders = sa.select(table.c.parent).where(table.c.id.in_(own))
    query = sa.select(table).where(table.c.id.in_(own) | table.c.id.in_(lenders))
    rows = act.conn.execute(query.order_by(table.c.id).with_for_update())
    return {row.id: row for row in rows}


def _return(act: Act, grant: sa.Row[Any], account: sa.Row[Any]) -> None:
    """Give one back. The child keeps as ceiling what it used, and is no slice any more.

    A bill corrected from now on is its buyer's, as if the call had come directly.
    """
    used = min(account.spent_nano + account.reserved_nano, account.ceiling_nano)
    rest = account.ceiling_nano - used
    _update(act, account.id, ceiling_nano=used, sliced=0)
    _update(act, account.parent, lent_nano=schema.account.c.lent_nano - rest)
    table = schema.grant_
    act.conn.execute(sa.update(table).where(table.c.id == grant.id).values(returned_at=act.at))
    act.tell(
        AuditTag.GRANT_RETURNED,
        tenant=grant.tenant,
        sandbox=grant.sandbox,
        subject=grant.id,
        detail={"slice_nano": grant.slice_nano, "returned_nano": rest, "to": account.parent},
    )


def _update(act: Act, account: str, **values: object) -> None:
    table = schema.account
    act.conn.execute(
        sa.update(table).where(table.c.id == account).values(**values, updated_at=act.at)
    )
