"""Running the listeners of a service: sockets, TLS, signals, draining, hardening.

`run(serve([...]))` is the last line of a service's `__main__`. Sockets are bound here before
anything starts, so a taken port is one sentence and exit code 2; several uvicorn servers share one
loop; the first SIGTERM or SIGINT drains within a bound, a second one ends at once.
"""

import asyncio
import contextlib
import ctypes
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.lifespan.off import LifespanOff

from daypass_core.log import event, flush, get_logger
from daypass_core.punctual import PunctualProtocol
from daypass_core.settings import Listen
from daypass_core.sockets import BACKLOG, CannotListen, address_of, listening

log = get_logger(__name__)

DRAIN_SECONDS = 30.0
"""How long calls in flight may take to end after the first signal."""
KEEP_ALIVE_SECONDS = 120
EXIT_CANNOT_START = 2
CUTTING_SECONDS = 3.0
"""How long calls told to end by the app itself may take, before they are cancelled."""
UNWIND_SECONDS = 5.0
"""How long calls cut at the end of the drain may take to settle."""
CLOSE_SECONDS = 8.0
"""How long the app may then take to close.

One order, each inside the next: the ledger goes on trying for 6 s to book what is owed (proxy,
`ledger/writer.py`), the app has 8 s to close, and `daypass up` waits 15 s after its second signal
before it kills (SDK, `_process.py`).
"""
_PR_SET_DUMPABLE = 4


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a listener: certificate chain and private key."""

    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Listener:
    """One address and what answers there.

    `http` is uvicorn's protocol: a name, or a class of ours. `setting` is the variable that names
    the address, for the message when it is taken. `mode` is the file mode of a Unix socket.
    An app on several listeners is started once.
    """

    app: Any
    listen: Listen
    http: type[asyncio.Protocol] | str = PunctualProtocol
    tls: TlsFiles | None = None
    name: str = ""
    mode: int = 0o600
    setting: str = ""


class StartFailed(Exception):
    """The service cannot start; the message is one sentence for a person."""


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run `main` on uvloop where it is installed, else on asyncio, with all descriptors allowed."""
    allow_connections()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main)


