"""The outermost step: what may call itself an HTTP request here.

uvicorn and httptools parse; this subclass adds the limits they do not have and refuses every
message two parsers could read differently (`guard_head`). What reaches `app` has one Host, one
framing, a plain origin-form target, bounded headers that are frozen before the body, and deadlines
for head, body and write stall. Refusals are written here, in a provider's words.
"""

import asyncio
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.server import ServerState

from daypass_core.log import event, failed, get_logger
from daypass_core.problem import Code, Refusal, refuse
from daypass_proxy.exchange import ABORT_EXTENSION, DIRECT_EXTENSION, GONE_EXTENSION, HEAD_EXTENSION
from daypass_proxy.gate import Gate
from daypass_proxy.guard_answer import AnswerCycle
from daypass_proxy.guard_connection import GuardedConnection, IsCall, Limits, Refused, Render
from daypass_proxy.guard_head import check_empty_lines, check_head
from daypass_proxy.guard_known import KnownHead, whole_head
from daypass_proxy.guard_phase import BODY as _BODY
from daypass_proxy.guard_phase import HEAD as _HEAD
from daypass_proxy.guard_phase import IDLE as _IDLE
from daypass_proxy.guard_phase import REFUSED as _REFUSED
from daypass_proxy.guard_phase import SERVING as _SERVING
from daypass_proxy.head import Head

__all__ = ["GuardedProtocol", "Limits", "guarded"]

log = get_logger(__name__)

# Bytes that are not payload (chunk heads, extensions, an endless trailer) allowed beside a body.
_CHUNK_OVERHEAD = 64 * 1024


