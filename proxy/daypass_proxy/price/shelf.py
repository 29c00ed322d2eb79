"""The models of one provider in one price file, under all their names, each with its days.

Place in the flow: `price.file` fills shelves, `price.table` looks through them.
"""

from __future__ import annotations

import re
from bisect import bisect_right, insort
from collections.abc import Iterable

from daypass_proxy.price.price import Price


class Model:
    """One model of a file: its whole ids, and its prices by the day from which they count."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ids: dict[str, None] = {name: None}
        self._starts: list[float] = []
        self._prices: list[Price] = []

    def add(self, starts: float, price: Price) -> None:
        """Take a price over. Raises ValueError when there is one from that day already."""
        if starts in self._starts:
            raise ValueError(
                f'"{self.name}" is priced twice; keep one entry, or give each a "from"'
            )
        insort(self._starts, starts)
        self._prices.insert(self._starts.index(starts), price)

    def at(self, now: float) -> Price | None:
        """Return the price in force; None before the first day."""
        index = bisect_right(self._starts, now)
        return self._prices[index - 1] if index else None


class Shelf:
    """The models of one provider in one file."""

    def __init__(self) -> None:
        self.models: dict[str, Model] = {}
        self._by_id: dict[str, Model] = {}
        self._rules: list[tuple[re.Pattern[str], Model]] = []

    def add(
        self, starts: float, price: Price, ids: Iterable[str], rules: Iterable[re.Pattern[str]]
    ) -> None:
        """Put a price on the shelf. Raises ValueError naming an id that is another model's."""
        model = self.models.setdefault(price.model, Model(price.model))
        for name in (price.model, *ids):
            if self._by_id.setdefault(name, model) is not model:
                raise ValueError(f'"{name}" is priced twice; keep one entry')
            model.ids[name] = None
        model.add(starts, price)
        self._rules.extend((rule, model) for rule in rules)

    def find(self, name: str) -> Model | None:
        """Return the model with this id, else that of the first rule which matches."""
        if (model := self._by_id.get(name)) is not None:
            return model
        return next((model for rule, model in self._rules if rule.fullmatch(name)), None)

    def by_id(self, name: str) -> Model | None:
        """Return the model with this whole id."""
        return self._by_id.get(name)
