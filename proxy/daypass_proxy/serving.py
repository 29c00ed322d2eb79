"""The proxy behind its listeners: limits, gate, guard, health and figures, and how it ends.

`__main__` runs it as the only process, `crew` in each of several workers. `app` makes what serves
the calls; what is said here is how connections are held and let go.
"""

import asyncio
import gc
import logging
import resource
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from daypass_core.clock import StoreClock
from daypass_core.log import event, get_logger
from daypass_core.problem import Problem
from daypass_core.server import Drain, Listener, serve
from daypass_core.settings import Listen
from daypass_proxy.app import build_services
from daypass_proxy.edge import Application
from daypass_proxy.gate import Gate
from daypass_proxy.guard import Limits, guarded
from daypass_proxy.providers import Provider, Rendered
from daypass_proxy.providers.anthropic import Anthropic
from daypass_proxy.providers.openai import OpenAI
from daypass_proxy.routes import is_call, speaker
from daypass_proxy.scrape import Scrape
from daypass_proxy.server_settings import ServerSettings
from daypass_proxy.settings import Settings
from daypass_proxy.sibling import SiblingProtocol, Siblings
from daypass_proxy.streams import CutReason

log = get_logger(__name__)

LISTEN, METRICS_LISTEN = "DAYPASS_PROXY_LISTEN", "DAYPASS_PROXY_METRICS_LISTEN"
SOCKET_MODE = 0o666
"""Whoever reaches the socket still needs a token; sandboxes run as other users."""
# Streams still open this long before the drain's end are told so, instead of being torn.
_LAST_WORDS_SECONDS = 5.0
# systemd sends its signal to all of a service, and our parent passes its own on to each worker.
_ONE_WORD_SECONDS = 0.5
_OWN_DESCRIPTORS = 256
"""What the proxy needs beside connections: libraries, log, database, key vault, body checks."""


@dataclass(frozen=True, slots=True)
class Place:
    """What one of several workers has from its parent: addresses, and sockets shared by all.

    A port that is not among the sockets is bound by each worker for itself.
    """

    listen: tuple[Listen, ...]
    metrics_listen: tuple[Listen, ...]
    sockets: Mapping[Listen, list[socket.socket]] = field(default_factory=dict)
    siblings: Siblings | None = None


async def run(
    settings: Settings,
    *,
    on_started: Callable[[], None] | None = None,
    place: Place | None = None,
) -> None:
    """Serve until a signal."""
    clock, given = StoreClock(), settings.server
    calls, connections = room(given, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    gate = Gate(calls, connections, given.lag_seconds)
    application = Application(partial(build_services, settings, clock, gate))
    place = place or Place(settings.listen, settings.metrics_listen)
    await serve(
        [*_public(settings, application, gate, place), *_figures(application, place)],
        on_started=partial(_started, on_started),
        on_stopping=partial(_end_soon, application, gate, given),
        on_cutting=partial(_cut_streams, application),
        drain=Drain(
            given.ready_seconds,
            given.drain_seconds,
            0.0 if place.siblings is None else _ONE_WORD_SECONDS,
        ),
    )


def room(given: ServerSettings, descriptors: int) -> tuple[int, int]:
    """Return how many calls and connections are taken: the settings, if descriptors suffice.

    A call takes one for its client and one for its provider.
    """
    free = max(descriptors - _OWN_DESCRIPTORS, 32)
    calls = min(given.max_calls, free // 2)
    connections = min(given.max_connections, free - calls)
    if (calls, connections) != (given.max_calls, given.max_connections):
        event(
            log, "limits_lowered", level=logging.WARNING, descriptors=descriptors,
            max_calls=calls, max_connections=connections,
        )  # fmt: skip
    return calls, connections


def _public(
    settings: Settings, application: Application, gate: Gate, place: Place
) -> Iterator[Listener]:
    """Yield what sandboxes reach."""
    given = settings.server
    guard = guarded(
        Limits(
            header_seconds=settings.header_seconds,
            body_seconds=given.body_seconds,
            write_stall_seconds=given.write_seconds,
        ),
        render=partial(_render, settings),
        refused=partial(_count_refusal, application),
        gate=gate,
        is_call=partial(is_call, upstreams=settings.upstreams),
    )
    for listen in place.listen:
        yield Listener(
            application,
            listen,
            http=guard,
            tls=None if listen.is_unix else settings.tls,
            name="proxy",
            mode=SOCKET_MODE,
            setting=LISTEN,
            bound=place.sockets.get(listen, ()),
            shares_port=place.siblings is not None and not listen.is_unix,
        )


def _figures(application: Application, place: Place) -> Iterator[Listener]:
    """Yield what operators reach, and siblings; it goes on while calls are drained."""
    siblings = place.siblings
    for listen in place.metrics_listen:
        yield Listener(
            Scrape(lambda: application.services, siblings),
            listen,
            name="metrics",
            setting=METRICS_LISTEN,
            bound=place.sockets.get(listen, ()),
            lasting=True,
        )
    if siblings is not None:
        yield Listener(
            Scrape(lambda: application.services),
            Listen(path="sibling"),
            http=SiblingProtocol,
            name="sibling",
            bound=(siblings.own,),
            lasting=True,
        )


def _started(then: Callable[[], None] | None) -> None:
    """Keep the collector from stopping the loop, then tell that calls are taken.

    All that was made until now lives as long as the process, so no round has to look at it again.
    Calls leave no cycles behind, so rounds may be rare: by default the opening of thousands of
    streams would start several full ones, each longer than a stream may wait. Measured with 5,000
    streams: a full round takes 100 ms and finds nothing, one of the middle generation 14 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 1_000)
    if then is not None:
        then()


def _render(settings: Settings, problem: Problem, request_id: str, target: bytes) -> Rendered:
    """Render what the guard refuses in the shape that the client of this target reads."""
    name = speaker(target.partition(b"?")[0], settings.upstreams)
    dialect: Provider = Anthropic() if name == "anthropic" else OpenAI(name)
    return dialect.render(problem, request_id)


def _count_refusal(application: Application, code: str) -> None:
    """Count what the guard refused; before the start and after the end nothing is counted."""
    if application.services is not None:
        application.services.metrics.refused(code)


def _end_soon(application: Application, gate: Gate, given: ServerSettings) -> None:
    """Be not ready; and end the calls that would not end by themselves before the drain is over."""
    gate.close()
    services = application.services
    if services is not None:
        last_words = min(_LAST_WORDS_SECONDS, given.drain_seconds / 2)
        asyncio.get_running_loop().call_later(
            given.ready_seconds + given.drain_seconds - last_words,
            services.live_calls.end,
            CutReason.SHUTDOWN,
        )


def _cut_streams(application: Application) -> None:
    services = application.services
    if services is not None:
        services.live_calls.end(CutReason.SHUTDOWN)
