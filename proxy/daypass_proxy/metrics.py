"""The proxy's metrics: small methods named by what has happened.

Held in `Services`. `closing` and `edge` report each request once, when it is over; the ledger
reports its transactions. What can be looked up is not counted here but read by `gauges` when
somebody asks. A label never holds what a stranger chose: models are those of the price table,
tenants those that the broker signed, both capped all the same.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from daypass_core.metrics import OTHER, Board, Capped, Count, Spread
from daypass_proxy import metric_specs as specs
from daypass_proxy.closed import CallClosed

MAX_MODELS = 50
MAX_TENANTS = 100
_MAX_KEPT = 4096
_OPERATIONS = {"messages": "chat", "chat_completions": "chat", "responses": "chat"}
"""Our endpoints in OpenTelemetry's words; an endpoint that has none keeps its own name."""
_OF_THE_PROVIDER = frozenset({"unreachable", "upstream_broken", "upstream_refused"})
_STATUSES = frozenset({400, 401, 402, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504, 529})

_Key = tuple[str | bool | None, ...]


class _Children:
    """What calls that ended alike are counted on; looked up by label once."""

    __slots__ = (
        "cache_read", "cache_write", "calls", "cost", "cut", "duration", "estimated", "failure",
        "first", "input", "operation", "output", "refusal",
    )  # fmt: skip

    calls: Count
    refusal: Count | None
    cut: Count | None
    failure: Count | None
    estimated: Count | None
    duration: Spread
    operation: Spread
    first: Spread
    input: Spread
    output: Spread
    cache_write: Count
    cache_read: Count
    cost: Count


class Metrics:
    """Counts on a registry of its own, or on the one given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.board = Board(self.registry)
        self._model = Capped(MAX_MODELS)
        self._tenant = Capped(MAX_TENANTS)
        self._kept: dict[_Key, _Children] = {}
        self._added = self.board.spread(specs.ADDED)
        self._up = self.board.count(specs.BODY_BYTES, "up")
        self._down = self.board.count(specs.BODY_BYTES, "down")
        self._admission = self.board.spread(specs.LEDGER_ADMISSION)
        self._commit = self.board.spread(specs.LEDGER_COMMIT)
        self._batch = self.board.spread(specs.LEDGER_BATCH)
        self._granted = self.board.count(specs.HOLD_EXTENSIONS, "granted")
        self._refused = self.board.count(specs.HOLD_EXTENSIONS, "refused")
        self._drained = self.board.count(specs.DRAINED_TOKENS)

    def call_closed(self, line: CallClosed, *, priced: str | None, cut: str | None) -> None:
        """Count an inference call that is over.

        `priced` is the name of its model in the price table, `cut` why it was cut, if it was.
        """
        error = _error(line)
        key = (
            line.endpoint, line.outcome, line.refused, error, line.tenant, priced, cut,
            line.estimated,
        )  # fmt: skip
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()  # the counts stay with the board; this is only the short cut
            kept = self._kept[key] = self._children(line, error, priced, cut)
        kept.calls.value += 1
        if kept.refusal is not None:
            kept.refusal.value += 1
        if line.usage is None:
            return
        if kept.cut is not None:
            kept.cut.value += 1
        if kept.failure is not None:
            kept.failure.value += 1
        if kept.estimated is not None:
            kept.estimated.value += 1
        if line.extensions or line.extensions_refused:
            self._granted.value += line.extensions
            self._refused.value += line.extensions_refused
        if line.drained_tokens is not None:
            self._drained.value += line.drained_tokens
            known = "estimated" if line.estimated else "known"
            self.board.count(specs.DRAINED_CALLS, known).value += 1
        kept.duration.observe(line.ms / 1000)
        if line.upstream_ms is not None:
            kept.operation.observe(line.upstream_ms / 1000)
        if line.first_byte_ms is not None and line.stream:
            kept.first.observe(line.first_byte_ms / 1000)
        if line.added_ms is not None:
            self._added.observe(line.added_ms / 1000)
        self._up.value += line.bytes_up or 0
        self._down.value += line.bytes_down or 0
        usage, cost = line.usage, line.cost_nano
        if usage.input_tokens is not None:
            write = usage.cache_creation_input_tokens or 0
            read = usage.cache_read_input_tokens or 0
            kept.input.observe(usage.input_tokens + write + read)
            kept.cache_write.value += write
            kept.cache_read.value += read
        if usage.output_tokens is not None:
            kept.output.observe(usage.output_tokens)
        if cost:
            kept.cost.value += cost

    def request_served(self, route: str, status: int | None, problem: str | None) -> None:
        """Count a request that was no inference call; `route` is one of the table's names."""
        self.board.count(
            specs.REQUESTS, route, "none" if status is None else str(status)
        ).value += 1
        if problem is not None:
            self.refused(problem)

    def hold_refused(self, limit: str, reason: str) -> None:
        """Count a reservation that the ledger refused; both are words from bounded sets."""
        self.board.count(specs.HOLDS_REFUSED, limit, reason).value += 1

    def refused(self, code: str) -> None:
        """Count an answer that was a problem of ours."""
        self.board.count(specs.REFUSALS, code).value += 1

    def admission_answered(self, seconds: float) -> None:
        """Count a reservation that the ledger granted or refused."""
        self._admission.observe(seconds)

    def batch_committed(self, operations: int, seconds: float) -> None:
        """Count one of the ledger's transactions; called in the ledger's thread."""
        self._commit.observe(seconds)
        self._batch.observe(operations)

    def _children(
        self, line: CallClosed, error: str | None, priced: str | None, cut: str | None
    ) -> _Children:
        board, kept = self.board, _Children()
        kept.calls = board.count(specs.CALLS, line.endpoint, line.outcome)
        kept.refusal = None if line.refused is None else board.count(specs.REFUSALS, line.refused)
        if line.usage is None:
            return kept
        model = OTHER if priced is None else self._model(priced)
        operation = (_OPERATIONS.get(line.endpoint, line.endpoint), line.provider or "", model)
        kept.cut = None if cut is None else board.count(specs.CUT_CALLS, cut)
        failed = error if line.outcome in _OF_THE_PROVIDER else None
        kept.failure = None if failed is None else board.count(specs.UPSTREAM_FAILURES, failed)
        kept.estimated = board.count(specs.ESTIMATED, line.outcome) if line.estimated else None
        kept.duration = board.spread(specs.REQUEST_DURATION, *operation, error or "")
        kept.operation = board.spread(specs.OPERATION_DURATION, *operation, error or "")
        kept.first = board.spread(specs.TIME_TO_FIRST_TOKEN, *operation)
        kept.input = board.spread(specs.TOKEN_USAGE, *operation, "input")
        kept.output = board.spread(specs.TOKEN_USAGE, *operation, "output")
        kept.cache_write = board.count(specs.CACHE_TOKENS, model, "write")
        kept.cache_read = board.count(specs.CACHE_TOKENS, model, "read")
        said = "true" if line.estimated else "false"
        kept.cost = board.count(specs.COST, self._tenant(line.tenant or ""), said)
        return kept


def _error(line: CallClosed) -> str | None:
    """Return what went wrong in one word, from a bounded set; None for a call that is complete."""
    if line.outcome == "complete":
        return None
    if line.refused is not None:
        return line.refused
    status = line.upstream_status
    if line.outcome == "upstream_refused" and status is not None:
        return str(status) if status in _STATUSES else f"{status // 100}xx"
    return line.outcome
