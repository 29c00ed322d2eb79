"""What the ledger's machine knows of accounts and calls: no sums, so that it has none to get wrong.

An account's sums are added up from its calls each time, and what it has set aside from what is left
of the slices that were bought from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daypass_proxy.ledger import Hold

DONE = ("settled", "crashed")


@dataclass
class Call:
    """What the model knows of a usage row; `state` is open, settled, crashed or refused."""

    usage_id: str
    account: str
    worker: str
    hold: Hold
    lease: float
    state: str = "open"
    cost: int = 0
    tokens: int = 0


@dataclass
class Model:
    """All calls, the parent of each account, and the slices that were not given back."""

    parents: dict[str, str]
    slices: dict[str, int] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    def chain(self, leaf: str) -> list[str]:
        """Return an account and all above it."""
        return [leaf, *(self.chain(self.parents[leaf]) if leaf in self.parents else [])]

    def mine(self, account: str) -> list[Call]:
        """Return the calls that are booked in an account."""
        return [call for call in self.calls if account in self.chain(call.account)]

    def left(self, child: str) -> int:
        """Return what is left of a slice."""
        held = sum(call.hold.nano for call in self.mine(child) if call.state == "open")
        spent = sum(call.cost for call in self.mine(child) if call.state in DONE)
        return max(self.slices[child] - held - spent, 0)

    def set_aside(self, buyer: str) -> int:
        """Return what is left of the slices that were bought from an account."""
        return sum(self.left(one) for one in self.slices if self.parents[one] == buyer)
