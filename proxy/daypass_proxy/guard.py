"""The outermost step: what may call itself an HTTP request here.

uvicorn and httptools parse; this subclass adds the limits they do not have and refuses every
message two parsers could read differently (`guard_head`). What reaches `app` has one Host, one
framing, a plain origin-form target, bounded headers that are frozen before the body, and deadlines
for head, body and write stall. Refusals are written here, in a provider's words.
"""

import asyncio
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from daypass_core.ids import new_id
from daypass_core.log import event, failed, get_logger
from daypass_core.problem import Code, Problem, Refusal, refuse
from daypass_proxy.exchange import ABORT_EXTENSION, GONE_EXTENSION, UNIX_PEER
from daypass_proxy.guard_answer import AnswerCycle, whole_answer
from daypass_proxy.guard_deadline import Deadline
from daypass_proxy.guard_head import check_head
from daypass_proxy.providers import Rendered

log = get_logger(__name__)

Render = Callable[[Problem, str], Rendered]
"""Turns a problem, and our id of the request, into an answer: `Provider.render`."""

# Bytes that are not payload (chunk heads, extensions, an endless trailer) allowed beside a body.
_CHUNK_OVERHEAD = 64 * 1024
_EMPTY_LINES = re.compile(rb"(?:\r\n)*\r?")
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may ask of us; sizes in bytes, times in seconds."""

    header_bytes: int = 32 * 1024
    header_count: int = 64
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    body_bytes_per_second: int = 64 * 1024
    write_stall_seconds: float = 30.0
    # After an answer was given early, for how long and how much of the rest of the body is read
    # and thrown away, so that the client gets to read the answer instead of a connection reset.
    drain_seconds: float = 5.0
    drain_bytes: int = 64 * 1024 * 1024
    linger_seconds: float = 1.0
    discard_bytes: int = 256 * 1024


class _Phase(Enum):
    IDLE = auto()  # between messages
    HEAD = auto()  # request line or headers are arriving
    BODY = auto()  # headers are frozen, the body is arriving
    SERVING = auto()  # the message is complete, the answer is not
    REFUSED = auto()  # nothing more is believed on this connection


# Read many times for each request; a member of an Enum is not a plain attribute.
_IDLE, _HEAD, _BODY, _SERVING, _REFUSED = _Phase


class GuardedProtocol(HttpToolsProtocol):
    """One client connection inside our limits; a configured subclass comes from `guarded`."""

    limits: Limits
    render: Render
    cycle: AnswerCycle

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
        self._phase = _IDLE
        limits = self.limits
        self._deadline = Deadline(self.loop, min(limits.header_seconds, limits.body_seconds))
        self._stall: asyncio.TimerHandle | None = None
        self._fed = 0  # raw bytes since the head began
        self._half_line = b""  # a carriage return before the head, its line feed to come
        self._most_headers = 0  # how many headers may come; none before or after a head
        self._wire = 0  # raw bytes since the body began
        self._payload = 0  # body bytes among them
        self._announced = 0
        self._body_began = 0.0
        self._discarded = 0

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the head deadline at once: an idle connect costs a descriptor."""
        super().connection_made(transport)
        # ASGI leaves the values of extensions to their authors; uvicorn's type knows only dicts.
        self._extensions: dict[str, Any] = {
            ABORT_EXTENSION: self._abort,
            GONE_EXTENSION: self._when_gone,
        }
        self._deadline.set(self.limits.header_seconds, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers with the connection."""
        self._deadline.close()
        self._unset_stall()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser in pieces that cannot pass the head's limit."""
        if self._phase is _REFUSED:
            self._discard(len(data))
            return
        before = self._phase
        fresh = before is _IDLE and self._fed == 0
        try:
            if before is _IDLE and (self._half_line or data[0] in b"\r\n"):
                self._check_empty_lines(data)
            room = self.limits.header_bytes - self._fed
            if len(data) > room and (self._phase is _IDLE or self._phase is _HEAD):
                view = memoryview(data)
                self._feed(view[:room])
                self._feed(view[room:])
            else:
                self._feed(data)
        except Refusal as refusal:
            self._refuse(refusal)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__
            if isinstance(cause, Refusal):
                self._refuse(cause)
            elif cause is None:
                self._refuse(refuse(Code.INVALID_REQUEST, "request is not valid HTTP/1.1"))
            else:
                failed(log, "request_failed", cause)
                self._refuse(refuse(Code.INTERNAL_ERROR))
        # What came whole in one read needs no deadline, so none is set before the read is done.
        phase = self._phase
        if phase is _BODY and before is not _BODY:
            self._body_began = self.loop.time()
            self._deadline.set(self.limits.body_seconds, self._body_late)
        elif fresh and self.cycle is not None and (phase is _HEAD or phase is _IDLE):
            self._deadline.set(self.limits.header_seconds, self._head_late)

    def _check_empty_lines(self, data: bytes) -> None:
        """Let whole empty lines stand before a request (RFC 9112 §2.2), and no half ones.

        llhttp skips whatever carriage returns and line feeds there are; others do not.
        """
        rest = data.lstrip(b"\r\n")
        lines = self._half_line + data[: len(data) - len(rest)]
        self._half_line = lines[-1:] if lines.endswith(b"\r") else b""
        if not _EMPTY_LINES.fullmatch(lines) or (rest and self._half_line):
            raise refuse(Code.INVALID_REQUEST, "request is not valid HTTP/1.1")

    def _feed(self, piece: bytes | memoryview) -> None:
        """Give the parser the next piece; of a head no more than it may have in all."""
        if self._phase is _IDLE or self._phase is _HEAD:
            self._fed += len(piece)
            self.parser.feed_data(piece)
            if self._fed >= self.limits.header_bytes and (
                self._phase is _IDLE or self._phase is _HEAD
            ):
                raise refuse(Code.HEADERS_TOO_LARGE)
            return
        self._wire += len(piece)
        self.parser.feed_data(piece)
        if self._phase is not _BODY:
            return
        if self._wire > 2 * self._payload + _CHUNK_OVERHEAD:
            raise refuse(Code.INVALID_REQUEST, "chunks carry too little; send larger ones")
        if self._wire > self.limits.drain_bytes and self.cycle.response_complete:
            raise refuse(Code.REQUEST_TOO_LARGE)

    # -- parser callbacks

    def on_message_begin(self) -> None:
        """Begin a head; a second request before the first was answered is not taken."""
        if self.cycle is not None and not self.cycle.response_complete:
            raise refuse(Code.INVALID_REQUEST, "wait for the answer before the next request")
        self.url = b""
        self.headers = []
        self._most_headers = self.limits.header_count
        self._phase = _HEAD

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header of the head; one that comes later is a trailer and ends the request."""
        headers = self.headers
        if len(headers) >= self._most_headers:
            raise self._no_header()
        headers.append((name.lower(), value))

    def _no_header(self) -> Refusal:
        if self._phase is not _HEAD:
            return refuse(Code.INVALID_REQUEST, "trailers are not accepted")
        most = self.limits.header_count
        return refuse(Code.HEADERS_TOO_LARGE, f"more than {most} request headers")

    def on_headers_complete(self) -> None:
        """Check the head, freeze it, start the body's deadline, hand over to the app."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        headers, found = check_head(
            method, version, self.url, tuple(self.headers), self.limits.header_bytes
        )
        path, _, query = self.url.partition(b"?")
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "root_path": "",
            "method": method.decode("ascii"),
            # Not decoded: nobody here may decide on other bytes than came (attack rows 6, 9).
            "path": path.decode("ascii"),
            "raw_path": path,
            "query_string": query,
            # Frozen: whatever the parser says later is not in it.
            "headers": headers,
            "extensions": self._extensions,
        }
        self.cycle = AnswerCycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            default_headers=self.server_state.default_headers,
            # RFC 9110 §10.1.1: HTTP/1.0 knows no interim answers.
            expect_100_continue=b"expect" in found and version == "1.1",
            keep_alive=version == "1.1" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self._phase = _BODY
        self._most_headers = 0
        self._wire = self._payload = 0
        self._announced = int(found.get(b"content-length", 0))
        self._start_asgi_task(self.cycle, self.app)

    def on_body(self, body: bytes) -> None:
        """Count the payload, and keep it for the app unless that has answered already."""
        self._payload += len(body)
        if not self.cycle.response_complete:
            self.cycle.take(body)

    def on_message_complete(self) -> None:
        """The request is whole; reading goes on only to notice that the client has gone."""
        self._fed = 0
        cycle = self.cycle
        if not cycle.response_complete:
            self._phase = _SERVING
            self._deadline.clear()
            cycle.more_body = False
            cycle.set()
        elif cycle.keep_alive:
            self._rest()
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        """Await the next request, or the rest of a body that was answered early."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._phase is _BODY:
            self._deadline.set(self.limits.drain_seconds, self.transport.close)
            if not self.cycle.keep_alive and self.transport.can_write_eof():
                self.transport.write_eof()
        elif self._phase is _SERVING and self.cycle.keep_alive:
            self._rest()
        else:
            self.transport.close()

    def _rest(self) -> None:
        self._phase = _IDLE
        self._deadline.set(self.timeout_keep_alive, self.transport.close)

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

    def _when_gone(self, act: Callable[[], None]) -> None:
        self.cycle.when_gone(act)

    def _abort(self) -> None:
        """Cut the connection, so that nobody takes the answer so far for a whole one."""
        if self.cycle.until_close:
            # Such an answer ends with the connection: only a reset tells it from a torn one.
            raw = self.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.cycle.disconnected = True
        self.transport.abort()

    # -- deadlines

    def _head_late(self) -> None:
        if self._phase is _IDLE:
            self.transport.close()  # nothing was asked, so nothing is answered
            return
        self._refuse(refuse(Code.REQUEST_TIMEOUT, "request headers did not arrive in time"))

    def _body_late(self) -> None:
        """Allow 30 s and the time the body, as announced or as come, needs at the least rate."""
        size = max(self._announced, self._payload)
        allowed = self.limits.body_seconds + size / self.limits.body_bytes_per_second
        left = self._body_began + allowed - self.loop.time()
        if left > 0:
            self._deadline.set(left, self._body_late)
        else:
            self._refuse(refuse(Code.REQUEST_TIMEOUT))

    # -- refusing

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > self.limits.discard_bytes:
            self.transport.abort()

    def _refuse(self, refusal: Refusal) -> None:
        """Believe nothing more on this connection, and say so where that is still possible."""
        phase, self._phase = self._phase, _REFUSED
        self._deadline.clear()
        event(
            log, "request_refused", peer=self._peer(), code=refusal.problem.code,
            reason=refusal.problem.title,
        )  # fmt: skip
        if phase is _SERVING:
            # An earlier request is still being answered: it gets its answer, then we close.
            self.cycle.keep_alive = False
            return
        if phase is _BODY:
            if self.cycle.response_complete:
                self.transport.close()
                return
            # The app sees a client that went away; only the words below reach it.
            started = self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.set()
            if started:
                self._abort()
                return
        self._write_refusal(refusal)

    def _write_refusal(self, refusal: Refusal) -> None:
        """Answer, half-close, and read a little on, so that the answer outruns the reset."""
        if self.transport.is_closing():
            return
        rendered = self.render(refusal.problem, new_id("req"))
        self.transport.write(whole_answer(rendered, self.server_state.default_headers))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._deadline.set(self.limits.linger_seconds, self.transport.close)

    def _peer(self) -> str:
        return self.client[0] if self.client else UNIX_PEER


def guarded(limits: Limits, *, render: Render) -> type[GuardedProtocol]:
    """Return the protocol class with `limits`, for uvicorn's `http` setting."""
    configured = {"limits": limits, "render": staticmethod(render)}
    return type("ConfiguredGuard", (GuardedProtocol,), configured)
