"""A stub of Anthropic's usage report of Messages, for tests of the reconciliation.

It speaks the Admin API's form exactly: buckets of a day of UTC that hold one result for each model,
pages, and errors in the API's envelope. It takes its own admin key and nothing else.
"""

import json
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

PATH = "/v1/organizations/usage_report/messages"
Counts = Mapping[str, int]
"""Counts by the names of our `Kind`."""


@dataclass
class Refusal:
    """An answer that is no report."""

    status: int
    kind: str = "api_error"
    message: str = "Internal server error"
    headers: Mapping[str, str] = field(default_factory=dict)


class UsageReport:
    """The stub; a server while its context lasts. `usage` is what it reports, by day and model."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.usage: dict[tuple[date, str | None], Counts] = {}
        self.days_a_page = 31
        self.queries: list[dict[str, list[str]]] = []
        self.refusals: deque[Refusal] = deque()
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> "UsageReport":
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Origin of the stub."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(
        self, target: str, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, object], Mapping[str, str]]:
        """Status, document and headers for one request."""
        refusal = self._refusal(target, headers)
        if refusal is not None:
            error = {"type": refusal.kind, "message": refusal.message}
            document = {"type": "error", "error": error, "request_id": "req_stub"}
            return refusal.status, document, refusal.headers
        query = parse_qs(urlsplit(target).query, strict_parsing=True)
        self.queries.append(query)
        return 200, self._page(query), {}

    def _refusal(self, target: str, headers: Mapping[str, str]) -> Refusal | None:
        if urlsplit(target).path != PATH:
            return Refusal(404, "not_found_error", "Not found")
        if headers.get("x-api-key") != self.key:
            return Refusal(401, "authentication_error", "invalid x-api-key")
        if headers.get("anthropic-version") != "2023-06-01":
            return Refusal(400, "invalid_request_error", "anthropic-version: header is required")
        return self.refusals.popleft() if self.refusals else None

    def _page(self, query: Mapping[str, Sequence[str]]) -> Mapping[str, object]:
        assert query["bucket_width"] == ["1d"]
        assert query["group_by[]"] == ["model"]
        since, until = (
            datetime.fromisoformat(query[name][0]).astimezone(UTC).date()
            for name in ("starting_at", "ending_at")
        )
        if "page" in query:
            since = date.fromisoformat(query["page"][0].removeprefix("page_"))
        last = min(until, since + timedelta(days=min(self.days_a_page, int(query["limit"][0]))))
        days = [since + timedelta(days=n) for n in range((last - since).days)]
        more = last < until
        return {
            "data": [self._bucket(day) for day in days],
            "has_more": more,
            "next_page": f"page_{last}" if more else None,
        }

    def _bucket(self, day: date) -> Mapping[str, object]:
        return {
            "starting_at": f"{day}T00:00:00Z",
            "ending_at": f"{day + timedelta(days=1)}T00:00:00Z",
            "results": [
                result(model, counts) for (on, model), counts in self.usage.items() if on == day
            ],
        }


def result(model: str | None, counts: Counts) -> dict[str, object]:
    """One entry of a bucket; what was not grouped by is null."""
    return {
        "uncached_input_tokens": counts.get("input", 0),
        "cache_creation": {
            "ephemeral_1h_input_tokens": counts.get("cache_write_1h", 0),
            "ephemeral_5m_input_tokens": counts.get("cache_write_5m", 0),
        },
        "cache_read_input_tokens": counts.get("cache_read", 0),
        "output_tokens": counts.get("output", 0),
        "server_tool_use": {"web_search_requests": counts.get("web_search", 0)},
        "api_key_id": None,
        "workspace_id": None,
        "model": model,
        "service_tier": None,
        "context_window": None,
        "inference_geo": None,
        "account_id": None,
        "service_account_id": None,
    }


def _handler(stub: UsageReport) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            sent = {name.lower(): value for name, value in self.headers.items()}
            status, document, headers = stub.answer(self.path, sent)
            body = json.dumps(document).encode()
            self.send_response(status)
            for name, value in {**headers, "content-type": "application/json"}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    return Handler
