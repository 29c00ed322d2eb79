"""The months of `usage` on PostgreSQL, made ahead of time; on SQLite there is nothing to do.

The broker's role does not own the table: a function that does makes the partition of one month. A
month that nobody made is no outage: its rows go to the catch-all, and are moved when it is made.
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa

from daypass_broker import db
from daypass_broker.services import Services
from daypass_core.log import event, get_logger

log = get_logger(__name__)

AHEAD_SECONDS = 600.0
"""How often it is looked; months are made so early that none of this is ever urgent."""
_AHEAD = 3
_MAKE = sa.text("SELECT daypass_make_usage_partition(:month)")


def make_ahead(services: Services) -> int:
    """Make the partitions of this month and the next ones; return how many were new.

    Raises StoreUnavailable: also when others are in the way for a second.
    """
    if services.engine.dialect.name != "postgresql":
        return 0
    with db.read(services.engine) as conn:
        now = services.now_ms(conn)
    made = 0
    for month in _months(now):
        with db.begin(services.engine) as conn:
            if conn.execute(_MAKE, {"month": month}).scalar_one():
                event(log, "usage_partition_made", month=_name(month))
                made += 1
    return made


def _months(now_ms: int) -> list[int]:
    """Return the first milliseconds of the months to be there."""
    moment = datetime.fromtimestamp(now_ms // 1000, UTC)
    first = moment.year * 12 + moment.month - 1
    numbers = (divmod(number, 12) for number in range(first, first + _AHEAD + 1))
    return [
        int(datetime(year, month + 1, 1, tzinfo=UTC).timestamp()) * 1000 for year, month in numbers
    ]


def _name(month: int) -> str:
    return datetime.fromtimestamp(month // 1000, UTC).strftime("%Y-%m")
