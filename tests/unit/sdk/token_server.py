"""A token endpoint in this process: the broker's rules for one sandbox, and faults on demand.

Serves a TCP port, or a Unix socket when given a path. `/v1/messages` answers whoever holds the
newest token and 401 to everybody else, so that official clients can be driven against it;
`/v1/infer` too, unless one of `answers` is to be given.
"""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LAUNCH = "launch-credential-1"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
EXPIRED = {
    "x-should-retry": "false",
    "www-authenticate": 'Bearer error="invalid_token",'
    ' error_description="The access token expired"',
}
"""As the proxy says it."""


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
        self.ready = True
        self.clock_ahead = 0  # seconds, of the client's
        self.faults: list[tuple[int, dict[str, Any], dict[str, str]] | str] = []
        self.asked: list[dict[str, Any]] = []
        self.incidents: list[str] = []
        self.own_details: list[dict[str, Any]] = []
        self.authorizations: list[str] = []
        self.headers: dict[str, str] = {}  # of the last call, with names in lower case
        self.prompts: list[dict[str, Any]] = []
        self.answers: list[tuple[int, Any, dict[str, str]]] = []
        self.hold = threading.Event()
        self.hold.set()
        self.arrived = threading.Semaphore(0)
        self._issued = 0
        self._bought = 0
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

    def itself(self) -> dict[str, Any]:
        """What the proxy tells about the newest token, as far as anybody here reads it."""
        return {
            "sandbox": "sbx_1",
            "tenant": "acme",
            "token_id": f"tok_{self._issued}",
            "expires_at": int(time.time() + self.ttl) + self.clock_ahead,
            "authorization_details": self.own_details,
            "budget": {"remaining_usd": "4.50"},
        }

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
        elif body.get("subject_token_type") == ACCESS_TOKEN:
            self._bought += 1
            child = f"child-{self._issued + self._bought}"
            return 200, {"access_token": child, "token_type": "Bearer", "expires_in": 600}, {}
        else:
            named = "refresh_token" if body["grant_type"] == "refresh_token" else "subject_token"
            presented = int(body[named].removeprefix("generation-"))
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
        """`/readyz`; `/v1/self`: whether the token presented is the newest and not revoked."""
        if self.path == "/readyz":
            found = {"status": "ready"} if self.state.ready else {"missing": ["ledger"]}
            self._send(200 if self.state.ready else 503, found, {})
            return
        given = self.headers.get("authorization", "")
        good = given == f"Bearer {self.state.newest}" and not self.state.revoked
        self._send(200 if good else 401, self.state.itself() if good else {}, {})

    def do_POST(self) -> None:
        """Answer the three paths there are."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/v1/infer":
            self.state.prompts.append(body)
            self._send(*self._infer())
            return
        is_token = self.path == "/v1/oauth/token"
        answer = self.state.exchange(body) if is_token else self._message()
        if answer is None:
            self.close_connection = True
            return
        self._send(*answer)

    def _send(self, status: int, found: Any, headers: dict[str, str]) -> None:
        data = json.dumps(found).encode()
        self.send_response(status)
        for name, value in {**headers, "content-type": "application/json"}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _infer(self) -> tuple[int, Any, dict[str, str]]:
        status, found, headers = self._message()
        if self.state.answers:
            return self.state.answers.pop(0)
        return status, {"completion": "pong"} if status == 200 else found, headers

    def _message(self) -> tuple[int, dict[str, Any], dict[str, str]]:
        given = self.headers.get("authorization", "")
        self.state.authorizations.append(given)
        self.state.headers = {name.lower(): value for name, value in self.headers.items()}
        if given != f"Bearer {self.state.newest}":
            error = {"type": "authentication_error", "message": "token expired"}
            return 401, {"type": "error", "error": error}, EXPIRED
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
