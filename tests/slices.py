"""What the broker does to accounts when a slice is bought or given back, in its simplest form.

It is the arithmetic of docs/money.md on two records that are locked: the ledger's tests play the
broker with it, and the broker's own is measured against it.
"""

from __future__ import annotations

from daypass_proxy.ledger.account import Account
from tests.accounts import account


def room(buyer: Account) -> int:
    """Return the largest slice that the account can set aside; none without its own budget."""
    if buyer.ceiling_nano is None:
        return 0
    set_aside = buyer.lent_nano - buyer.lent_used_nano
    return buyer.ceiling_nano - buyer.spent_nano - buyer.reserved_nano - set_aside


def buy(buyer: Account, child: str, nano: int) -> Account | None:
    """Set a slice aside and return the account it is for; None where there is no room for it."""
    if nano > room(buyer):
        return None
    buyer.lent_nano += nano
    return account(child, parent=buyer.id, ceiling_nano=nano, sliced=1)


def left(child: Account) -> int:
    """Return what neither is spent nor held of the slice that the account is for."""
    slice_nano = child.ceiling_nano if child.sliced and child.ceiling_nano is not None else 0
    return max(slice_nano - child.spent_nano - child.reserved_nano, 0)


def give_back(child: Account, buyer: Account) -> int:
    """Give back what is left of a slice, once, and return it; calls may still be open.

    The broker waits until none is, and makes what was used the child's ceiling, so that it is
    closed. The ledger needs neither: here it has to do without.
    """
    nano = left(child)
    buyer.lent_nano -= nano
    child.sliced = 0
    return nano
