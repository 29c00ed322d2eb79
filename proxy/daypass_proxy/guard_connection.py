"""One client connection: its limits, its deadline, and how it is cut.

The lower half of `guard`: what holds for the connection, whatever is said on it.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from daypass_core.ids import new_id
from daypass_core.log import event, get_logger
from daypass_core.problem import Code, Problem, Refusal
from daypass_proxy.exchange import HEAD_EXTENSION, UNIX_PEER
from daypass_proxy.gate import Gate, Shed, busy
from daypass_proxy.guard_answer import RESET_ON_CLOSE, AnswerCycle, whole_answer
from daypass_proxy.guard_deadline import Deadline
from daypass_proxy.guard_phase import IDLE
from daypass_proxy.providers import Rendered

log = get_logger(__name__)

Render = Callable[[Problem, str, bytes], Rendered]
"""Turns a problem, our id of the request and its target, as far as it came, into an answer."""

Refused = Callable[[str], None]
"""Counts a refusal that was written here, by its code: `Metrics.refused`."""

IsCall = Callable[[str, bytes], bool]
"""Says whether a method and a raw path are those of a call, which may be turned away."""

# Bytes that a slow client has to read in each `write_stall_seconds`: about what a transport keeps
# before it asks us to pause. Without a bound, megabytes would be held by reading single bytes.
_LEAST_READ = 64 * 1024


# Beyond the limit of connections so many more are accepted, to be told so or to be a probe.
_BESIDE = 128
_BESIDE_SECONDS = 1.0
_RESTING_AT_ONCE = 32
# To look through ten thousand takes a millisecond: more often than so it is in vain.
_LOOK_SECONDS = 0.1
_PAUSE_SECONDS = 0.1
_SOME_ID = "req_in_its_place"
_SOME_ID_BYTES = _SOME_ID.encode()


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


class GuardedConnection(HttpToolsProtocol):
    """A connection inside its limits, of which nothing has been read yet."""

    limits: Limits
    render: Render
    refused: Refused
    gate: Gate
    is_call: IsCall
    cycle: AnswerCycle

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.url = b""
        limits = self.limits
        self._phase = IDLE
        self._deadline = Deadline(self.loop, min(limits.header_seconds, limits.body_seconds))
        self._stall: Deadline | None = None  # made for the few clients that ever read slowly
        self._unread = 0
        self._discarded = 0
        self._told_busy = -1.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, if there is room for it."""
        super().connection_made(transport)
        self.gate.requests = self.tasks
        if self.client is None and self.server is not None and self.server[1] is not None:
            # Reset already. What it had said may still be read, and would be nobody's.
            transport.abort()
            return
        if self.scheme == "https":
            # By default eight times as much waits before we are asked to pause.
            transport.set_write_buffer_limits(high=_LEAST_READ)
        over = len(self.connections) - self.gate.most_connections
        if over > 0:
            self._make_room(over)

    def _make_room(self, over: int) -> None:
        """End connections that wait for a next request; without such, this one gets no call."""
        now = self.loop.time()
        if now >= self.gate.look_again:
            everybody: Any = self.connections
            resting = list(islice((one for one in everybody if one.is_resting()), _RESTING_AT_ONCE))
            for one in resting:
                one.shutdown()
                # Its room is free now, though over TLS the end may take a client its time.
                self.connections.discard(one)
            if len(resting) >= over:
                return
            if len(resting) < _RESTING_AT_ONCE:
                self.gate.look_again = now + _LOOK_SECONDS
        self.gate = self.gate.beside()
        self.limits = _hasty(self.limits)
        if over > _BESIDE:
            self._count(Shed.CONNECTIONS)
            self.transport.abort()

    def is_resting(self) -> bool:
        """Say whether the last request of this connection is answered and no next one begun."""
        return self._phase is IDLE and self.cycle is not None and not self.transport.is_closing()

    # -- the end

    def shutdown(self) -> None:
        """End what rests or has said nothing; what is being served is closed after its answer."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
        elif self.transport.get_write_buffer_size():
            self._hang_up()
        else:
            self._end(self.limits.drain_seconds)

    def eof_received(self) -> None:
        """Take the end of what a client sends for its own; it may read what it is owed."""
        self._hang_up()

    def _hang_up(self) -> None:
        """Close when all that is owed was read.

        A loop waits for that without end, so the client has the time of any slow reader for it.
        """
        self._close()
        owed = self.transport.get_write_buffer_size() or self.scheme == "https"  # of that not all
        if owed and not self.flow.write_paused:
            self._watch_reader(self._of_reader())

    def _end(self, seconds: float) -> None:
        """Close: the client has had its time. Over TLS it has `seconds` to agree."""
        self._close()
        self._deadline.set(seconds, self.transport.abort)

    def _end_soon(self) -> None:
        self._end(self.limits.linger_seconds)

    def _close(self) -> None:
        if not self.transport.is_closing():  # asyncio's TLS has nothing to abort after a second one
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers with the connection."""
        self._deadline.close()
        if self._stall is not None:
            self._stall.close()
        super().connection_lost(exc)

    # -- serving

    async def _serve(self, cycle: AnswerCycle) -> None:
        """Run the app; a callback that forgets the task would cost another turn of the loop."""
        unforeseen: BaseException | None = None
        try:
            try:
                await self.app(cycle.scope, cycle.receive, cycle.send)
            except BaseException as error:
                unforeseen = error
            if unforeseen is not None or not (cycle.response_complete or cycle.disconnected):
                await cycle.run_asgi(partial(_end_as, unforeseen))
        finally:
            self.tasks.discard(cycle.task)
            # Through these they hold each other: nothing else would free them at once.
            cycle.scope = cycle.task = unforeseen = None
            cycle.on_response = _nothing

    # -- flow control

    def pause_writing(self) -> None:
        """Give a client that does not read a bounded time."""
        super().pause_writing()
        self._stall = self._of_reader()
        self._watch_reader(self._stall)
        # The kernel is given its part only at the end of this turn; that is not the client's doing.
        self.loop.call_soon(self._weigh)

    def resume_writing(self) -> None:
        """The client has read most of what waited for it."""
        if self._stall is not None and not self.transport.is_closing():
            self._stall.clear()
        super().resume_writing()

    def _of_reader(self) -> Deadline:
        if self._stall is None:
            self._stall = Deadline(self.loop, self.limits.write_stall_seconds)
        return self._stall

    def _watch_reader(self, stall: Deadline) -> None:
        """Come back in a while to see how much the client has read; nothing is added meanwhile."""
        self._unread = self.transport.get_write_buffer_size()
        stall.set(self.limits.write_stall_seconds, lambda: self._look_at_reader(stall))

    def _weigh(self) -> None:
        self._unread = min(self._unread, self.transport.get_write_buffer_size())

    def _look_at_reader(self, stall: Deadline) -> None:
        """Go on with a slow reader of a large answer; cut one that has as good as stopped."""
        if self._unread - self.transport.get_write_buffer_size() >= _LEAST_READ:
            self._watch_reader(stall)
            return
        event(log, "client_stalled", peer=self._peer())
        # Else the kernel would keep what is unread for minutes, to deliver it before the end.
        raw = self.transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.transport.abort()

    # -- refusing

    def _turned_away(self, cycle: AnswerCycle) -> bool:
        """Let a request in or not, when there are many or the end has begun (see `gate`)."""
        gate, scope = self.gate, cycle.scope
        if gate.closing:
            cycle.keep_alive = False
        reason = gate.turns_away()
        if reason is None or not self.is_call(scope["method"], scope["raw_path"]):
            return False
        self._count(reason)
        self._answer_busy(cycle, scope["raw_path"])
        # As after an app's answer: through these the two hold each other.
        scope["extensions"] = {HEAD_EXTENSION: scope["extensions"][HEAD_EXTENSION]}
        cycle.on_response = _nothing
        return True

    def _answer_busy(self, cycle: AnswerCycle, path: bytes) -> None:
        """Say that it is too much; rendered once for each path of a call, as there are few."""
        words = self.gate.words.get(path)
        if words is None:
            words = self.gate.words[path] = self.render(busy(), _SOME_ID, path)
        ours = new_id("req").encode()
        headers = [
            (name, ours if value == _SOME_ID_BYTES else value) for name, value in words.headers
        ]
        cycle.answer(words.status, headers, words.body.replace(_SOME_ID_BYTES, ours))
        before, self._told_busy = self._told_busy, self.loop.time()
        if self._told_busy - before < 1.5 * _PAUSE_SECONDS:
            # It did not wait as it was told. Thousands that ask again at once would keep the loop
            # busy with nothing but to turn them away.
            self.flow.pause_reading()
            self.loop.call_later(_PAUSE_SECONDS, self._read_on)

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _count(self, reason: Shed) -> None:
        self.gate.shed[reason] += 1
        self.refused(Code.OVERLOADED)

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > self.limits.discard_bytes:
            self.transport.abort()

    def _write_refusal(self, refusal: Refusal) -> None:
        """Answer, half-close, and read a little on, so that the answer outruns the reset."""
        if self.transport.is_closing():
            return
        rendered = self.render(refusal.problem, new_id("req"), self.url)
        self.transport.write(whole_answer(rendered, self.server_state.default_headers))
        self.refused(refusal.problem.code)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._deadline.set(self.limits.linger_seconds, self._end_soon)

    def _peer(self) -> str:
        return self.client[0] if self.client else UNIX_PEER


@lru_cache(maxsize=8)
def _hasty(limits: Limits) -> Limits:
    """Return the limits of a connection that is only to be told, or to be a probe."""
    return replace(
        limits,
        header_seconds=min(limits.header_seconds, _BESIDE_SECONDS),
        body_seconds=min(limits.body_seconds, _BESIDE_SECONDS),
        drain_seconds=min(limits.drain_seconds, _BESIDE_SECONDS),
    )


async def _end_as(error: BaseException | None, *_: object) -> None:
    """Be an app that ends without an answer: what uvicorn does then, and says, is its own."""
    if error is not None:
        raise error


def _nothing() -> None:
    """Take the place of a function that is not to be called any more."""
