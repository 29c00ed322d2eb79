"""A stub LLM provider that speaks Anthropic's wire format exactly, and OpenAI's, and misbehaves on
request.

It is a raw-socket server in a thread of its own, so a test decides every byte and every break of
a connection. It answers 401 unless one of its keys arrives: each 200 proves the key injected.
"""

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.servers import openai_wire
from tests.servers.wire import json_answer, message_json, message_stream, sse_answer


@dataclass(frozen=True)
class Send:
    """Write these bytes and flush."""

    data: bytes


@dataclass(frozen=True)
class Wait:
    """Hold until the test calls `stub.release(name)`."""

    name: str


@dataclass(frozen=True)
class Pause:
    """Take so many seconds, as a model does that writes."""

    seconds: float


@dataclass(frozen=True)
class Reset:
    """Break the connection with a TCP RST."""


@dataclass(frozen=True)
class Close:
    """Close the connection in the ordinary way, whatever was promised."""


@dataclass(frozen=True)
class Stall:
    """Send nothing more until the peer goes away."""


Step = Send | Wait | Pause | Reset | Close | Stall
Script = Sequence[Step]
Answering = Callable[["Recorded"], Script]


@dataclass
class Recorded:
    """One request as it arrived, and when its sender went away."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    peer_gone: threading.Event = field(default_factory=threading.Event)

    def header(self, name: str) -> list[str]:
        """Every value of one header, in order."""
        return [value for key, value in self.headers if key.lower() == name]

    @property
    def raw(self) -> bytes:
        """All that was received, for searches."""
        lines = [f"{self.method} {self.target}", *(f"{k}: {v}" for k, v in self.headers)]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


class Federation(Protocol):
    """A token endpoint, and what it has given."""

    def answer(self, recorded: Recorded) -> Script | None:
        """Answer an exchange; None for any other request."""
        ...

    def knows(self, recorded: Recorded) -> bool:
        """Say whether a call bears what it has given."""
        ...


class StubUpstream:
    """The stub; use as a context manager. `requests` grows as requests arrive."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = set(keys)
        self.requests: list[Recorded] = []
        self.connections = 0
        self.federation: Federation | None = None
        self._scripts: deque[Script] = deque()
        self._always: Answering | None = None
        self._gates: dict[str, threading.Event] = {}
        self._arrived = threading.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self.port = 0

    @property
    def url(self) -> str:
        """Origin of the stub."""
        return f"http://127.0.0.1:{self.port}"

    def next(self, *scripts: Script) -> None:
        """Answer the next requests with these scripts, in order."""
        self._scripts.extend(scripts)

    def always(self, script: Script | Answering | None) -> None:
        """Answer every request with this script, or with what a function of the request returns.

        None brings back the normal answers.
        """
        if script is None or callable(script):
            self._always = script
        else:
            self._always = lambda _: script

    def release(self, name: str) -> None:
        """Open a gate that a script waits at."""
        self._gate(name).set()

    def reset(self) -> None:
        """Forget requests, scripts and gates."""
        self.requests.clear()
        self._scripts.clear()
        self._gates.clear()
        self._always = None

    def wait_for(self, count: int, timeout: float = 10.0) -> list[Recorded]:
        """Block until `count` requests have arrived."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.requests) >= count, timeout):
                raise AssertionError(f"stub saw {len(self.requests)} requests, not {count}")
        return list(self.requests)

    def __enter__(self) -> "StubUpstream":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _gate(self, name: str) -> threading.Event:
        return self._gates.setdefault(name, threading.Event())

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._connected, "127.0.0.1", 0, limit=64 * 1024 * 1024)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        # Whom a server accepted a moment before it is closed, nobody ever closes.
        for sock in server.sockets:
            self._loop.remove_reader(sock.fileno())
        self._turn()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._turn()  # what was cut is closed then
        self._loop.close()

    def _turn(self) -> None:
        for _ in range(4):
            self._loop.run_until_complete(asyncio.sleep(0))

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin to serve; a task that is cancelled before it began would close nothing itself."""
        self.connections += 1
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        recorded: Recorded | None = None
        try:
            while (recorded := await read_request(reader)) is not None:
                with self._arrived:
                    self.requests.append(recorded)
                    self._arrived.notify_all()
                if not await self._play(self._script(recorded), recorded, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            if recorded is not None:
                recorded.peer_gone.set()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _script(self, recorded: Recorded) -> Script:
        if self.federation is not None:
            exchanged = self.federation.answer(recorded)
            if exchanged is not None:
                return exchanged
        bearers = [value.removeprefix("Bearer ") for value in recorded.header("authorization")]
        if is_openai(recorded):
            if not self.keys.intersection(bearers):
                wrong = openai_wire.error_json(
                    "bad key", "invalid_request_error", "invalid_api_key"
                )
                return [Send(json_answer(401, wrong))]
        elif not self._takes(recorded):
            error = {"type": "authentication_error", "message": "invalid x-api-key"}
            return [Send(json_answer(401, {"type": "error", "error": error}))]
        if self._scripts:
            return self._scripts.popleft()
        return (self._always or normal_answer)(recorded)

    def _takes(self, recorded: Recorded) -> bool:
        if self.keys.intersection(recorded.header("x-api-key")):
            return True
        return self.federation is not None and self.federation.knows(recorded)

    async def _play(
        self,
        script: Script,
        recorded: Recorded,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Carry a script out; True when the connection stays open for the next request."""
        gone = asyncio.ensure_future(reader.read(1))
        gone.add_done_callback(lambda _: recorded.peer_gone.set())
        try:
            for step in script:
                match step:
                    case Send(data):
                        writer.write(data)
                        await writer.drain()
                    case Pause(seconds):
                        await asyncio.sleep(seconds)
                    case Wait(name):
                        await self._wait(self._gate(name), recorded)
                    case Stall():
                        await gone
                        return False
                    case Reset():
                        linger = struct.pack("ii", 1, 0)
                        raw = writer.get_extra_info("socket")
                        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                        return False
                    case Close():
                        return False
            return False
        finally:
            gone.cancel()

    async def _wait(self, gate: threading.Event, recorded: Recorded) -> None:
        while not gate.is_set() and not recorded.peer_gone.is_set():
            await asyncio.sleep(0.005)


async def read_request(reader: asyncio.StreamReader) -> Recorded | None:
    """Read one HTTP/1.1 request with Content-Length or chunked body; None at the end."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = [(k, v.strip()) for k, _, v in (line.partition(":") for line in lines)]
    recorded = Recorded(method, target, headers, b"")
    if length := recorded.header("content-length"):
        recorded.body = await reader.readexactly(int(length[0]))
    elif recorded.header("transfer-encoding"):
        recorded.body = await read_chunked(reader)
    return recorded


async def read_chunked(reader: asyncio.StreamReader) -> bytes:
    """Read a chunked body without trailers."""
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    await reader.readuntil(b"\r\n")
    return b"".join(parts)


def normal_answer(recorded: Recorded) -> Script:
    """What a provider answers when nothing goes wrong."""
    path = recorded.target.partition("?")[0]
    if is_openai(recorded):
        return openai_answer(path, json.loads(recorded.body))
    if not path.endswith(("/v1/messages", "/v1/messages/count_tokens")):
        error = {"type": "not_found_error", "message": f"no route {path}"}
        return [Send(json_answer(404, {"type": "error", "error": error}))]
    body = json.loads(recorded.body)
    if path.endswith("/count_tokens"):
        return [Send(json_answer(200, {"input_tokens": 7}))]
    if body.get("stream"):
        return [Send(sse_answer()), *sends(message_stream(body["model"]))]
    return [Send(json_answer(200, message_json(body["model"])))]


def is_openai(recorded: Recorded) -> bool:
    """Say whether a request is one of OpenAI's API."""
    return recorded.target.endswith(("/chat/completions", "/responses", "/embeddings"))


def openai_answer(path: str, body: dict[str, Any]) -> Script:
    """What a provider of OpenAI's API answers when nothing goes wrong."""
    model = body["model"]
    if path.endswith("/embeddings"):
        count = len(body["input"]) if isinstance(body["input"], list) else 1
        return [Send(json_answer(200, openai_wire.embeddings_json(model, count)))]
    chat = path.endswith("/chat/completions")
    if not body.get("stream"):
        whole = openai_wire.chat_json if chat else openai_wire.response_json
        return [Send(json_answer(200, whole(model=model)))]
    if not chat:
        return [Send(sse_answer()), *sends(openai_wire.response_stream(model=model))]
    asked = (body.get("stream_options") or {}).get("include_usage")
    usage = openai_wire.USAGE if asked else None
    return [Send(sse_answer()), *sends(openai_wire.chat_stream(model=model, usage=usage))]


def sends(events: Sequence[bytes]) -> Iterator[Send]:
    """One write for each event, as HTTP chunks with the end marker."""
    for event in events:
        yield Send(b"%x\r\n%s\r\n" % (len(event), event))
    yield Send(b"0\r\n\r\n")


def chunk(event: bytes) -> Send:
    """One event as one HTTP chunk."""
    return Send(b"%x\r\n%s\r\n" % (len(event), event))