def allow_connections() -> None:
    """Raise the soft limit of descriptors to the hard one: each stream takes two."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # A system may allow less than its hard limit says; then what is there has to do.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def harden() -> None:
    """Keep secrets in memory out of core dumps, /proc/PID/mem and /proc/PID/environ (Linux)."""
    if sys.platform != "linux":
        event(log, "hardening_not_available", platform=sys.platform)
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        event(log, "hardening_failed", level=logging.WARNING, step="PR_SET_DUMPABLE")


async def serve(
    listeners: Sequence[Listener],
    *,
    on_started: Callable[[], None] | None = None,
    on_stopping: Callable[[], None] | None = None,
    on_cutting: Callable[[], None] | None = None,
    drain_seconds: float = DRAIN_SECONDS,
) -> None:
    """Serve all listeners until a signal, then drain; returns when everything is closed.

    `on_started` runs when every listener accepts, `on_stopping` at the first signal, `on_cutting`
    when the drain is over and requests still run: the app ends them in its own words. Exits with
    code 2 and a sentence on standard error when a listener or an app cannot start.
    """
    try:
        await _Serving(listeners, on_started, on_stopping, on_cutting, drain_seconds).run()
    except (StartFailed, CannotListen) as error:
        flush()  # what led to it comes first
        sys.stderr.write(f"daypass: {error}\n")
        raise SystemExit(EXIT_CANNOT_START) from None


class _Serving:
    """One run of all listeners."""

    def __init__(
        self,
        listeners: Sequence[Listener],
        on_started: Callable[[], None] | None,
        on_stopping: Callable[[], None] | None,
        on_cutting: Callable[[], None] | None,
        drain_seconds: float,
    ) -> None:
        self._listeners = listeners
        self._on_started = on_started
        self._on_stopping = on_stopping
        self._on_cutting = on_cutting
        self._drain_seconds = drain_seconds
        self._servers: list[uvicorn.Server] = []
        self._lifespans: dict[int, Any] = {}  # by id of the app: one start each
        self._stop = asyncio.Event()
        self._force = asyncio.Event()

    async def run(self) -> None:
        with contextlib.ExitStack() as sockets:
            bound = [
                sockets.enter_context(listening(one.listen, mode=one.mode, setting=one.setting))
                for one in self._listeners
            ]
            with self._signals():
                try:
                    for listener, socks in zip(self._listeners, bound, strict=True):
                        await self._start(listener, socks)
                    self._announce(bound)
                    await self._until_stopped()
                finally:
                    await self._close_apps()
        event(log, "stopped")

    def _announce(self, bound: Sequence[Sequence[socket.socket]]) -> None:
        for listener, socks in zip(self._listeners, bound, strict=True):
            addresses = [str(address_of(sock)) for sock in socks]
            event(log, "listening", listener=listener.name, addresses=addresses)
        if self._on_started is not None:
            self._on_started()

    async def _start(self, listener: Listener, socks: list[socket.socket]) -> None:
        config = _config(listener, self._drain_seconds)
        lifespan = self._lifespans.get(id(listener.app))
        if lifespan is None:
            lifespan = self._lifespans[id(listener.app)] = config.lifespan_class(config)
            await lifespan.startup()
            if lifespan.should_exit:
                raise StartFailed(f"{listener.name or 'service'} did not start; see the log above")
        server = uvicorn.Server(config)
        # The app's lifespan is ours to run, so that it ends after the last listener has drained.
        server.lifespan = LifespanOff(config)
        server.lifespan.state = lifespan.state
        await server.startup(sockets=socks)
        self._servers.append(server)

    async def _until_stopped(self) -> None:
        ticking = asyncio.gather(*(server.main_loop() for server in self._servers))
        await self._stop.wait()
        event(log, "stopping", drain_seconds=self._drain_seconds)
        if self._on_stopping is not None:
            self._on_stopping()
        for server in self._servers:
            server.should_exit = True
        await ticking
        draining = asyncio.create_task(self._drain())
        forced = asyncio.create_task(self._force.wait())
        both: list[asyncio.Task[Any]] = [draining, forced]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        await asyncio.wait(both)
        await self._end_requests()

    async def _drain(self) -> None:
        """Close the listeners and wait, within the bound, until every connection has ended."""
        await asyncio.gather(*(server.shutdown() for server in self._servers))

    async def _end_requests(self) -> None:
        """Cancel what still runs after the drain and let it unwind (it settles its usage)."""
        tasks = [task for server in self._servers for task in server.server_state.tasks]
        if tasks and self._on_cutting is not None:
            self._on_cutting()  # the app's own way to end them, with words for the client
            _, unfinished = await asyncio.wait(tasks, timeout=CUTTING_SECONDS)
            tasks = list(unfinished)
        for task in tasks:
            # Once only: a second cancellation would break into the unwinding of the first.
            if not task.cancelling():
                task.cancel()
        if tasks:
            event(log, "requests_cut", level=logging.WARNING, count=len(tasks))
            await asyncio.wait(tasks, timeout=UNWIND_SECONDS)

    async def _close_apps(self) -> None:
        for lifespan in reversed(self._lifespans.values()):
            closing = asyncio.ensure_future(lifespan.shutdown())
            done, _ = await asyncio.wait([closing], timeout=CLOSE_SECONDS)
            if not done:
                closing.cancel()
                event(log, "close_timed_out", level=logging.ERROR, seconds=CLOSE_SECONDS)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Route SIGTERM and SIGINT here; uvicorn's own capture is never entered."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._force.set()
        self._stop.set()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not made for every platform
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _config(listener: Listener, drain_seconds: float) -> uvicorn.Config:
    config = uvicorn.Config(
        listener.app,
        http=listener.http,
        ws="none",
        interface="asgi3",
        lifespan="auto",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # nobody's X-Forwarded-For is believed
        server_header=False,
        date_header=True,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=drain_seconds,  # type: ignore[arg-type]  # goes to wait_for()
        ssl_certfile=listener.tls.cert if listener.tls else None,
        ssl_keyfile=listener.tls.key if listener.tls else None,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        if listener.tls is None:
            raise
        reason = getattr(error, "strerror", None) or "not a certificate and its key"
        raise StartFailed(
            f"cannot use TLS files {listener.tls.cert} and {listener.tls.key}: {reason}"
        ) from None
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return config
