"""The ledger's statements: what each act does to the rows, inside the transaction of its batch.

A `Book` lives as long as one transaction that already holds the write lock, so what it reads cannot
change before it writes. An admission is decided by the UPDATE that makes it: no read-then-write.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping
from typing import Any

from daypass_proxy.ledger import (
    Balance,
    LedgerRefused,
    Outcome,
    Reservation,
    Reserved,
    Settlement,
)

IncidentKey = tuple[str, str, int]
"""Subject, kind and minute (minutes since the epoch) of an incident row."""

_HOLD = """
UPDATE account SET reserved_nano = reserved_nano + :amount, updated_at = :now
WHERE id = :account
  AND (ceiling_nano IS NULL OR spent_nano + reserved_nano + :amount <= ceiling_nano)
RETURNING ceiling_nano - spent_nano - reserved_nano
"""
_OPEN = """
INSERT INTO usage (id, attempt, state, account, tenant, sandbox, grant_id, token_id, provider,
    endpoint, model, stream, reserved_nano, worker, lease_until, started_at)
VALUES (?, ?, 'open', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_ACCOUNT = (
    "SELECT ceiling_nano, spent_nano, reserved_nano, overdraft_nano FROM account WHERE id = ?"
)
_ROW = "SELECT state, account, reserved_nano, cost_nano FROM usage WHERE id = ?"
_RESIZE = "UPDATE usage SET reserved_nano = reserved_nano + ? WHERE id = ?"
_BILL = """
UPDATE usage SET state = 'settled', cost_nano = ?, input_tokens = ?, output_tokens = ?,
    cache_creation_input_tokens = ?, cache_creation_1h_input_tokens = ?,
    cache_read_input_tokens = ?, outcome = ?, estimated = ?, http_status = ?,
    upstream_request_id = ?, settled_at = ?
WHERE id = ? AND """
# Exactly once: only an open row can be settled, and only the reaper's guess can be corrected.
_SETTLE = _BILL + "state = 'open' RETURNING account, reserved_nano"
_CORRECT = _BILL + "state = 'settled' AND outcome = 'crashed' AND estimated = 1"
_BOOK = """
UPDATE account SET spent_nano = spent_nano + :spent, reserved_nano = reserved_nano - :freed,
    overdraft_nano = overdraft_nano + :overdraft, updated_at = :now
WHERE id = :account
"""
_RENEW = """
UPDATE usage SET lease_until = ? WHERE state = 'open' AND id IN (SELECT value FROM json_each(?))
"""
_REAP = f"""
UPDATE usage SET state = 'settled', cost_nano = reserved_nano, outcome = '{Outcome.CRASHED}',
    estimated = 1, settled_at = ?
WHERE id IN (SELECT id FROM usage WHERE state = 'open' AND lease_until <= ? LIMIT ?)
RETURNING account, reserved_nano
"""  # noqa: S608 - the only thing put in is our own constant
_COUNT = """
INSERT INTO incident (subject, kind, minute, count) VALUES (?, ?, ?, ?)
ON CONFLICT (subject, kind, minute) DO UPDATE SET count = count + excluded.count
"""


class Book:
    """One transaction's view of the rows. `now_ms` and `lease_ms` are milliseconds."""

    def __init__(
        self, connection: sqlite3.Connection, *, worker: str, now_ms: int, lease_ms: int
    ) -> None:
        self._connection = connection
        self._worker = worker
        self._now = now_ms
        self._lease_until = now_ms + lease_ms

    def reserve(self, wanted: Reservation) -> Reserved | LedgerRefused:
        """Hold the amount and open the usage row, or say why not.

        Raises sqlite3.IntegrityError for a usage id that exists; the batch is then rolled back.
        """
        held, remaining = self._hold(wanted.account, wanted.amount_nano)
        if not held:
            return self._why_not(wanted)
        self._connection.execute(
            _OPEN,
            (
                wanted.usage_id,
                wanted.attempt,
                wanted.account,
                wanted.tenant,
                wanted.sandbox,
                wanted.grant_id,
                wanted.token_id,
                wanted.provider,
                wanted.endpoint,
                wanted.model,
                int(wanted.stream),
                wanted.amount_nano,
                self._worker,
                self._lease_until,
                self._now,
            ),
        )
        return Reserved(wanted.usage_id, remaining)

    def extend(self, usage_id: str, amount_nano: int) -> bool:
        """Change the hold of an open row; False when it is closed or the ceiling is in the way."""
        row = self._connection.execute(_ROW, (usage_id,)).fetchone()
        if row is None or row[0] != "open":
            return False
        _, account, reserved, _ = row
        if amount_nano <= 0:
            amount_nano = max(amount_nano, -reserved)
            self._book(account, spent=0, freed=-amount_nano, overdraft=0)
        elif not self._hold(account, amount_nano)[0]:
            return False
        self._connection.execute(_RESIZE, (amount_nano, usage_id))
        return True

    def settle(self, bill: Settlement) -> bool | None:
        """Book a bill once: True when it was booked, False when one was before, None without a row.

        The excess over the hold is spent like the rest, and shown as overdraft.
        """
        values = self._columns(bill)
        # fetchall, not fetchone: an unfinished statement would make the commit fail.
        rows = self._connection.execute(_SETTLE, values).fetchall()
        if not rows:
            return self._correct(bill, values)
        account, held = rows[0]
        overdraft = max(bill.cost_nano - held, 0)
        self._book(account, spent=bill.cost_nano, freed=held, overdraft=overdraft)
        return True

    def balance(self, account: str) -> Balance | None:
        """Read an account."""
        row = self._connection.execute(_ACCOUNT, (account,)).fetchone()
        return Balance(*row) if row else None

    def renew(self, usage_ids: Collection[str]) -> None:
        """Move the leases of these open rows."""
        if usage_ids:
            self._connection.execute(_RENEW, (self._lease_until, json.dumps(list(usage_ids))))

    def reap(self, limit: int) -> int:
        """Settle up to `limit` expired rows at their reservation; returns how many there were."""
        rows = self._connection.execute(_REAP, (self._now, self._now, limit)).fetchall()
        for account, reserved in rows:
            self._book(account, spent=reserved, freed=reserved, overdraft=0)
        return len(rows)

    def count(self, incidents: Mapping[IncidentKey, int]) -> None:
        """Add to the incident rows."""
        self._connection.executemany(_COUNT, [(*key, number) for key, number in incidents.items()])

    def _correct(self, bill: Settlement, values: tuple[object, ...]) -> bool | None:
        """Replace the reaper's guess, whose hold is freed and whose cost is spent already."""
        row = self._connection.execute(_ROW, (bill.usage_id,)).fetchone()
        if row is None:
            return None
        if not self._connection.execute(_CORRECT, values).rowcount:
            return False
        _, account, held, guess = row
        overdraft = max(bill.cost_nano - held, 0)
        self._book(account, spent=bill.cost_nano - guess, freed=0, overdraft=overdraft)
        return True

    def _columns(self, bill: Settlement) -> tuple[object, ...]:
        usage = bill.usage
        return (
            bill.cost_nano,
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_creation_input_tokens,
            usage.cache_creation_1h_input_tokens,
            usage.cache_read_input_tokens,
            bill.outcome,
            int(bill.estimated),
            bill.http_status,
            bill.upstream_request_id,
            self._now,
            bill.usage_id,
        )

    def _hold(self, account: str, amount: int) -> tuple[bool, int | None]:
        values = {"account": account, "amount": amount, "now": self._now}
        rows: list[Any] = self._connection.execute(_HOLD, values).fetchall()
        return (True, rows[0][0]) if rows else (False, None)

    def _book(self, account: str, *, spent: int, freed: int, overdraft: int) -> None:
        self._connection.execute(
            _BOOK,
            {
                "account": account,
                "spent": spent,
                "freed": freed,
                "overdraft": overdraft,
                "now": self._now,
            },
        )

    def _why_not(self, wanted: Reservation) -> LedgerRefused:
        row = self._connection.execute(_ACCOUNT, (wanted.account,)).fetchone()
        if row is None:
            return LedgerRefused("unknown_account")
        ceiling, spent, reserved, _ = row
        would_fit = spent + wanted.amount_nano <= ceiling
        return LedgerRefused("held" if would_fit else "exhausted", ceiling, spent, reserved)
