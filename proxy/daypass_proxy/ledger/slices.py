"""Slices: a part of an account's budget that is set aside for an account bought from it.

Place in the flow: the broker sets a slice aside and gives back what is left of it, under locks on
both accounts; `chain` finds the slices that a call goes through, and `book` counts what is used of
them. Between the two, `lent_nano - lent_used_nano` of an account is always what is left of its
children's slices. docs/money.md has the arithmetic of both sides.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from daypass_proxy.ledger.account import Account


class Slice(NamedTuple):
    """The budget of `child`, all of which is set aside in `parent`."""

    child: Account
    parent: Account

    @property
    def used(self) -> int:
        """What the child's calls spent and hold of it, in nano-dollars.

        At most all of it: what a bill goes beyond is paid from what the parent has for itself.
        """
        child = self.child
        return min(child.spent_nano + child.reserved_nano, child.ceiling_nano or 0)

    def add_used(self, before: int) -> None:
        """Count in the parent what is used of it now and was not when `before` was used."""
        self.parent.lent_used_nano += self.used - before


def find(accounts: Iterable[Account]) -> tuple[Slice, ...]:
    """Return the slices among the accounts of a call, which are in the order of a chain.

    An account that says so and has no ceiling has nothing that could be set aside, so it uses what
    its parent has for itself. One whose slice was given back is no slice any more.
    """
    return tuple(
        Slice(child, parent)
        for child, parent in pairwise(accounts)
        if child.sliced and child.ceiling_nano is not None and child.parent == parent.id
    )
