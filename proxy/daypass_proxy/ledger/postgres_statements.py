"""The statements of the ledger's store in PostgreSQL, put together from the columns of the seam.

Many rows travel as one JSON parameter: making arrays of them, column by column, costs the writer's
thread ten times as much. Only our own constants are put into the text, values never.
"""

# ruff: noqa: S608 - see above

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, cast

from daypass_proxy.ledger import account
from daypass_proxy.ledger.store import (
    CHAIN_LENGTH,
    KEY,
    OPENED,
    RESIZED,
    ROW,
    SETTLED,
    Span,
    Values,
)

_TEXT: Final = frozenset(
    {"id", "account", "accounts", "tenant", "sandbox", "grant_id", "token_id", "provider"}
    | {"endpoint", "model", "worker", "outcome", "upstream_request_id", "service_tier", "speed"}
    | {"inference_geo", "passes", "minute"}
)
"""The columns that hold text; all others that are written hold integers."""

_MANY: Final = "jsonb_array_elements(%s::jsonb) AS new"
# Always true. The planner takes it for something that few rows pass, and so looks each of them up
# by its id, where it would otherwise read all of a table that it believes to be small.
_FEW: Final = "jsonb_typeof(new) = 'array'"
_AMONG: Final = "id = ANY(ARRAY(SELECT jsonb_array_elements_text(%s::jsonb)))"
# Beside their ids: only the parts of the table that hold those months are looked at. Said twice,
# with the same values: the server prunes by it, but cannot take it for a reason to use an index
# that has `started_at` in second place, as it would in a plan made while the table is empty.
_SPAN: Final = "usage.started_at BETWEEN %s AND %s"
_STARTED: Final = f"({_SPAN} OR {_SPAN})"
EVER: Final = (-(2**63), 2**63 - 1)
"""The `Span` of rows of which nobody knows when they began."""
_ROW: Final = ", ".join(ROW)
_ACCOUNT: Final = ", ".join(account.COLUMNS)


def _values(columns: Sequence[str]) -> Iterator[str]:
    """Return how each column of a row is taken out of its JSON array."""
    for number, column in enumerate(columns):
        yield f"new ->> {number}" if column in _TEXT else f"(new ->> {number})::bigint"


def _update(table: str, columns: Sequence[str], keys: int, also: str = "") -> str:
    """Return the update of many rows; the last `keys` columns say which, the id at the end."""
    pairs = list(zip(columns, _values(columns), strict=True))
    changes = ", ".join(f"{name} = {value}" for name, value in pairs[:-keys])
    which = f"{table}.id = {pairs[-1][1]} AND {_FEW}"
    return f"UPDATE {table} SET {also}{changes} FROM {_MANY} WHERE {which}"


def started(rows: Sequence[Values]) -> Span:
    """Return when rows began that are to be resized or settled."""
    began = [cast("int", row[-len(KEY)]) for row in rows]
    return min(began), max(began)


def lock_timeout(seconds: float) -> bytes:
    """Return what bounds how long this transaction waits for a lock."""
    return f"SET LOCAL lock_timeout = {max(round(seconds * 1000), 1)}".encode()


BEGIN: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED"
BEGIN_READING: Final = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

# NO KEY: ids are never changed, so who only refers to a row need not wait.
ROWS: Final = (
    f"SELECT {_ROW} FROM usage WHERE {_STARTED} AND {_AMONG} ORDER BY id FOR NO KEY UPDATE"
).encode()
RENEW: Final = f"""
UPDATE usage SET lease_until = %s WHERE {_STARTED} AND id IN (
    SELECT id FROM usage WHERE {_STARTED} AND {_AMONG} AND state = 'open'
    FOR NO KEY UPDATE SKIP LOCKED)
""".encode()
EXPIRED: Final = f"""
SELECT {_ROW} FROM usage WHERE state = 'open' AND lease_until <= %s
ORDER BY lease_until LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
""".encode()
CHAINS: Final = f"""
WITH RECURSIVE chain AS (
    SELECT id AS leaf, id, parent, 1 AS length FROM account WHERE {_AMONG}
    UNION ALL
    SELECT chain.leaf, above.id, above.parent, chain.length + 1
    FROM chain JOIN account AS above ON above.id = chain.parent WHERE chain.length < {CHAIN_LENGTH})
SELECT leaf, array_agg(id ORDER BY length) FROM chain GROUP BY leaf HAVING bool_or(parent IS NULL)
""".encode()
READ: Final = f"SELECT {_ACCOUNT} FROM account WHERE {_AMONG} ORDER BY id".encode()
LOCK: Final = READ + b" FOR NO KEY UPDATE"

OPEN: Final = (
    f"INSERT INTO usage (state, {', '.join(OPENED)})"
    f" SELECT 'open', {', '.join(_values(OPENED))} FROM {_MANY}"
).encode()
RESIZE: Final = (_update("usage", RESIZED, len(KEY)) + f" AND {_STARTED}").encode()
SETTLE: Final = (
    _update("usage", SETTLED, len(KEY), "state = 'settled', ") + f" AND {_STARTED}"
).encode()
BOOK: Final = _update("account", account.WRITTEN, 1).encode()
COUNT: Final = f"""
INSERT INTO incident (subject, kind, minute, count)
SELECT new ->> 0, new ->> 1, (new ->> 2)::bigint, (new ->> 3)::bigint FROM {_MANY}
ON CONFLICT (subject, kind, minute) DO UPDATE SET count = incident.count + excluded.count
""".encode()
