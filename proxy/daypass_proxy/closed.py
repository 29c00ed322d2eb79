"""The one line that every request ends in: what is told, and in which order.

Place in the flow: `closing` fills `CallClosed` for an inference call, `edge` `RequestServed` for
all others. docs/reference/events.md lists the same fields, and a test compares.
"""

from typing import ClassVar

from daypass_core.log import Line
from daypass_proxy.ledger import Usage


class CallClosed(Line, tag="call_closed", kw_only=True):
    """An inference call is over. What never became known is left out; times are milliseconds."""

    # Ours: claims that the broker signed, ids and words of this program.
    OURS: ClassVar[frozenset[str]] = Line.OURS | {
        "outcome", "tenant", "sandbox", "token_id", "endpoint", "provider", "refused", "usage",
    }  # fmt: skip

    outcome: str
    endpoint: str
    status: int | None
    refused: str | None
    tenant: str | None = None
    sandbox: str | None = None
    token_id: str | None = None
    provider: str | None = None
    model: str | None = None
    stream: bool | None = None
    usage: Usage | None = None
    cost_nano: int | None = None
    estimated: bool | None = None
    upstream_status: int | None = None
    upstream_request_id: str | None = None
    drained_tokens: int | None = None
    extensions: int = 0
    extensions_refused: int = 0
    bytes_up: int | None = None
    bytes_down: int | None = None
    ms: float
    first_byte_ms: float | None
    added_ms: float | None = None
    upstream_ms: float | None = None


class RequestServed(Line, tag="request_served", kw_only=True):
    """A request that was no inference call is over, or one that failed before it became one."""

    OURS: ClassVar[frozenset[str]] = Line.OURS | {"outcome", "peer"}

    method: str
    path: str
    status: int | None
    outcome: str
    peer: str
    seconds: float
