"""What daypass booked, read from its admin API, and how that compares with the LLM's counters."""

from __future__ import annotations

import time
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from daypass.broker import Broker
from demo.services.llm import Counters

SETTLED_SECONDS = 10.0
POLL_SECONDS = 0.05


class NotSettled(Exception):
    """A call was still open when the books were to be read."""


@dataclass(frozen=True, slots=True)
class Booked:
    """Tokens and cost of one call or of several."""

    calls: int
    input_tokens: int
    cache_read_tokens: int
    output_tokens: int
    cost_usd: Decimal

    @classmethod
    def of(cls, row: dict[str, Any]) -> Booked:
        """From a row or the totals of `GET /v1/usage`; what the provider left unsaid is 0."""
        return cls(
            calls=int(row.get("calls", 1)),
            input_tokens=int(row["input_tokens"] or 0),
            cache_read_tokens=int(row["cache_read_input_tokens"] or 0),
            output_tokens=int(row["output_tokens"] or 0),
            cost_usd=Decimal(str(row["cost_usd"] or 0)),
        )

    def in_words(self) -> str:
        """For a person to read."""
        return (
            f"{self.input_tokens} tokens in, {self.cache_read_tokens} from the cache,"
            f" {self.output_tokens} out, ${self.cost_usd.normalize():f}"
        )


def settled_usage(broker: Broker, **filters: object) -> dict[str, Any]:
    """The answer of `GET /v1/usage` once no call in it is open; NotSettled if one stays so."""
    deadline = time.monotonic() + SETTLED_SECONDS
    while True:
        answer = broker.usage(**filters)
        if answer["totals"]["open_calls"] == 0:
            return answer
        if time.monotonic() > deadline:
            raise NotSettled(f"a call was still open {SETTLED_SECONDS:g} s after its end")
        time.sleep(POLL_SECONDS)


def last_call(broker: Broker, sandbox: str) -> dict[str, Any]:
    """The newest usage row of a sandbox, settled."""
    row: dict[str, Any] = settled_usage(broker, sandbox=sandbox)["rows"][0]
    return row


def compare(booked: Booked, counted: Counters) -> list[tuple[str, int, int]]:
    """Name, what we booked and what the LLM counted, for each kind of token."""
    return [
        ("input", booked.input_tokens, counted.prompt_tokens),
        ("from cache", booked.cache_read_tokens, counted.cached_tokens),
        ("output", booked.output_tokens, counted.predicted_tokens),
    ]
