"""The clients of the soak: streams, short calls, tokens that renew, sandboxes that are revoked.

Everything is chosen from one seeded generator. Each answer is counted under a word; a word that
begins with `wrong` is one that no client should have got, and the soak fails on it.
"""

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from bench.bodies import MODEL, text_body
from tests.servers.stack import Stack

RENEW_AT = 0.8
"""The part of a token's life after which clients renew, as the official ones do."""
PATIENCE = 60.0
LEAST_LEFT = 12.0
"""Seconds that a token lives at least when it is sent: a fifth of a minute."""
LARGE = 1_000_000


@dataclass
class Box:
    """A sandbox as its client knows it."""

    made: dict[str, Any]
    token: str = ""
    renew_at: float = 0.0
    revoked: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass
class Reply:
    """Status and head of an answer; `chunks` gives what follows."""

    status: int
    head: bytes
    reader: asyncio.StreamReader

    async def body(self) -> bytes:
        """Read it all."""
        return b"".join([part async for part in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """Give the parts as they come; raises IncompleteReadError when it breaks off."""
        lower = self.head.lower()
        if b"transfer-encoding: chunked" in lower:
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                yield (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
            return
        length = lower.partition(b"content-length:")[2].split(b"\r\n")[0].strip() or b"0"
        yield await self.reader.readexactly(int(length))


class Clients:
    """All clients of one proxy; `counts` says what came back, `open` how many streams run."""

    def __init__(self, stack: Stack, seed: int = 7) -> None:
        self.counts: Counter[str] = Counter()
        self.open = 0
        self.latest: list[float] = []
        """Seconds of the short calls since somebody emptied it."""
        self._stack = stack
        self._choose = random.Random(seed)
        self._boxes: list[Box] = []
        self._exchanges = asyncio.Semaphore(4)  # from one address eight may ask at once
        self._large = text_body("short", LARGE, stream=False)
        self._ending = asyncio.Event()

    async def make(self, sandboxes: int) -> None:
        """Register so many sandboxes."""
        for _ in range(sandboxes):
            self._boxes.append(await self._new())

    async def run(self, streams: int, rate: float, seconds: float, revoke_every: float) -> None:
        """Hold so many streams open and make `rate` short calls a second, for so long."""
        async with asyncio.TaskGroup() as group:
            for number in range(streams):
                group.create_task(self._slot(number * 5.0 / streams))
            group.create_task(self._short_calls(rate))
            group.create_task(self._revocations(revoke_every))
            await asyncio.sleep(seconds)
            self._ending.set()

    async def _new(self) -> Box:
        return Box(await asyncio.to_thread(self._stack.sandbox, budget_usd="1000.00"))

    async def _token(self, box: Box) -> str:
        async with box.lock, self._exchanges:
            if time.monotonic() >= box.renew_at:
                answer = await asyncio.to_thread(self._stack.exchange, box.made)
                if answer.status != 200:
                    if not box.revoked:
                        self.counts[f"wrong: exchange {answer.status}"] += 1
                    return box.token or "none"
                told = answer.json()
                box.token = told["access_token"]
                box.renew_at = time.monotonic() + told["expires_in"] * RENEW_AT
                self.counts["token"] += 1
            return box.token

    async def _slot(self, wait: float) -> None:
        """One stream after the other, until the end."""
        await asyncio.sleep(wait)
        while not self._ending.is_set():
            await self._one_stream()

    async def _one_stream(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE * 4):
                await self._stream()
        except TimeoutError:
            self.counts["wrong: stream hangs"] += 1
        except (OSError, asyncio.IncompleteReadError) as error:
            self.counts[f"wrong: {type(error).__name__}"] += 1
            await asyncio.sleep(0.2)

    async def _stream(self) -> None:
        dice, box = self._choose.random(), self._choose.choice(self._boxes)
        began = time.monotonic()
        count = self._choose.choice((8, 20, 40, 60)) if dice < 0.98 else 400
        word = "busy" if dice < 0.05 else "broken" if dice < 0.08 else "stream"
        leaves_after = self._choose.randrange(count) if 0.08 < dice < 0.2 else None
        body = text_body(f"{word}:{count}:250", 1000, stream=True)
        async with self._call(box, body) as (reply, writer):
            if reply.status != 200:
                said = await reply.body()
                self._count("stream", reply.status, box, word, said, time.monotonic() - began)
                await asyncio.sleep(0.1)
                return
            self.open += 1
            try:
                self.counts[f"stream {await self._read(reply, writer, leaves_after, box)}"] += 1
            finally:
                self.open -= 1

    async def _read(
        self, reply: Reply, writer: asyncio.StreamWriter, leaves_after: int | None, box: Box
    ) -> str:
        """Read a stream to the end its client wants; return how it ended."""
        events, tail = 0, b""
        async for part in reply.chunks():
            events, tail = events + 1, (tail + part)[-4000:]
            if leaves_after is not None and events > leaves_after:
                if events % 2:  # half of them rudely
                    raw = writer.get_extra_info("socket")
                    linger = struct.pack("ii", 1, 0)
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                return "left by its client"
        if b"message_stop" in tail:
            return "complete"
        if b"event: error" in tail:
            return "cut: revoked" if box.revoked else "ended with an error event"
        return "wrong: ended without a word"

    async def _short_calls(self, rate: float) -> None:
        """Open loop: a call every 1/rate seconds, each on a connection of its own."""
        due = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while not self._ending.is_set():
                group.create_task(self._short())
                due += 1 / rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _short(self) -> None:
        dice, box = self._choose.random(), self._choose.choice(self._boxes)
        word = "busy" if dice < 0.05 else "overloaded" if dice < 0.06 else "short"
        body = text_body(word, 1000, stream=False) if dice < 0.995 else self._large
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE), self._call(box, body) as (reply, _):
                said = await reply.body()
                self._count("short", reply.status, box, word, said, time.monotonic() - began)
        except TimeoutError:
            self.counts["wrong: call hangs"] += 1
        except (OSError, asyncio.IncompleteReadError) as error:
            self.counts[f"wrong: {type(error).__name__}"] += 1
        self.latest.append(time.monotonic() - began)

    def _count(
        self, what: str, status: int, box: Box, word: str, said: bytes, seconds: float
    ) -> None:
        if status == 401 and seconds > LEAST_LEFT and b"expired" in said:
            # On a machine that is starved a call can be on its way for longer than its token lives.
            self.counts[f"{what} whose token expired on its way"] += 1
            return
        wanted = {"busy": 429, "overloaded": 529, "short": 200}.get(word)
        right = status == wanted or (status == 401 and box.revoked)
        told = "" if right else f" {said[:160]!r}"
        self.counts[f"{'' if right else 'wrong: '}{what} {status}{told}"] += 1

    @contextlib.asynccontextmanager
    async def _call(
        self, box: Box, body: bytes
    ) -> AsyncIterator[tuple[Reply, asyncio.StreamWriter]]:
        """Send one call and read the head of its answer."""
        token = await self._token(box)
        port = self._stack.proxy_port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        try:
            writer.write(
                b"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                b"content-type: application/json\r\nanthropic-version: 2023-06-01\r\n"
                b"authorization: Bearer %s\r\ncontent-length: %d\r\n\r\n"
                % (token.encode(), len(body))
                + body
            )
            head = await reader.readuntil(b"\r\n\r\n")
            yield Reply(int(head[9:12]), head, reader), writer
        finally:
            writer.close()

    async def _revocations(self, every: float) -> None:
        """Revoke a sandbox now and then, and put a new one into its place."""
        while not self._ending.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), every)
                return
            number = self._choose.randrange(len(self._boxes))
            old, self._boxes[number] = self._boxes[number], await self._new()
            old.revoked = True
            body = {"scope": "sandbox", "ident": old.made["id"]}
            answer = await asyncio.to_thread(self._stack.admin, "POST", "/v1/revocations", body)
            self.counts[f"revocation {answer.status}"] += 1


def summary(counts: Counter[str]) -> str:
    """The counts in one line of JSON."""
    return json.dumps(dict(sorted(counts.items())))


__all__ = ["MODEL", "Clients", "summary"]
