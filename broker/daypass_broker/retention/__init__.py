"""Retention: what is old leaves the database, exported first, and the books stay exact.

`command` runs it as the owner of the database: `usage` takes whole months, `trail` the oldest
events, `rest` what nothing refers to any more. `exports` writes and verifies the files, `carry`
folds what usage rows came to into `usage_carried`, so that every account can still be recomputed.
`months` has the calendar. docs/retention.md is the page for operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from daypass_broker.retention.months import Month

Say = Callable[[str], None]
"""Tells progress, in one line."""


class RetentionError(Exception):
    """Nothing more can be pruned now; the message says why and what to do. All is consistent."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """One month of usage: `calls` rows that cost `cost_nano`, and the file they are in.

    `kept` says why nothing was done to it; then there is no file.
    """

    month: Month
    calls: int = 0
    cost_nano: int = 0
    file: str | None = None
    sha256: str | None = None
    kept: str | None = None

    def as_dict(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "month": self.month.name,
            "calls": self.calls,
            "cost_nano": self.cost_nano,
            "file": self.file,
            "sha256": self.sha256,
            "kept": self.kept,
        }
