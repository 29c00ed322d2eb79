"""A token endpoint in this process: the broker's rules for one sandbox, and faults on demand.

Serves a TCP port, or a Unix socket when given a path. `/v1/messages` answers whoever holds the
newest token and 401 to everybody else, so that official clients can be driven against it.
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LAUNCH = "launch-credential-1"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class TokenServer:
    """The state of one sandbox, and what was asked.

    `faults` are taken one per exchange: a (status, body, headers) to answer instead, or "lose" to
    do the work and drop the connection. `hold` makes exchanges wait until it is set.
    """

    def __init__(self) -> None:
        self.url = ""
        self.launch = LAUNCH
        self.ttl = 600.0
        self.single_use = False
        self.revoked = False
        self.faults: list[tuple[int, dict[str, Any], dict[str, str]] | str] = []
        self.asked: list[dict[str, Any]] = []
        self.incidents: list[str] = []
        self.authorizations: list[str] = []
        self.hold = threading.Event()
        self.hold.set()
        self.arrived = threading.Semaphore(0)
        self._issued = 0
        self._generation = 0
        self._lock = threading.Lock()

    @property
    def newest(self) -> str:
        """The token that was issued last."""
        return f"token-{self._issued}"

    @property
    def exchanges(self) -> int:
        """How many requests reached the token endpoint."""
        return len(self.asked)

    def exchange(self, body: dict[str, Any]) -> tuple[int, dict[str, Any], dict[str, str]] | None:
        """Answer one exchange; None drops the connection."""
        with self._lock:
            self.asked.append(body)
        self.arrived.release()
        assert self.hold.wait(20)
        with self._lock:
            fault = self.faults.pop(0) if self.faults else None
            if isinstance(fault, tuple):
                return fault
            answer = self._answer(body)
            return None if fault == "lose" else answer

    def _answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any], dict[str, str]]:
        if self.revoked:
            return _refused("sandbox revoked; an administrator must restore it")
        if body["grant_type"] == JWT_BEARER:
            if body["assertion"] != self.launch:
                return _refused("launch credential replaced")
            if self.single_use and self._generation:
                self.incidents.append("launch_reused")
                return _refused("launch credential was used before")
            self._generation = 1
        else:
            presented = int(body["subject_token"].removeprefix("generation-"))
            if presented == self._generation:
                self._generation += 1
            elif presented != self._generation - 1:
                self.incidents.append("clone")
                return _refused("lineage quarantined")
        self._issued += 1
        answer = {"access_token": self.newest, "token_type": "Bearer", "expires_in": self.ttl}
        if self.single_use:
            answer["refresh_token"] = f"generation-{self._generation}"
        return 200, answer, {}


def _refused(text: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    return 400, {"error": "invalid_grant", "error_description": text}, {}


class _Handler(BaseHTTPRequestHandler):
    state: TokenServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """`/v1/self`: whether the token presented is the newest and not revoked."""
        given = self.headers.get("authorization", "")
        good = given == f"Bearer {self.state.newest}" and not self.state.revoked
        self._send(200 if good else 401, {}, {})

    def do_POST(self) -> None:
        """Answer the two paths there are."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        is_token = self.path == "/v1/oauth/token"
        answer = self.state.exchange(body) if is_token else self._message()
        if answer is None:
            self.close_connection = True
            return
        self._send(*answer)

    def _send(self, status: int, found: dict[str, Any], headers: dict[str, str]) -> None:
        data = json.dumps(found).encode()
        self.send_response(status)
        for name, value in {**headers, "content-type": "application/json"}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _message(self) -> tuple[int, dict[str, Any], dict[str, str]]:
        given = self.headers.get("authorization", "")
        self.state.authorizations.append(given)
        if given != f"Bearer {self.state.newest}":
            error = {"type": "authentication_error", "message": "token expired"}
            return 401, {"type": "error", "error": error}, {}
        usage = {"input_tokens": 1, "output_tokens": 1}
        content = [{"type": "text", "text": "pong"}]
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
        more = {"content": content, "stop_reason": "end_turn", "stop_sequence": None}
        return 200, {**message, **more, "usage": usage}, {}

    def address_string(self) -> str:
        """Unix sockets have no address to log."""
        return "client"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextmanager
def token_server(path: Path | None = None) -> Iterator[TokenServer]:
    """Run a token server inside the block."""
    state = TokenServer()
    handler = type("Handler", (_Handler,), {"state": state})
    server: socketserver.BaseServer
    if path is None:
        tcp = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        state.url = f"http://127.0.0.1:{tcp.server_address[1]}"
        server = tcp
    else:
        server = _UnixServer(str(path), handler)
        state.url = f"unix:{path}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        state.hold.set()
        server.shutdown()
        thread.join()
        server.server_close()
