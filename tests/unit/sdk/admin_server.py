"""An admin listener in this process: canned answers, and what was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SANDBOX: dict[str, Any] = {
    "id": "sbx_a",
    "tenant": "acme",
    "profile": "coding",
    "state": "active",
    "deadline": "2026-11-29T21:00:00Z",
    "launch": {"mode": "reusable", "credential": "launch-jwt", "expires_at": "…"},
    "budget_usd": "5.00",
    "environment": {
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:8700",
        "ANTHROPIC_IDENTITY_TOKEN_FILE": "/run/daypass/launch.jwt",
        "ANTHROPIC_ORGANIZATION_ID": "ac me",
    },
    "files": {"/run/daypass/launch.jwt": "launch-jwt"},
}


@dataclass
class Asked:
    """One request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass
class AdminServer:
    """`answers` maps "METHOD /path", without the query, to (status, body); else 200 and {}.

    A list of bodies is answered one by one; the body "lose" drops the connection. Bytes go as they
    are. `links` are the `link` headers of a path's answers, in turn; `headers` every answer has.
    """

    url: str = ""
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    links: dict[str, list[str]] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def calls(self) -> list[str]:
        """Method and target of every request."""
        return [f"{one.method} {one.target}" for one in self.asked]


@contextmanager
def admin_server() -> Iterator[AdminServer]:
    """Run an admin server inside the block."""
    state = AdminServer()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            state.asked.append(Asked(self.command, self.path, headers, body))
            path = self.path.partition("?")[0]
            status, found = state.answers.get(f"{self.command} {path}", (200, {}))
            if isinstance(found, list):
                found = found.pop(0)
            if found == "lose":
                return
            data = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(status)
            if path in state.links and (link := state.links[path].pop(0)):
                self.send_header("link", link)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
