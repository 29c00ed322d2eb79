"""The end of an inference call: its one log line and its metrics, from one record.

Place in the flow: the last step of `forward`, whatever happened before. Runs on every call, so it
does nothing twice: the line is filled once, written by `log.tell` and counted by `Metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass

from daypass_core.claims import Claims
from daypass_core.log import get_logger, tell
from daypass_proxy.attempt import Attempt
from daypass_proxy.closed import CallClosed
from daypass_proxy.exchange import Exchange
from daypass_proxy.ledger import Outcome
from daypass_proxy.services import Services

log = get_logger(__name__)


@dataclass(slots=True)
class CallRecord:
    """What the end tells of a call, filled in as it becomes known."""

    claims: Claims | None = None
    attempt: Attempt | None = None
    refused: str | None = None
    outcome: str = "internal_error"
    body_seconds: float = 0.0
    """How long the body was waited for: the client's time, not ours."""


def close_call(exchange: Exchange, endpoint: str, services: Services, record: CallRecord) -> None:
    """Say and count how the call ended."""
    now = services.clock.monotonic()
    claims, attempt = record.claims, record.attempt
    line = CallClosed(
        request_id=exchange.request_id,
        outcome=record.outcome,
        endpoint=endpoint,
        status=exchange.status,
        refused=record.refused,
        ms=_ms(now - exchange.started),
        first_byte_ms=None,
    )
    if claims is not None:
        line.tenant, line.sandbox, line.token_id = claims.tenant, claims.sandbox, claims.token_id
    priced = cut = None
    if attempt is not None:
        cut = attempt.live.reason
        if attempt.held.tariff is not None:
            priced = attempt.held.tariff.model
        _add_attempt(line, attempt, record.body_seconds, exchange.started, now)
    tell(log, line)
    services.metrics.call_closed(line, priced=priced, cut=cut)


def _add_attempt(
    line: CallClosed, attempt: Attempt, body_seconds: float, started: float, now: float
) -> None:
    booked = attempt.settlement or attempt.bill()
    call, meter = attempt.call, attempt.meter
    line.outcome = booked.outcome._value_  # as .value, without its descriptor
    line.provider, line.model, line.stream = call.provider, call.model, call.stream
    line.usage, line.cost_nano, line.estimated = booked.usage, booked.cost_nano, booked.estimated
    line.upstream_status = booked.http_status
    line.upstream_request_id = booked.upstream_request_id
    line.bytes_up = len(call.body)
    line.bytes_down = 0 if meter is None else meter.fed
    if attempt.deserted and booked.outcome is not Outcome.COMPLETE:
        line.drained_tokens = attempt.output_seen - attempt.seen_before
    if attempt.allowance is not None:
        line.extensions = attempt.allowance.granted
        line.extensions_refused = attempt.allowance.refused
    if attempt.sent_at is not None:
        line.added_ms = _ms(attempt.sent_at - started - body_seconds)
        line.upstream_ms = _ms(now - attempt.sent_at)
    if attempt.first_byte_at is not None:
        line.first_byte_ms = _ms(attempt.first_byte_at - started)


def _ms(seconds: float) -> float:
    """Return milliseconds to the microsecond; round() to digits would take thrice as long."""
    return int(seconds * 1_000_000 + 0.5) / 1000
