"""Several workers of one proxy: the parent holds the addresses, the workers serve.

Each worker binds the TCP ports for itself, and the kernel shares connections out among them; one
that ends takes its own connections along and no others. What has one name for all (Unix sockets,
the metrics listener) is bound here once. Workers share nothing but the database: caches, pools of
connections, limits of `server_settings` are each one's own (docs/server.md).
"""

import asyncio
import sys
from collections.abc import Coroutine
from contextlib import ExitStack
from functools import partial
from typing import Any

from daypass_core.log import configure
from daypass_core.server import CLOSE_SECONDS, CUTTING_SECONDS, UNWIND_SECONDS
from daypass_core.server import run as run_loop
from daypass_core.settings import Listen
from daypass_core.sockets import CannotListen, listening, reserved
from daypass_core.workers import BEAT_SECONDS, EXIT_CANNOT_START, Pulse, supervise
from daypass_proxy import serving
from daypass_proxy.settings import Settings
from daypass_proxy.sibling import Siblings, sibling_socket

_SLACK_SECONDS = 5.0


def serve(settings: Settings) -> int:
    """Serve with as many workers as the settings say; return the exit status."""
    # No thread for the log here: this process forks.
    configure("proxy", settings.log_level, thread=False)
    with ExitStack() as stack:
        try:
            place = _place(settings, stack)
        except CannotListen as error:
            sys.stderr.write(f"daypass: {error}\n")
            return EXIT_CANNOT_START
        count = settings.server.proxy_workers
        siblings = tuple(stack.enter_context(sibling_socket()) for _ in range(count))

        def work(number: int, pulse: Pulse) -> int:
            configure("proxy", settings.log_level)
            mine = serving.Place(
                place.listen, place.metrics_listen, place.sockets, Siblings(number, siblings)
            )
            run_loop(_alive(pulse, serving.run(settings, on_started=pulse.ready, place=mine)))
            return 0

        return supervise(
            count, work, end_seconds=end_seconds(settings), on_ending=partial(_let_go, place)
        )


def end_seconds(settings: Settings) -> float:
    """Return how long a worker may take from SIGTERM to its end, in seconds."""
    given = settings.server
    bounds = CUTTING_SECONDS + UNWIND_SECONDS + CLOSE_SECONDS + _SLACK_SECONDS
    return given.ready_seconds + given.drain_seconds + bounds


def _place(settings: Settings, stack: ExitStack) -> serving.Place:
    """Bind what all share, reserve what each binds for itself; raises CannotListen."""
    listens: list[Listen] = []
    sockets = {}
    for listen in settings.listen:
        if listen.is_unix:
            held = listening(listen, mode=serving.SOCKET_MODE, setting=serving.LISTEN)
            sockets[listen] = stack.enter_context(held)
            listens.append(listen)
        else:
            listens.append(stack.enter_context(reserved(listen, setting=serving.LISTEN)))
    for listen in settings.metrics_listen:
        held = listening(listen, setting=serving.METRICS_LISTEN)
        sockets[listen] = stack.enter_context(held)
    return serving.Place(tuple(listens), settings.metrics_listen, sockets)


def _let_go(place: serving.Place) -> None:
    """Close what sandboxes reach, so that it is closed as soon as the workers take nothing more.

    Whoever connects then is refused at once, instead of waiting for an answer until the end.
    """
    for listen in place.listen:
        for sock in place.sockets.get(listen, ()):
            sock.close()


async def _alive(pulse: Pulse, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, and say each second that the loop turns."""
    _beat(pulse)
    await work


def _beat(pulse: Pulse) -> None:
    pulse.beat()
    asyncio.get_running_loop().call_later(BEAT_SECONDS, _beat, pulse)
