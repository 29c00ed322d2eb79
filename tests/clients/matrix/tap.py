"""A tap on the connections of one client: `Tap`. It passes every byte on and keeps what was asked.

Place in the flow: a cell gives its client the tap's URL instead of the proxy's (or the stub's), so
that both are counted in the same way, without trusting anybody's log.
"""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass

import httptools

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
INFERENCE = ("/messages", "/chat/completions", "/responses")


@dataclass
class Asked:
    """One request: monotonic seconds of its first byte, and its answer's status (0: none came)."""

    at: float
    method: str = ""
    path: str = ""
    status: int = 0

    @property
    def inference(self) -> bool:
        """Whether it asks for a model's words."""
        return self.method == "POST" and self.path.endswith(INFERENCE)


class Tap:
    """A listener that stands in front of one port; a context manager. `asked` grows."""

    def __init__(self, target_port: int) -> None:
        self.asked: list[Asked] = []
        self.port = 0
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        """Its origin."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Tap":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        start = asyncio.start_server(self._serve, "127.0.0.1", 0)
        server = self._loop.run_until_complete(start)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # What is open at the end is cut; asyncio would write a trace about each.
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            try:
                away, toward = await asyncio.open_connection("127.0.0.1", self._target_port)
            except BaseException:
                writer.transport.abort()
                raise
            await self._join((reader, writer), (away, toward))

    async def _join(self, near: _Streams, far: _Streams) -> None:
        """Pass on in both directions; whoever ends first, the other is told in the same way."""
        heard = _Heard(self.asked)
        up = asyncio.ensure_future(_pump(near[0], far[1], heard.request))
        down = asyncio.ensure_future(_pump(far[0], near[1], heard.answer))
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            if any(task.done() and task.exception() is not None for task in (up, down)):
                _reset_at_close(near[1])
                _reset_at_close(far[1])
        finally:
            for each in (up, down):
                each.cancel()
            for _, writer in (near, far):
                writer.close()


def _reset_at_close(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):  # the side that broke is closed already
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, parser: object) -> None:
    """Pass bytes on until the source ends; raises ConnectionError when it breaks."""
    while data := await source.read(65536):
        with contextlib.suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
            parser.feed_data(data)  # type: ignore[attr-defined]
        sink.write(data)
        await sink.drain()


class _Heard:
    """What passes through one connection, read along."""

    def __init__(self, asked: list[Asked]) -> None:
        self._asked = asked
        self._open: deque[Asked] = deque()
        self.request = httptools.HttpRequestParser(_Requests(self))
        self.answer = httptools.HttpResponseParser(_Answers(self))

    def begin(self) -> None:
        """A request begins."""
        one = Asked(time.monotonic())
        self._open.append(one)
        self._asked.append(one)

    def path(self, url: bytes) -> None:
        """Its target is known (or more of it)."""
        self._open[-1].path += url.decode("latin-1").partition("?")[0]

    def method(self) -> None:
        """Its head is whole."""
        self._open[-1].method = self.request.get_method().decode()

    def status(self) -> None:
        """An answer's head is whole."""
        if (code := self.answer.get_status_code()) >= 200:
            self._open.popleft().status = code


class _Requests:
    """What the parser of requests calls."""

    def __init__(self, heard: _Heard) -> None:
        self.on_message_begin = heard.begin
        self.on_url = heard.path
        self.on_headers_complete = heard.method


class _Answers:
    """What the parser of answers calls."""

    def __init__(self, heard: _Heard) -> None:
        self.on_headers_complete = heard.status
