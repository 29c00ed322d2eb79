"""Usage rows as they are written: tuples in the order of the columns that `store` names."""

from __future__ import annotations

from typing import Final

import msgspec

from daypass_proxy.ledger import Reservation
from daypass_proxy.ledger.store import Row, Values
from daypass_proxy.ledger.usage import Usage

MAX_INTEGER: Final = 2**63 - 1
"""The largest number of a column. SQLite would go on with a float."""


def opened(
    wanted: Reservation,
    accounts: str,
    nano: int,
    tokens: int,
    worker: str,
    lease_until: int,
    now_ms: int,
) -> Values:
    """Return the columns `OPENED` of a call that holds so much in these accounts."""
    return (
        wanted.usage_id,
        wanted.attempt,
        wanted.account,
        accounts,
        wanted.tenant,
        wanted.sandbox,
        wanted.grant_id,
        wanted.token_id,
        wanted.provider,
        wanted.endpoint,
        wanted.model,
        int(wanted.stream),
        nano,
        tokens,
        worker,
        lease_until,
        now_ms,
    )


def settled(
    row: Row, usage: Usage, http_status: int | None, upstream_request_id: str | None
) -> Values:
    """Return the columns `SETTLED` of a row that says already what it cost and how it ended."""
    return (
        row.reserved_nano,
        row.reserved_tokens,
        row.cost_nano,
        row.tokens,
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_creation_input_tokens,
        usage.cache_creation_1h_input_tokens,
        usage.cache_read_input_tokens,
        usage.thinking_tokens,
        usage.web_search_requests,
        usage.service_tier,
        usage.speed,
        usage.inference_geo,
        msgspec.json.encode(usage.passes).decode() if usage.passes else None,
        row.outcome,
        row.estimated,
        http_status,
        upstream_request_id,
        row.settled_at,
        row.started_at,
        row.id,
    )


def check_figures(usage: Usage, tokens: int) -> None:
    """Raise ValueError for a figure that no column can hold; `tokens` are all of them."""
    figures = (
        tokens,
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_creation_input_tokens,
        usage.cache_creation_1h_input_tokens,
        usage.cache_read_input_tokens,
        usage.thinking_tokens,
        usage.web_search_requests,
    )
    for figure in figures:
        if figure is not None and not 0 <= figure <= MAX_INTEGER:
            raise ValueError(f"a usage figure of {figure} is out of range")
