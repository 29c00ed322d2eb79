"""What really happened, from those who know: the provider's bills against rows and accounts.

Nothing here believes a proxy: a call is what the provider billed, an overspend is what it billed
beyond a ceiling, and a lost row is a bill that no row stands for.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg.rows

from daypass_broker import db
from daypass_broker.chain.verify import verify as verify_trail
from daypass_proxy.ledger.verify import verify
from tests.fleet.cell import Cell
from tests.fleet.load import Sandbox, Seen
from tests.fleet.provider import Billed
from tests.support import eventually

REST_SECONDS = 90.0
NEVER = ("400", "401", "403", "404")
"""What no valid token and no right request may ever be answered."""
BOUND_SECONDS = 1.0
"""n + w of bound B: how long the provider goes on once a stream has to be cut."""
WINDOW_SECONDS = 58.0
"""A minute, less what lies between an admission and the provider."""


@dataclass
class Books:
    """What is wrong in the books; all figures should be nought. Money in nano-dollars."""

    calls: int = 0
    """Requests that the provider billed."""
    billed_nano: int = 0
    booked_nano: int = 0
    lost_rows: int = 0
    doubled: int = 0
    """Answers with two rows, and rows that nobody asked for."""
    wrong: int = 0
    """Whole answers that are not booked at their bill."""
    unbooked_nano: int = 0
    """By how much bills, each taken by itself, are higher than what is booked for them."""
    beyond_bound: int = 0
    """Calls of which that is more than bound B of docs/money.md."""
    bound_nano: int = 0
    overspent_nano: int = 0
    """By how much bills of any sandbox pass its ceiling, and B for each of its calls that was cut.
    """
    over_rate: int = 0
    """By how many calls any sandbox passed its limit within a minute."""
    unrested: int = 0
    """Accounts that still hold something."""
    discrepancies: list[str] = field(default_factory=list)
    """What `verify` says."""
    trail: list[str] = field(default_factory=list)
    """What `verify-trail` says."""
    heads: int = 0
    """Of the audit trail, from the fleet's start on."""
    outcomes: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    """Calls that are booked below their bills."""


def books(cell: Cell, sandboxes: Sequence[Sandbox], seen: Seen) -> Books:
    """Wait until nothing is held any more, and compare."""
    ids = [sandbox.id for sandbox in sandboxes]
    found = Books(
        unrested=_rest(cell, ids), bound_nano=round(cell.provider.fastest * BOUND_SECONDS)
    )
    rows = _select(cell, "SELECT * FROM usage WHERE sandbox = ANY(%s)", ids)
    bills = [bill for bill in cell.provider.bills if bill.sandbox in set(ids)]
    found.calls, found.billed_nano = len(bills), sum(bill.nano for bill in bills)
    found.booked_nano = sum(row["cost_nano"] or 0 for row in rows)
    found.outcomes = Counter(str(row["outcome"] or row["state"]) for row in rows)
    _compare(found, rows, bills)
    of = Counter(row["sandbox"] for row in rows)
    found.doubled += sum(max(0, of[one] - seen.attempts[one]) for one in ids)
    cut = Counter(row["sandbox"] for row in rows if str(row["outcome"]).startswith("cut"))
    _ceilings(found, cell, cut, bills, ids)
    _rates(found, sandboxes, bills)
    found.discrepancies = [str(one) for one in verify(cell.database.url())]
    engine = db.connect(cell.database.url())
    trail = verify_trail(engine)
    engine.dispose()
    found.trail, found.heads = trail.wrong, trail.heads
    return found


def _rest(cell: Cell, ids: list[str]) -> int:
    query = (
        "SELECT count(*) AS n FROM account WHERE sandbox = ANY(%s) AND"
        " (open_calls, reserved_nano, tokens_reserved) <> (0, 0, 0)"
    )

    def holding() -> int:
        return int(_select(cell, query, ids)[0]["n"])

    try:
        eventually(lambda: holding() == 0, timeout=REST_SECONDS)
    except AssertionError:
        return holding()
    return 0


def _compare(found: Books, rows: list[dict[str, Any]], bills: list[Billed]) -> None:
    """Every bill has the row that names it, or one of its sandbox that names nothing."""
    named: dict[str, dict[str, Any]] = {}
    nameless: defaultdict[str, list[int]] = defaultdict(list)
    for row in rows:
        answer = row["upstream_request_id"]
        if answer is None:
            nameless[row["sandbox"]].append(row["cost_nano"] or 0)
        elif answer in named:
            found.doubled += 1
        else:
            named[answer] = row
    unmatched: defaultdict[str, list[int]] = defaultdict(list)
    for bill in bills:
        match = named.get(bill.answer)
        if match is None:
            unmatched[bill.sandbox].append(bill.nano)
            continue
        cost = match["cost_nano"] or 0
        if bill.nano > cost:
            found.unbooked_nano += bill.nano - cost
            within = match["outcome"] != "complete" and bill.nano - cost <= found.bound_nano
            found.beyond_bound += not within
            found.examples.append(
                f"{bill.answer}: {bill.tokens} tokens billed,"
                f" {match['output_tokens']} booked, {match['outcome']}"
            )
        found.wrong += match["outcome"] == "complete" and cost != bill.nano
    for sandbox, nanos in unmatched.items():
        stand_in = sorted(nameless[sandbox], reverse=True)
        found.lost_rows += max(0, len(nanos) - len(stand_in))
        pairs = zip(sorted(nanos, reverse=True), stand_in, strict=False)
        found.beyond_bound += sum(nano > cost for nano, cost in pairs)


def _ceilings(
    found: Books, cell: Cell, cut: Counter[str], bills: list[Billed], ids: list[str]
) -> None:
    spent: Counter[str] = Counter()
    for bill in bills:
        spent[bill.sandbox] += bill.nano
    query = "SELECT sandbox, ceiling_nano, spent_nano FROM account WHERE sandbox = ANY(%s)"
    for row in _select(cell, query, ids):
        most = max(spent[row["sandbox"]], row["spent_nano"])
        if row["ceiling_nano"] is not None:
            allowed = row["ceiling_nano"] + cut[row["sandbox"]] * found.bound_nano
            found.overspent_nano += max(0, most - allowed)


def _rates(found: Books, sandboxes: Sequence[Sandbox], bills: list[Billed]) -> None:
    for sandbox in sandboxes:
        if sandbox.rate_limit is None:
            continue
        times = sorted(bill.at for bill in bills if bill.sandbox == sandbox.id)
        first = 0
        for last, at in enumerate(times):
            while times[first] < at - WINDOW_SECONDS:
                first += 1
            over = last - first + 1 - sandbox.rate_limit
            found.over_rate = max(found.over_rate, over)


def _select(cell: Cell, query: str, ids: list[str]) -> list[dict[str, Any]]:
    with cell.database.connect() as connection:
        cursor = connection.cursor(row_factory=psycopg.rows.dict_row)
        return cursor.execute(query.encode(), (ids,)).fetchall()
