"""The load: sandboxes that begin streams at a steady rate, whatever becomes of them.

Everything that talks lives in one event loop in a thread of its own: clients, provider, probes. The
faults are made by the main thread meanwhile. `Sandbox.poor` ones have a budget that runs out.
"""

import asyncio
import itertools
import json
import random
import ssl
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvloop

from tests.fleet import provider
from tests.fleet.client import MAX_RETRIES, Client, Raw
from tests.fleet.service import Service

_T = TypeVar("_T")
RENEW_SECONDS = 20.0
"""How old an access token gets before its sandbox takes another; it lives for ten minutes."""
LONG_SHARE = 0.2
LIMITS = frozenset({"402", "429"})
"""What a sandbox at its limit is answered."""


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        # Connections that end in the middle of a handshake, and the like: faults are our business.
        self._loop.set_exception_handler(lambda loop, context: None)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T], timeout: float = 60.0) -> _T:
        """Do something there and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def close(self) -> None:
        """Stop it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


@dataclass
class Sandbox:
    """One sandbox, as registered, and its newest token."""

    registered: Mapping[str, Any]
    poor: bool = False
    rate_limit: int | None = None
    token: str = ""
    taken: float = 0.0

    @property
    def id(self) -> str:
        """Its id."""
        return str(self.registered["id"])


@dataclass
class Call:
    """One call as its agent saw it; `kind` as in `Raw`, of the last try."""

    sandbox: str
    marker: str
    began: float
    ended: float
    kind: str
    poor: bool
    whole: str = ""
    """The provider's id of an answer that came whole."""


@dataclass
class Seen:
    """What came of the load since it began."""

    calls: list[Call] = field(default_factory=list)
    raws: list[Raw] = field(default_factory=list)
    tokens: list[Raw] = field(default_factory=list)
    attempts: Counter[str] = field(default_factory=Counter)
    not_begun: int = 0
    """Calls that the load itself could not begin, since too many were open."""
    lag: float = 0.0
    """For how long the load itself was held up at most, in seconds: this machine was too busy."""


class Load:
    """Sandboxes that call through a service, `rate` streams a second in all; `start`, `stop`."""

    def __init__(self, loop: Loop, service: Service, tls: ssl.SSLContext | None, name: str) -> None:
        self.loop = loop
        self._service, self._tls, self._name = service, tls, name
        self._numbers = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self._open: set[asyncio.Task[None]] = set()
        self._clients: list[Client] = []
        self.seen = Seen()
        self.most_open = 0

    def start(self, sandboxes: list[Sandbox], rate: float, most_open: int = 1500) -> None:
        """Begin; returns once every sandbox has a token."""
        self.loop.run(self._start(sandboxes, rate, most_open))

    def stop(self, timeout: float = 180.0) -> Seen:
        """Begin no more calls, wait for those under way, return what was seen and forget it."""
        return self.loop.run(self._stop(timeout), timeout + 30)

    def trouble_since(self, moment: float) -> float | None:
        """When the last request failed after a moment for any other reason than a limit."""
        bad = [raw.at for raw in self.seen.raws[-5000:] if _troubled(raw) and raw.at > moment]
        return max(bad, default=None)

    async def _start(self, sandboxes: list[Sandbox], rate: float, most_open: int) -> None:
        self.seen, self.most_open = Seen(), most_open
        clients = [self._client(number) for number in range(len(sandboxes))]
        await asyncio.gather(*(self._first(*pair) for pair in zip(clients, sandboxes, strict=True)))
        self._tasks.append(asyncio.ensure_future(self._lag()))
        pause = len(sandboxes) / rate
        for number, (client, sandbox) in enumerate(zip(clients, sandboxes, strict=True)):
            first = number * pause / len(sandboxes)
            for work in (
                self._calling(client, sandbox, first, pause),
                self._renew(client, sandbox),
            ):
                self._tasks.append(asyncio.ensure_future(work))

    def _client(self, number: int) -> Client:
        # Each from an address of its own, as sandboxes do: what is limited by peer must not add up.
        address = f"127.0.3.{number % 250 + 1}"
        client = Client(self._service.pick, address, self._tls, self._name)
        self._clients.append(client)
        return client

    async def _first(self, client: Client, sandbox: Sandbox) -> None:
        for _ in range(20):
            if await self._exchange(client, sandbox):
                return
            await asyncio.sleep(0.5)
        raise AssertionError(f"no token at the start: {self.seen.tokens[-1]}")

    async def _stop(self, timeout: float) -> Seen:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._open:
            await asyncio.wait(self._open, timeout=timeout)
        for client in self._clients:
            client.close()
        self._clients.clear()
        seen, self.seen = self.seen, Seen()
        return seen

    async def _calling(self, client: Client, sandbox: Sandbox, first: float, pause: float) -> None:
        due = time.monotonic() + first
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += pause
            if len(self._open) >= self.most_open:
                self.seen.not_begun += 1
                continue
            task = asyncio.ensure_future(self._call(client, sandbox))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _lag(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.05)
            self.seen.lag = max(self.seen.lag, time.monotonic() - began - 0.05)

    async def _call(self, client: Client, sandbox: Sandbox) -> None:
        seen, began = self.seen, time.monotonic()
        marker = f"n{next(self._numbers)}"
        long = random.random() < LONG_SHARE
        body = provider.body(sandbox.id, marker, long=long)
        headers = {
            "authorization": f"Bearer {sandbox.token}",
            "anthropic-version": "2023-06-01",
        }
        raws: list[Raw] = []
        retries = 0 if sandbox.poor else MAX_RETRIES
        raw = await client.call("/v1/messages", body, headers, raws, retries)
        seen.raws += [one for one in raws if not (sandbox.poor and one.kind in LIMITS)]
        seen.attempts[sandbox.id] += len(raws)
        whole = raw.headers.get("request-id", "") if raw.ok else ""
        ended = time.monotonic()
        seen.calls.append(Call(sandbox.id, marker, began, ended, raw.kind, sandbox.poor, whole))

    async def _renew(self, client: Client, sandbox: Sandbox) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS * random.uniform(0.5, 1.0))
            while not await self._exchange(client, sandbox):
                await asyncio.sleep(1.0)

    async def _exchange(self, client: Client, sandbox: Sandbox) -> bool:
        environment = sandbox.registered["environment"]
        body = {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": sandbox.registered["launch"]["credential"],
            "federation_rule_id": environment["ANTHROPIC_FEDERATION_RULE_ID"],
            "organization_id": environment["ANTHROPIC_ORGANIZATION_ID"],
        }
        raw = await client.once("/v1/oauth/token", json.dumps(body).encode(), {})
        self.seen.tokens.append(raw)
        if raw.ok:
            sandbox.token, sandbox.taken = json.loads(raw.body)["access_token"], raw.at
        return raw.ok


def _troubled(raw: Raw) -> bool:
    return not raw.ok
