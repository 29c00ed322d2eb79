"""The outermost step: what may call itself an HTTP request here.

uvicorn and httptools parse; this subclass adds the limits they do not have and refuses every
message two parsers could read differently (RFC 9112 §3.2, §6.3, §11.2). What reaches `app` has one
Host, one framing, a plain origin-form target, bounded headers that are frozen before the body, and
deadlines for head, body and write stall. Refusals are written here, in a provider's words.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from daypass_core.ids import new_id
from daypass_core.log import event, get_logger
from daypass_core.problem import Code, Problem, Refusal, refuse
from daypass_proxy.exchange import ABORT_EXTENSION, UNIX_PEER
from daypass_proxy.providers import Rendered

log = get_logger(__name__)

Render = Callable[[Problem, str], Rendered]
"""Turns a problem, and our id of the request, into an answer: `Provider.render`."""

_TARGET = re.compile(rb"/[\x21\x22\x24-\x7e]*")
_HOST = re.compile(rb"[A-Za-z0-9.:\[\]_~%-]{1,255}")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_LENGTH = re.compile(rb"[0-9]{1,15}")
# Bytes that are not payload (chunk heads, extensions, an endless trailer) allowed beside a body.
_CHUNK_OVERHEAD = 64 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may ask of us; sizes in bytes, times in seconds."""

    header_bytes: int = 32 * 1024
    header_count: int = 64
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    body_bytes_per_second: int = 64 * 1024
    write_stall_seconds: float = 30.0
    # After an answer was given early, how long the rest of the body is read and thrown away, so
    # that the client gets to read the answer instead of a connection reset.
    drain_seconds: float = 5.0
    linger_seconds: float = 1.0
    discard_bytes: int = 256 * 1024


class _Phase(Enum):
    IDLE = auto()  # between messages
    HEAD = auto()  # request line or headers are arriving
    BODY = auto()  # headers are frozen, the body is arriving
    SERVING = auto()  # the message is complete, the answer is not
    REFUSED = auto()  # nothing more is believed on this connection


