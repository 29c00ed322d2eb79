"""What came of a fault, held against its bounds, and the table of all."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fleet.faults import Fault
from tests.fleet.load import LIMITS, Seen
from tests.fleet.truth import NEVER, Books

_OF_BUDGETS = LIMITS | {"cut: billing_error"}
"""What sandboxes at a limit are told; no error of ours."""


@dataclass
class Result:
    """One line of the table; times in seconds."""

    fault: Fault
    books: Books
    struck: float
    healed: float
    calls: int = 0
    rate: float = 0.0
    raw: Counter[str] = field(default_factory=Counter)
    visible: Counter[str] = field(default_factory=Counter)
    denied: int = 0
    """Answers that a valid token must never get."""
    token_errors: Counter[str] = field(default_factory=Counter)
    recovered: float = 0.0
    lag: float = 0.0
    """For how long the load itself was held up: the machine was too busy."""
    stalled: float = 0.0
    """How much longer than in the calm before the slowest good call took."""
    not_alive: int = 0
    """Liveness probes that failed a second time in a row, at a process that nobody had stopped."""
    broken: list[str] = field(default_factory=list)
    """The bounds that do not hold."""

    @property
    def verdict(self) -> str:
        """`ok`, or what is wrong."""
        return "; ".join(self.broken) or "ok"


def judge(
    fault: Fault, seen: Seen, books: Books, times: tuple[float, float], not_alive: int
) -> Result:
    """Put the result of one fault together; `times` are when it struck and when it was healed."""
    struck, healed = times
    found = Result(fault, books, struck, healed, calls=len(seen.calls), lag=seen.lag)
    found.not_alive = not_alive
    found.raw = Counter(raw.kind for raw in seen.raws if not raw.ok)
    found.token_errors = Counter(raw.kind for raw in seen.tokens if not raw.ok)
    found.visible = Counter(
        call.kind
        for call in seen.calls
        if call.kind != "ok" and not (call.poor and call.kind not in NEVER)
    )
    found.denied = sum(one.kind in NEVER for one in (*seen.raws, *seen.tokens))
    found.denied += sum(call.kind in NEVER and call.poor for call in seen.calls)
    troubles = [raw.at for raw in seen.raws if not raw.ok and raw.kind not in _OF_BUDGETS]
    found.recovered = max(0.0, max(troubles, default=0.0) - healed)
    calm = [one.ended - one.began for one in seen.calls if one.kind == "ok" and one.ended < struck]
    after = [one.ended - one.began for one in seen.calls if one.kind == "ok"]
    found.stalled = max(after, default=0.0) - max(calm, default=0.0)
    found.broken = list(_broken(found, seen))
    return found


def _broken(found: Result, seen: Seen) -> list[str]:
    books, fault = found.books, found.fault
    other = {kind: n for kind, n in found.visible.items() if kind not in fault.visible}
    nought = {
        "lost rows": books.lost_rows,
        "doubled": books.doubled,
        "wrongly booked": books.wrong,
        "calls booked below their bills by more than B": books.beyond_bound,
        "nano-dollars overspent": books.overspent_nano,
        "calls over a rate": books.over_rate,
        "accounts that still hold": books.unrested,
        "discrepancies": len(books.discrepancies),
        "events that are not what was sealed": len(books.trail),
        "valid tokens turned away": found.denied,
        "calls not begun": seen.not_begun,
        "liveness failures": found.not_alive,
    }
    broken = [f"{number} {name}" for name, number in nought.items() if number]
    if other:
        broken.append(f"client-visible: {words(other)}")
    if found.recovered > fault.recovers:
        broken.append(f"recovered after {found.recovered:.1f} s")
    return broken


def words(kinds: Counter[str] | dict[str, int]) -> str:
    """`12 x 503, 1 x torn`; a dash for nothing."""
    return ", ".join(f"{n} x {kind}" for kind, n in sorted(kinds.items())) or "-"


HEAD = (
    "| fault | calls | requests that failed | client-visible errors | lost rows | overspent | 401 |"
    " seconds to recover | slowest call | bounds |\n|---|---|---|---|---|---|---|---|---|---|"
)


def line(one: Result) -> str:
    """One line of the table."""
    cells = (
        f"`{one.fault.name}`: {one.fault.says}",
        str(one.calls),
        words(one.raw),
        words(one.visible),
        str(one.books.lost_rows),
        str(one.books.overspent_nano),
        str(one.denied),
        f"{one.recovered:.1f}",
        f"+{max(one.stalled, 0.0):.1f} s",
        one.verdict,
    )
    return f"| {' | '.join(cells)} |"


def table(results: Sequence[Result]) -> str:
    """The whole table, in Markdown."""
    return "\n".join([HEAD, *(line(one) for one in results)])


def as_json(one: Result) -> dict[str, Any]:
    """A result for machines."""
    found: dict[str, Any] = {
        "fault": one.fault.name,
        "calls": one.calls,
        "rate": round(one.rate, 1),
        "failed_requests": dict(one.raw),
        "visible": dict(one.visible),
        "token_errors": dict(one.token_errors),
        "denied": one.denied,
        "recovered_seconds": round(one.recovered, 2),
        "lag_seconds": round(one.lag, 2),
        "stalled_seconds": round(one.stalled, 2),
        "broken": one.broken,
    }
    return found | {"books": {**vars(one.books), "outcomes": dict(one.books.outcomes)}}
