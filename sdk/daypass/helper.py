"""The loopback helper: `http://127.0.0.1:PORT` for clients that know nothing but a URL and a key.

They send any key; it replaces that with the access token of the moment and passes everything else
on as it came, answers piece by piece. Whoever reaches the port has the sandbox's day pass, so
it listens on loopback alone and answers no other name, which keeps web pages out.
Runs inside `daypass run --helper`, or alone as `daypass helper`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import threading
from argparse import Namespace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from daypass._errors import DaypassError, Refused
from daypass._http import Origin, may_renew
from daypass._token import TokenProvider
from daypass.forward import parse_listen

DEFAULT_LISTEN = "127.0.0.1:8789"
# What clients are told to send; the helper reads no key.
KEY = "daypass"
# Longer than any call may take at the proxy, which ends it by itself.
SILENCE_SECONDS = 3700.0
# The proxy's own limit is lower for every route that a client has.
MOST_BODY = 64 * 1024 * 1024
_CHUNK = 65_536
_RESET = struct.pack("ii", 1, 0)  # close() sends RST instead of a tidy end
_CREDENTIALS = {"authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie"}
_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"}
_OURS = _CREDENTIALS | _HOP | {"host", "content-length"}


class Helper:
    """Listens on a loopback address and passes calls on to the proxy of `provider`.

    `url` is what clients are given. Raises `DaypassError` when the address is taken.
    """

    def __init__(self, provider: TokenProvider, listen: tuple[str, int]) -> None:
        handler = type("_Bound", (_Handler,), {"provider": provider})
        try:
            self._server = _Server(listen, handler)
        except OSError as error:
            raise DaypassError(
                f"cannot listen on {listen[0]}:{listen[1]}: {error.strerror}",
                hint="choose another address with --listen",
            ) from error
        host, port = self._server.server_address[:2]
        self.url = f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def start(self) -> None:
        """Serve in a background thread."""
        threading.Thread(target=self.serve, name="daypass-helper", daemon=True).start()

    def serve(self) -> None:
        """Serve until `close`."""
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """Stop listening; calls under way go on until they end."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listen: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        super().__init__(listen, handler)

    def server_bind(self) -> None:
        """Bind without the name look-up of the base class."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no matter."""


class _Handler(BaseHTTPRequestHandler):
    provider: TokenProvider
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # events of a stream are small

    def handle_one(self) -> None:
        """Pass one call on; what stands in the way of it is answered here."""
        try:
            refused = self._refused()
            if refused is not None:
                self._answer(*refused)
                return
            length = int(self.headers.get("content-length") or 0)
            body = self.rfile.read(length)
            if len(body) == length:  # else the client is gone
                self._pass_on(body)
        except Refused as error:
            self._answer(401, str(error))
        except DaypassError as error:
            self._answer(503, str(error))
        except ValueError:
            self._answer(400, "the path or a header is malformed")

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: prompts and tokens pass here."""

    def _refused(self) -> tuple[int, str] | None:
        port = self.connection.getsockname()[1]
        if self.headers.get("host") not in {f"{name}:{port}" for name in _NAMES}:
            return 403, "this helper serves loopback alone"
        if self.headers.get("upgrade"):
            return 426, "plain HTTP alone is served here"
        length = self.headers.get("content-length") or "0"
        if "transfer-encoding" in self.headers or not (length.isascii() and length.isdigit()):
            return 411, "send the length of the body"
        return (413, "the body is too large") if int(length) > MOST_BODY else None

    def _pass_on(self, body: bytes) -> None:
        """Ask the proxy; once more, with another token, when it says that this one has ended."""
        origin = Origin(self.provider.base_url, answer_seconds=SILENCE_SECONDS)
        token = self.provider.token()
        with contextlib.closing(origin.connection()) as upstream:
            answer = self._ask(origin, upstream, token, body)
            retry, said = answer.getheader("x-should-retry"), answer.getheader("www-authenticate")
            if not may_renew(answer.status, retry, said):
                self._relay(answer)
                return
        token = self.provider.token(rejected=token)
        with contextlib.closing(origin.connection()) as upstream:
            self._relay(self._ask(origin, upstream, token, body))

    def _ask(
        self, origin: Origin, upstream: http.client.HTTPConnection, token: str, body: bytes
    ) -> http.client.HTTPResponse:
        try:
            upstream.connect()
            upstream.sock.settimeout(SILENCE_SECONDS)
            upstream.putrequest(self.command, origin.target(self.path), skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _OURS:
                    upstream.putheader(name, value)
            upstream.putheader("authorization", f"Bearer {token}")
            if body or self.command not in ("GET", "HEAD", "DELETE"):
                upstream.putheader("content-length", str(len(body)))
            upstream.endheaders(body or None)
            return upstream.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise origin.unreachable(error, sent=True) from None

    def _relay(self, answer: http.client.HTTPResponse) -> None:
        """Pass an answer on as it comes; one that breaks off breaks off here too."""
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        chunked = answer.length is None and self.command != "HEAD"
        if chunked:
            self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            while data := answer.read1(_CHUNK):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
            if answer.length:
                raise http.client.IncompleteRead(b"")
            if chunked:
                self.wfile.write(b"0\r\n\r\n")
        except (OSError, http.client.HTTPException):
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _answer(self, status: int, text: str) -> None:
        """An error of our own, in a shape that clients of both dialects read."""
        kind = _KINDS.get(status, "invalid_request_error")
        error = {"type": kind, "message": text, "code": kind, "param": None}
        data = json.dumps({"type": "error", "error": error}).encode()
        self.close_connection = True  # a body may lie unread
        self.send_response_only(status)
        for name, value in {
            "content-type": "application/json",
            "content-length": str(len(data)),
            "connection": "close",
            "x-should-retry": "true" if status == 503 else "false",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


_NAMES = ("127.0.0.1", "localhost", "[::1]")
_KINDS = {401: "authentication_error", 403: "permission_error", 503: "api_error"}


def command(options: Namespace) -> int:
    """Serve until interrupted, as `daypass helper`."""
    from daypass._render import show_json

    launch = None if options.launch is None else Path(options.launch)
    provider = TokenProvider(options.base_url, launch_file=launch)
    provider.verified()
    helper = Helper(provider, parse_listen(options.listen or DEFAULT_LISTEN))
    if options.json:
        show_json({"url": helper.url})
    else:
        print(f"serving {helper.url}", flush=True)
    try:
        helper.serve()
    except KeyboardInterrupt:
        pass
    finally:
        helper.close()
    return 0