class GuardedProtocol(GuardedConnection):
    """One client connection and what is said on it; a configured subclass comes from `guarded`."""

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
        self._fed = 0  # raw bytes since the head began
        self._half_line = b""  # a carriage return before the head, its line feed to come
        self._most_headers = 0  # how many headers may come; none before or after a head
        self._wire = 0  # raw bytes since the body began
        self._payload = 0  # body bytes among them
        self._announced = 0
        self._body_began = 0.0
        self._known: KnownHead | None = None
        self._owed = 0  # bytes to come of a body whose head the parser was not given

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the head deadline at once: an idle connect costs a descriptor."""
        super().connection_made(transport)
        self._deadline.set(self.limits.header_seconds, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the head with the connection."""
        self._known = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser in pieces that cannot pass the head's limit."""
        if self._phase is _REFUSED:
            self._discard(len(data))
            return
        before, cycle = self._phase, self.cycle
        fresh = before is _IDLE and self._fed == 0
        known = self._known
        length = known.length(data) if fresh and known is not None else None
        if known is not None and length is not None:
            announced = int(length or 0)
            if len(data) - known.size == announced <= HIGH_WATER_LIMIT:
                # All of it and nothing else: nothing can be amiss, and nothing is waited for.
                self._begin_known(known, length).body = data[known.size :]
                self._wire = self._payload = announced
                self.on_message_complete()
                return
        try:
            if known is not None and length is not None:
                self._take_known(known, length, data)
            elif self._owed:
                self._take_body(data)
            else:
                self._read(data)
                # From the second request on: most long streams are the only one of a connection,
                # and would keep its bytes in memory for nothing.
                if fresh and cycle is not None:
                    self._know(data)
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
        # The end of a body that was answered early and the next head may have come together.
        if phase is _BODY and self.cycle is not cycle and not self.cycle.response_complete:
            self._body_began = self.loop.time()
            self._deadline.set(self.limits.body_seconds, self._body_late)
        elif (phase is _HEAD and before is _BODY) or (
            fresh and cycle is not None and (phase is _HEAD or phase is _IDLE)
        ):
            self._deadline.set(self.limits.header_seconds, self._head_late)

    def _read(self, data: bytes) -> None:
        """Give the parser what came."""
        if self._phase is _BODY and 0 < (owed := self._announced - self._payload) < len(data):
            # What follows the body is held to the rules of what stands between two messages.
            self._feed(data[:owed])
            data = data[owed:]
        waits = self._phase is _IDLE
        if waits and (self._half_line or data[0] in b"\r\n"):
            self._half_line = check_empty_lines(self._half_line, data)
        room = self.limits.header_bytes - self._fed
        if len(data) > room and (waits or self._phase is _HEAD):
            view = memoryview(data)
            self._feed(view[:room])
            self._feed(view[room:])
        else:
            self._feed(data)

    def _know(self, data: bytes) -> None:
        """Remember the head that was just read, if all of it came at once and was good."""
        if self._phase is _HEAD or self._phase is _REFUSED or self.cycle.scope is None:
            return  # nothing was begun: not even a call that was turned away at once
        cycle, scope = self.cycle, self.cycle.scope
        head, length = scope["extensions"][HEAD_EXTENSION]
        raw = whole_head(data, self._payload)
        # What ends the connection leaves the parser in another state; chunks it has to read.
        if raw and cycle.keep_alive and head.header(b"transfer-encoding") is None:
            known = KnownHead(raw, scope, head, cycle.waiting_for_100_continue)
            if known.own_length == length:  # else it stands there in a form unknown to us
                self._known = known

    def _take_known(self, known: KnownHead, length: bytes, data: bytes) -> None:
        """Begin a request whose head is the last one's; its body is counted here."""
        self._begin_known(known, length)
        self._owed = self._announced
        if len(data) > known.size:
            self._take_body(data[known.size :])

    def _begin_known(self, known: KnownHead, length: bytes) -> AnswerCycle:
        scope = known.scope.copy()
        scope["headers"] = known.headers(length)
        return self._begin(scope, known.head, length, known.expects, keep_alive=True)

    def _take_body(self, data: bytes) -> None:
        """Take the body behind a known head; what follows the body is the parser's again."""
        owed = self._owed
        self._wire += len(data)
        if owed:
            self._owed = max(owed - len(data), 0)
            self.on_body(data[:owed])
        if self._owed:
            self._check_drained()
            return
        self.on_message_complete()
        if len(data) > owed:
            self._read(data[owed:])

    def _check_drained(self) -> None:
        if self._wire > self.limits.drain_bytes and self.cycle.response_complete:
            raise refuse(Code.REQUEST_TOO_LARGE)

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
        self._check_drained()

    # -- parser callbacks

    def on_message_begin(self) -> None:
        """Begin a head; a second request before the first was answered is not taken."""
        if self.cycle is not None and not self.cycle.response_complete:
            raise refuse(Code.INVALID_REQUEST, "wait for the answer before the next request")
        if self.cycle is not None and not self.cycle.keep_alive:
            raise refuse(Code.INVALID_REQUEST, "nothing can follow; the connection is closing")
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
        self.headers = []  # not kept beside the checked ones for as long as a stream lasts
        path, _, query = self.url.partition(b"?")
        scope = {
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
        }
        length = found.get(b"content-length", b"")
        head = Head(tuple(pair for pair in headers if pair[0] != b"content-length"))
        # RFC 9110 §10.1.1: HTTP/1.0 knows no interim answers.
        expects = b"expect" in found and version == "1.1"
        keep_alive = version == "1.1" and self.parser.should_keep_alive()
        self._begin(scope, head, length, expects, keep_alive=keep_alive)

    def _begin(
        self, scope: Any, head: Head, length: bytes, expects: bool, *, keep_alive: bool
    ) -> AnswerCycle:
        """Hand a request over to the app; its body is to come."""
        cycle = self.cycle = AnswerCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            default_headers=self.server_state.default_headers,
            expect_100_continue=expects,
            keep_alive=keep_alive,
            on_response=self.on_response_complete,
        )
        # Of this request, not of the connection: what is left of an earlier one must neither write
        # nor cut. ASGI leaves the values of extensions to their authors.
        scope["extensions"] = {
            ABORT_EXTENSION: cycle.abort, GONE_EXTENSION: cycle.when_gone,
            HEAD_EXTENSION: (head, length), DIRECT_EXTENSION: cycle,
        }  # fmt: skip
        self._phase = _BODY
        self._most_headers = 0
        self._wire = self._payload = 0
        self._announced = int(length or 0)
        if len(self.tasks) >= self.gate.look_from and self._turned_away(cycle):
            return cycle
        task = cycle.task = self.loop.create_task(self._serve(cycle))
        self.tasks.add(task)
        return cycle

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
            cycle.body = b""
            self._rest()
        else:
            self._hang_up()

    def on_response_complete(self) -> None:
        """Await the next request, or the rest of a body that was answered early."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._phase is _BODY:
            self._deadline.set(self.limits.drain_seconds, self._end_soon)
            if not self.cycle.keep_alive and self.transport.can_write_eof():
                self.transport.write_eof()
        elif self._phase is _SERVING and self.cycle.keep_alive:
            self._rest()
        else:
            self._hang_up()

    def _rest(self) -> None:
        self._phase = _IDLE
        self._deadline.set(self.timeout_keep_alive, self._end_soon)

    # -- deadlines

    def _head_late(self) -> None:
        if self._phase is _IDLE:
            self._end_soon()  # nothing was asked, so nothing is answered
            return
        self._refuse(refuse(Code.REQUEST_TIMEOUT, "request headers did not arrive in time"))

    def _body_late(self) -> None:
        """Allow 30 s, and more to what comes at the least rate.

        What is announced buys no time: its sender would hold room for it while it sends nothing.
        """
        allowed = self.limits.body_seconds + self._payload / self.limits.body_bytes_per_second
        left = self._body_began + allowed - self.loop.time()
        if left > 0:
            self._deadline.set(left, self._body_late)
        else:
            self._refuse(refuse(Code.REQUEST_TIMEOUT))

    # -- refusing

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
                self._end_soon()
                return
            # The app sees a client that went away; only the words below reach it.
            started = self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.set()
            if started:
                self.cycle.abort()
                return
        self._write_refusal(refusal)


def guarded(
    limits: Limits,
    *,
    render: Render,
    refused: Refused = lambda _code: None,
    gate: Gate | None = None,
    is_call: IsCall = lambda _method, _path: True,
) -> type[GuardedProtocol]:
    """Return the protocol class with `limits`, for uvicorn's `http` setting.

    `refused` is told of each refusal that is answered here, which the app never sees; `is_call`
    says what `gate` may turn away.
    """
    configured = {
        "limits": limits,
        "gate": gate or Gate(),
        "is_call": staticmethod(is_call),
        "render": staticmethod(render),
        "refused": staticmethod(refused),
    }
    return type("ConfiguredGuard", (GuardedProtocol,), configured)
