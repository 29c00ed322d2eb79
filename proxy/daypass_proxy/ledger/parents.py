"""What the writer remembers of accounts: who their parents are, which never changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from daypass_proxy.ledger.store import Transaction

REMEMBERED: Final = 20_000
"""With more leaves than this in memory, all are forgotten and asked for again."""


class Parents:
    """The chain of every leaf seen, the leaf itself first. Used by the writer thread only."""

    def __init__(self) -> None:
        self._chains: dict[str, tuple[str, ...]] = {}

    def find(
        self, transaction: Transaction, leaves: Iterable[str]
    ) -> Mapping[str, tuple[str, ...]]:
        """Return the chains of these leaves, and others; none for one that does not exist yet."""
        if len(self._chains) > REMEMBERED:
            self._chains.clear()
        unknown = [leaf for leaf in leaves if leaf not in self._chains]
        if unknown:
            self._chains.update(transaction.chains(unknown))
        return self._chains