def check_head(
    method: bytes, version: str, target: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    """Refuse a request head that is ambiguous or asks for what is not offered; raises Refusal."""
    if version not in ("1.0", "1.1"):
        raise refuse(Code.INVALID_REQUEST, "only HTTP/1.1 is spoken here")
    if method in (b"CONNECT", b"TRACE"):
        raise refuse(Code.INVALID_REQUEST, "method is not offered")
    if not _TARGET.fullmatch(target):
        raise refuse(
            Code.INVALID_REQUEST, "request target must be a plain path, as in /v1/messages"
        )
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        if b"_" in name:
            raise refuse(Code.INVALID_REQUEST, "header names must not contain '_'")
        if _CONTROL.search(value):
            raise refuse(Code.INVALID_REQUEST, "header value contains a control character")
        if not _is_utf8(value):
            # Not to be written again byte for byte: what goes up would not be what was checked.
            raise refuse(Code.INVALID_REQUEST, "header value is not valid UTF-8")
        found.setdefault(name, []).append(value)
    hosts = found.get(b"host", [])
    if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
        raise refuse(Code.INVALID_REQUEST, "exactly one valid Host header is needed")
    _check_framing(version, found)
    _check_offers(found)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _check_framing(version: str, found: dict[bytes, list[bytes]]) -> None:
    """One way to tell where the body ends, or none (RFC 9112 §6.3)."""
    lengths = found.get(b"content-length", [])
    codings = found.get(b"transfer-encoding", [])
    if lengths and codings:
        raise refuse(Code.INVALID_REQUEST, "send Content-Length or Transfer-Encoding, not both")
    if len(lengths) > 1 or (lengths and not _LENGTH.fullmatch(lengths[0])):
        raise refuse(Code.INVALID_REQUEST, "Content-Length must be one number")
    if codings and (codings != [b"chunked"] or version != "1.1"):
        raise refuse(Code.INVALID_REQUEST, "Transfer-Encoding may only be 'chunked' in HTTP/1.1")
    if b"trailer" in found:
        raise refuse(Code.INVALID_REQUEST, "trailers are not accepted")


def _check_offers(found: dict[bytes, list[bytes]]) -> None:
    """Refuse what would change the protocol under our feet."""
    if upgrades := found.get(b"upgrade"):
        if any(b"websocket" in value.lower() for value in upgrades):
            raise refuse(Code.UPGRADE_REFUSED, "WebSocket is not offered; use plain HTTP requests")
        raise refuse(Code.INVALID_REQUEST, "Upgrade is not offered; switch off h2c")
    if any(value.lower() != b"100-continue" for value in found.get(b"expect", [])):
        raise refuse(Code.INVALID_REQUEST, "Expect may only be 100-continue")


class GuardedProtocol(HttpToolsProtocol):
    """One client connection inside our limits; a configured subclass comes from `guarded`."""

    limits: Limits
    render: Render

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        # uvicorn lets its parser read on after "Connection: close"; ours keeps llhttp's default.
        self.parser = httptools.HttpRequestParser(self)
        self._phase = _Phase.IDLE
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._fed = 0  # raw bytes since the head began
        self._head = 0  # bytes of the target and headers seen so far
        self._wire = 0  # raw bytes since the body began
        self._payload = 0  # body bytes among them
        self._announced = 0
        self._body_began = 0.0
        self._discarded = 0

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the head deadline at once: an idle connect costs a descriptor."""
        super().connection_made(transport)
        self._arm(self.limits.header_seconds, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers with the connection."""
        self._disarm()
        self._unset_stall()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser in pieces that cannot pass the head's limit."""
        if self._phase is _Phase.REFUSED:
            self._discard(len(data))
            return
        self._unset_keepalive_if_required()
        if self._phase is _Phase.IDLE and self._fed == 0 and self.cycle is not None:
            self._arm(self.limits.header_seconds, self._head_late)
        view = memoryview(data)
        try:
            while view:
                view = view[self._feed(view) :]
        except Refusal as refusal:
            self._refuse(refusal)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__
            if not isinstance(cause, Refusal):
                cause = refuse(Code.INVALID_REQUEST, "request is not valid HTTP/1.1")
            self._refuse(cause)

    def _feed(self, view: memoryview) -> int:
        """Give the parser the next piece of `view`; return how many bytes it took."""
        if self._phase in (_Phase.IDLE, _Phase.HEAD):
            piece = view[: max(1, self.limits.header_bytes - self._fed)]
            self._fed += len(piece)
            self.parser.feed_data(piece)
            still_head = self._phase in (_Phase.IDLE, _Phase.HEAD)
            if still_head and self._fed >= self.limits.header_bytes:
                raise refuse(Code.HEADERS_TOO_LARGE)
            return len(piece)
        self._wire += len(view)
        self.parser.feed_data(view)
        if self._phase is _Phase.BODY and self._wire > 2 * self._payload + _CHUNK_OVERHEAD:
            raise refuse(Code.INVALID_REQUEST, "chunks carry too little; send larger ones")
        return len(view)

    # -- parser callbacks

    def on_message_begin(self) -> None:
        """Begin a head; a second request before the first was answered is not taken."""
        if self.cycle is not None and not self.cycle.response_complete:
            raise refuse(Code.INVALID_REQUEST, "wait for the answer before the next request")
        super().on_message_begin()
        # ASGI leaves the values of extensions to their authors; uvicorn's type knows only dicts.
        extensions: dict[str, Any] = {ABORT_EXTENSION: self.transport.abort}
        self.scope["extensions"] = extensions
        self._phase = _Phase.HEAD
        self._head = 0

    def on_url(self, url: bytes) -> None:
        """Count the target into the head."""
        self._grow_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header of the head; one that comes later is a trailer and ends the request."""
        if self._phase is not _Phase.HEAD:
            raise refuse(Code.INVALID_REQUEST, "trailers are not accepted")
        self._grow_head(len(name) + len(value) + 4)
        if len(self.headers) >= self.limits.header_count:
            raise refuse(
                Code.HEADERS_TOO_LARGE, f"more than {self.limits.header_count} request headers"
            )
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the head, freeze it, start the body's deadline, hand over to the app."""
        check_head(self.parser.get_method(), self.parser.get_http_version(), self.url, self.headers)
        # The app keeps its own list: whatever the parser says later is not in it.
        self.scope["headers"] = list(self.headers)
        self._phase = _Phase.BODY
        self._wire = self._payload = 0
        self._announced = next(
            (int(value) for name, value in self.headers if name == b"content-length"), 0
        )
        self._body_began = self.loop.time()
        self._arm(self.limits.body_seconds, self._body_late)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count the payload."""
        self._payload += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole; reading goes on only to notice that the client has gone."""
        self._disarm()
        self._fed = 0
        if self.cycle.response_complete:
            self._phase = _Phase.IDLE
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            self._phase = _Phase.SERVING
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Await the next request, or the rest of a body that was answered early."""
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._phase is _Phase.SERVING:
            self._phase = _Phase.IDLE
        elif self._phase is _Phase.BODY:
            self._unset_keepalive_if_required()
            self._arm(self.limits.drain_seconds, self.transport.close)

    # -- flow control

    def pause_writing(self) -> None:
        """Give a client that does not read a bounded time."""
        super().pause_writing()
        self._unset_stall()
        self._stall = self.loop.call_later(self.limits.write_stall_seconds, self._stalled)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._unset_stall()
        super().resume_writing()

    def _unset_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _stalled(self) -> None:
        event(log, "client_stalled", peer=self._peer())
        self.transport.abort()

    # -- deadlines

    def _arm(self, seconds: float, action: Any) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(seconds, action)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _head_late(self) -> None:
        if self._phase is _Phase.IDLE:
            self.transport.close()  # nothing was asked, so nothing is answered
            return
        self._refuse(refuse(Code.REQUEST_TIMEOUT, "request headers did not arrive in time"))

    def _body_late(self) -> None:
        """Allow 30 s and the time the body, as announced or as come, needs at the least rate."""
        size = max(self._announced, self._payload)
        allowed = self.limits.body_seconds + size / self.limits.body_bytes_per_second
        left = self._body_began + allowed - self.loop.time()
        if left > 0:
            self._arm(left, self._body_late)
        else:
            self._refuse(refuse(Code.REQUEST_TIMEOUT))

    # -- refusing

    def _grow_head(self, size: int) -> None:
        self._head += size
        if self._head > self.limits.header_bytes:
            raise refuse(Code.HEADERS_TOO_LARGE)

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > self.limits.discard_bytes:
            self.transport.abort()

    def _refuse(self, refusal: Refusal) -> None:
        """Believe nothing more on this connection, and say so where that is still possible."""
        phase, self._phase = self._phase, _Phase.REFUSED
        self._disarm()
        event(
            log, "request_refused", peer=self._peer(), code=refusal.problem.code,
            reason=refusal.problem.title,
        )  # fmt: skip
        if phase is _Phase.SERVING:
            # An earlier request is still being answered: it gets its answer, then we close.
            self.cycle.keep_alive = False
            return
        if phase is _Phase.BODY:
            if self.cycle.response_complete:
                self.transport.close()
                return
            # The app sees a client that went away; only the words below reach it.
            started = self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if started:
                self.transport.abort()
                return
        self._write_refusal(refusal)

    def _write_refusal(self, refusal: Refusal) -> None:
        """Answer, half-close, and read a little on, so that the answer outruns the reset."""
        if self.transport.is_closing():
            return
        rendered = self.render(refusal.problem, new_id("req"))
        headers = [
            *self.server_state.default_headers,
            *rendered.headers,
            (b"content-length", str(len(rendered.body)).encode()),
            (b"connection", b"close"),
        ]
        if rendered.status == 426:
            headers.append((b"upgrade", b"HTTP/1.1"))  # RFC 9110 §15.5.22
        lines = [name + b": " + value + b"\r\n" for name, value in headers]
        self.transport.write(
            b"".join([STATUS_LINE[rendered.status], *lines, b"\r\n", rendered.body])
        )
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._arm(self.limits.linger_seconds, self.transport.close)

    def _peer(self) -> str:
        return self.client[0] if self.client else UNIX_PEER


def guarded(limits: Limits, *, render: Render) -> type[GuardedProtocol]:
    """Return the protocol class with `limits`, for uvicorn's `http` setting."""
    configured = {"limits": limits, "render": staticmethod(render)}
    return type("ConfiguredGuard", (GuardedProtocol,), configured)
