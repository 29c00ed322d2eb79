"""E2B as far as its SDK sees it: sandboxes made and killed, files written, and signed webhooks.

A "machine" here is what a program in it would find: its variables and its files. One that is
killed, by its SDK or by E2B itself, is told of in a webhook as E2B signs it.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email import message_from_bytes
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.servers.stack import Answer, call

API_KEY = "e2b_" + "0" * 40


@dataclass
class Machine:
    """One sandbox of E2B's; `asked` is the body that made it."""

    ident: str
    asked: dict[str, Any]
    files: dict[str, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    alive: bool = True

    def environment(self, folder: Path) -> dict[str, str]:
        """Its variables, with its files below a folder of this machine."""
        placed: dict[str, str] = {}
        for path, content in self.files.items():
            target = folder / Path(path).name
            target.write_text(content)
            placed[path] = str(target)
        return {name: placed.get(value, value) for name, value in self.asked["envVars"].items()}


@dataclass
class E2B:
    """The account of one team. `refuse` is a status to answer creations with."""

    secret: str
    webhook_url: str
    url: str = ""
    machines: dict[str, Machine] = field(default_factory=dict)
    webhooks: list[Answer] = field(default_factory=list)
    refuse: int | None = None

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """Make a machine."""
        ident = f"i{len(self.machines)}x7k2m9q4w8e1r5t3y6u"
        self.machines[ident] = Machine(ident, body)
        return {
            "templateID": body["templateID"],
            "sandboxID": ident,
            "clientID": "c0",
            "envdVersion": "0.6.2",
            "envdAccessToken": "envd-token",
        }

    def kill(self, ident: str) -> bool:
        """Kill a machine and tell of it; False when there is none."""
        machine = self.machines.get(ident)
        if machine is None or not machine.alive:
            return False
        machine.alive = False
        said = {
            "version": "v2",
            "id": f"evt-{ident}",
            "type": "sandbox.lifecycle.killed",
            "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "event_data": {"sandbox_metadata": machine.asked["metadata"]},
            "sandbox_id": ident,
            "sandbox_template_id": machine.asked["templateID"],
            "sandbox_team_id": "team",
        }
        body = json.dumps(said).encode()
        digest = base64.b64encode(hashlib.sha256(self.secret.encode() + body).digest())
        headers = {
            "content-type": "application/json",
            "e2b-webhook-id": "wh",
            "e2b-delivery-id": f"dl-{ident}",
            "e2b-signature-version": "v1",
            "e2b-signature": digest.rstrip(b"=").decode(),
        }
        self.webhooks.append(call(self.webhook_url, "POST", "/v1/webhooks/e2b", body, headers))
        return True


class _Handler(BaseHTTPRequestHandler):
    account: E2B
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Make a sandbox, or write a file into one."""
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = urlsplit(self.path)
        if path.path == "/files":
            self._write(body, parse_qs(path.query))
        elif path.path != "/v2/sandboxes" or self.headers.get("x-api-key") != API_KEY:
            self._send(401, {"code": 401, "message": "unauthorized"})
        elif self.account.refuse is not None:
            self._send(self.account.refuse, {"code": self.account.refuse, "message": "no room"})
        else:
            self._send(201, self.account.create(json.loads(body)))

    def do_DELETE(self) -> None:
        """Kill one."""
        killed = self.account.kill(self.path.rsplit("/", 1)[1])
        self._send(204 if killed else 404, None if killed else {"code": 404, "message": "none"})

    def _write(self, body: bytes, query: dict[str, list[str]]) -> None:
        machine = self.account.machines[self.headers["e2b-sandbox-id"]]
        assert self.headers["x-access-token"] == "envd-token"
        head = f"content-type: {self.headers['content-type']}\r\n\r\n".encode()
        (part,) = message_from_bytes(head + body, policy=HTTP).iter_parts()
        written = query.get("path", [str(part.get_filename())])[0]
        payload = part.get_payload(decode=True)
        assert isinstance(payload, bytes)
        machine.files[written] = payload.decode()
        machine.owners[written] = query.get("username", ["user"])[0]
        self._send(200, [{"name": Path(written).name, "path": written, "type": "file"}])

    def _send(self, status: int, found: object) -> None:
        data = b"" if found is None else json.dumps(found).encode()
        self.send_response(status)
        if data:
            self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def e2b(secret: str, webhook_url: str) -> Iterator[E2B]:
    """Run E2B inside the block; `secret` is that of its webhook to `webhook_url`."""
    account = E2B(secret, webhook_url)
    handler = type("Handler", (_Handler,), {"account": account})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    account.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield account
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
