"""A client connection in memory: bytes in, bytes out, with the real guard between and no socket."""

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from daypass_proxy.gate import Gate
from daypass_proxy.guard import Limits, guarded
from tests.fakes.anthropic import anthropic_render


class MemoryTransport(asyncio.Transport):
    """Keeps what is written; closing it ends the protocol as a loop would: soon after, or once
    nothing is unsent.
    """

    def __init__(self, peer: tuple[str, int] | None = ("10.0.0.7", 40_000)) -> None:
        super().__init__({"peername": peer, "sockname": ("127.0.0.1", 8700)})
        self.written = b""
        self.closing = False
        self.lost = False
        self.aborted = False
        self.half_closed = False
        self.unsent = 0
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        """Keep it."""
        assert not self.half_closed, "written after the end"
        self.written += bytes(data)

    def is_closing(self) -> bool:
        """Say whether it was closed."""
        return self.closing

    def close(self) -> None:
        """Close."""
        if not self.closing:
            self.closing = True
            self._lose()

    def abort(self) -> None:
        """Close whatever is unsent, and note how."""
        self.aborted = self.closing = True
        self.unsent = 0
        self._lose()

    def _lose(self) -> None:
        if not self.unsent and not self.lost:
            self.lost = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def can_write_eof(self) -> bool:
        """Say that one direction can be closed."""
        return True

    def write_eof(self) -> None:
        """Close one direction."""
        self.half_closed = True

    def get_write_buffer_size(self) -> int:
        """Return how many bytes a test says that the client has not taken."""
        return self.unsent

    def pause_reading(self) -> None:
        """Do nothing: bytes are fed by hand."""

    def resume_reading(self) -> None:
        """Do nothing."""


class Connection:
    """One connection to an application; make it inside a running loop."""

    def __init__(
        self,
        app: Any,
        limits: Limits | None = None,
        keep_alive: float = 120,
        *,
        loop: Any = None,
        refused: Callable[[str], None] = lambda _code: None,
        gate: Gate | None = None,
        is_call: Callable[[str, bytes], bool] = lambda _method, _path: True,
        peer: tuple[str, int] | None = ("10.0.0.7", 40_000),
        state: ServerState | None = None,
    ) -> None:
        """`state` is that of another connection to the same server.

        `loop` is a `HandLoop` for a test that lets the guard's time pass by hand.
        """
        kind = guarded(
            limits or Limits(),
            render=anthropic_render,
            refused=refused,
            gate=gate,
            is_call=is_call,
        )
        config = uvicorn.Config(
            app,
            http=kind,
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            proxy_headers=False,
        )
        config.timeout_keep_alive = keep_alive  # type: ignore[assignment]  # goes to a timer
        config.load()
        self.state = state or ServerState()
        self.transport = MemoryTransport(peer)
        self.protocol = self.transport.protocol = kind(config, self.state, {}, loop)
        self.protocol.connection_made(self.transport)

    @property
    def written(self) -> bytes:
        """All that was answered."""
        return self.transport.written

    @property
    def statuses(self) -> list[int]:
        """The status of each answer, as long as no body looks like one."""
        return [int(status) for status in re.findall(rb"HTTP/1\.1 ([0-9]{3}) ", self.written)]

    def feed(self, segments: Iterable[bytes]) -> None:
        """Let bytes arrive, one segment after another, without a turn of the loop between them."""
        for segment in segments:
            if not self.transport.closing:
                self.protocol.data_received(segment)

    async def settle(self) -> None:
        """Let what was begun come to its end; a request that is not whole waits for more."""
        for _ in range(3):
            await asyncio.sleep(0)
        whole = self.protocol.cycle is None or not self.protocol.cycle.more_body
        if self.state.tasks and whole:
            await asyncio.wait(set(self.state.tasks), timeout=5)

    async def hang_up(self) -> None:
        """The client goes; returns when nothing is left of the connection."""
        await self.settle()
        self.transport.abort()
        for _ in range(3):
            await asyncio.sleep(0)
        if self.state.tasks:
            await asyncio.wait(set(self.state.tasks), timeout=5)
        assert not self.state.tasks, "a request outlived its connection"
        assert self.protocol not in self.state.connections
