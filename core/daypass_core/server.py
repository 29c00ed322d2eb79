"""Running the listeners of a service: sockets, TLS, signals, draining.

`run(serve([...]))` is the last line of a service's `__main__`. Sockets are bound here before
anything starts, so a taken port is one sentence and exit code 2; several uvicorn servers share one
loop. The first SIGTERM or SIGINT begins the end: not ready, then not accepting, then drained within
a bound; a second one ends at once. SIGHUP reads certificates anew.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.lifespan.off import LifespanOff
from uvicorn.server import ServerState

from daypass_core.log import event, flush, get_logger
from daypass_core.punctual import PunctualProtocol
from daypass_core.settings import Listen
from daypass_core.sockets import BACKLOG, CannotListen, address_of, listening
from daypass_core.tls_context import (
    LOOK_SECONDS,
    BadCertificate,
    Certificate,
    TlsFiles,
    renew_all,
)

__all__ = ["Drain", "Listener", "StartFailed", "TlsFiles", "run", "serve"]

log = get_logger(__name__)

DRAIN_SECONDS = 30.0
"""How long calls in flight may take to end once no new ones are taken."""
KEEP_ALIVE_SECONDS = 120
HANDSHAKE_SECONDS = 10.0
"""How long a client may take to agree on TLS; until then no protocol of ours knows of it."""
ACCEPTED_AT_ONCE = 16
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
_LAST_SECONDS = 1.0
"""How long the answers of the lasting listeners may take when all else is over."""


@dataclass(frozen=True, slots=True)
class Drain:
    """How a service ends; in seconds.

    For `ready_seconds` after the first signal it goes on as before but says that it is not ready,
    so that whoever sends to it turns elsewhere; then it accepts nothing new, and what runs has
    `drain_seconds` to end. A signal within `one_word_seconds` of the first is the same one.
    """

    ready_seconds: float = 0.0
    drain_seconds: float = DRAIN_SECONDS
    one_word_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Listener:
    """One address and what answers there.

    `http` is uvicorn's protocol: a name, or a class of ours. `setting` is the variable that names
    the address, for the message when it is taken. `mode` is the file mode of a Unix socket.
    `bound` are sockets that a parent has bound already; with `shares_port` other processes of ours
    listen at the same port. One that is `lasting` accepts until all others have drained: health
    and figures of a service that ends. An app on several listeners is started once.
    """

    app: Any
    listen: Listen
    http: type[asyncio.Protocol] | str = PunctualProtocol
    tls: TlsFiles | None = None
    name: str = ""
    mode: int = 0o600
    setting: str = ""
    bound: Sequence[socket.socket] = ()
    shares_port: bool = False
    lasting: bool = False

    def sockets(self) -> contextlib.AbstractContextManager[list[socket.socket]]:
        """Hold the listening sockets; raises CannotListen."""
        if self.bound:
            return contextlib.nullcontext(list(self.bound))
        return listening(
            self.listen, mode=self.mode, setting=self.setting, shares_port=self.shares_port
        )


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


async def serve(
    listeners: Sequence[Listener],
    *,
    on_started: Callable[[], None] | None = None,
    on_stopping: Callable[[], None] | None = None,
    on_cutting: Callable[[], None] | None = None,
    drain: Drain = Drain(),
) -> None:
    """Serve all listeners until a signal, then drain; returns when everything is closed.

    `on_started` runs when every listener accepts, `on_stopping` at the first signal, `on_cutting`
    when the drain is over and requests still run: the app ends them in its own words. Exits with
    code 2 and a sentence on standard error when a listener or an app cannot start.
    """
    try:
        await _Serving(listeners, on_started, on_stopping, on_cutting, drain).run()
    except (StartFailed, CannotListen, BadCertificate) as error:
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
        drain: Drain,
    ) -> None:
        self._listeners = listeners
        self._on_started = on_started
        self._on_stopping = on_stopping
        self._on_cutting = on_cutting
        self._times = drain
        self._servers: list[uvicorn.Server] = []
        self._lasting: list[uvicorn.Server] = []
        self._lifespans: dict[int, Any] = {}  # by id of the app: one start each
        self._states: dict[int, ServerState] = {}  # by id of the app: one count of what runs
        self._certificates: list[Certificate] = []
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._asked_at = 0.0

    async def run(self) -> None:
        with contextlib.ExitStack() as sockets:
            bound = [sockets.enter_context(one.sockets()) for one in self._listeners]
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
        config = self._config(listener)
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
        # Connections and requests of one app are counted together, whatever way they came.
        server.server_state = self._states.setdefault(id(listener.app), server.server_state)
        await _accept(server, [*socks, *_accepting_more(socks)])
        (self._lasting if listener.lasting else self._servers).append(server)

    def _config(self, listener: Listener) -> uvicorn.Config:
        drain = _LAST_SECONDS if listener.lasting else self._times.drain_seconds
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
            timeout_graceful_shutdown=drain,  # type: ignore[arg-type]  # goes to wait_for()
        )
        config.load()
        if listener.tls is not None:
            certificate = Certificate(listener.tls)
            self._certificates.append(certificate)
            config.ssl = certificate.context
        return config

    async def _until_stopped(self) -> None:
        servers = [*self._servers, *self._lasting]
        early = self._stop.is_set()  # nobody knows yet that it is ready
        ticking = asyncio.gather(*(server.main_loop() for server in servers))
        looking = asyncio.create_task(self._look_at_certificates())
        await self._stop.wait()
        looking.cancel()
        times = self._times
        event(log, "stopping", ready_seconds=times.ready_seconds, drain_seconds=times.drain_seconds)
        if self._on_stopping is not None:
            self._on_stopping()
        if times.ready_seconds and not early:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._force.wait(), times.ready_seconds)
            event(log, "not_accepting")
        for server in self._servers:
            server.should_exit = True
        draining = asyncio.create_task(_shut(self._servers))
        forced = asyncio.create_task(self._force.wait())
        both: list[asyncio.Task[Any]] = [draining, forced]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        await asyncio.wait(both)
        await self._end_requests()
        for server in self._lasting:
            server.should_exit = True
        await ticking
        await _shut(self._lasting)

    async def _look_at_certificates(self) -> None:
        while self._certificates:
            await asyncio.sleep(LOOK_SECONDS)
            renew_all(self._certificates)

    async def _end_requests(self) -> None:
        """Cancel what still runs after the drain and let it unwind (it settles its usage)."""
        tasks = list({task for one in self._servers for task in one.server_state.tasks})
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
        # Without certificates too: who renews them for all services sends it to all of them.
        loop.add_signal_handler(signal.SIGHUP, renew_all, self._certificates)
        try:
            yield
        finally:
            for number in (*numbers, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._stop.is_set():
            self._asked_at = now
            self._stop.set()
        elif now - self._asked_at >= self._times.one_word_seconds:
            self._force.set()


async def _accept(server: uvicorn.Server, socks: Sequence[socket.socket]) -> None:
    """Have a server accept as uvicorn has it, but with a bound of ours for TLS handshakes.

    By default one that says nothing would have its descriptor for a minute.
    """
    await server.startup(sockets=[])
    config, loop = server.config, asyncio.get_running_loop()

    def protocol() -> asyncio.Protocol:
        kind: Any = config.http_protocol_class
        made: asyncio.Protocol = kind(
            config=config, server_state=server.server_state, app_state=server.lifespan.state
        )
        return made

    bound = None if config.ssl is None else HANDSHAKE_SECONDS
    for sock in socks:
        accepting = await loop.create_server(
            protocol, sock=sock, ssl=config.ssl, backlog=config.backlog, ssl_handshake_timeout=bound
        )
        server.servers.append(accepting)


def _accepting_more(socks: Sequence[socket.socket]) -> list[socket.socket]:
    """Return further handles on the same sockets, closed with the server.

    libuv takes one connection from a handle in each turn of the loop (since 1.45). A busy loop
    turns some fifty times a second, so newcomers, probes among them, would wait for seconds.
    """
    if not type(asyncio.get_running_loop()).__module__.startswith("uvloop"):
        return []  # takes as many as there are
    return [sock.dup() for sock in socks for _ in range(ACCEPTED_AT_ONCE - 1)]


async def _shut(servers: Sequence[uvicorn.Server]) -> None:
    """Close their sockets and wait, within the bound, until every connection has ended."""
    await asyncio.gather(*(server.shutdown() for server in servers))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not made for every platform
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
