"""A service that is asked to end before it has begun."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from daypass_core.server import Drain, Listener, serve
from daypass_core.settings import Listen


async def test_an_end_during_the_start_waits_for_nobody(tmp_path: Path) -> None:
    """A signal that comes before a service is ready ends it as soon as it has started."""
    lived: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        arrived = asyncio.Event()
        await receive()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, arrived.set)
        for number in (signal.SIGTERM, signal.SIGUSR1):  # the second tells that the first is here
            os.kill(os.getpid(), number)
        await arrived.wait()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
        lived.append("started")
        await send({"type": "lifespan.startup.complete"})
        await receive()
        lived.append("ended")
        await send({"type": "lifespan.shutdown.complete"})

    async with asyncio.timeout(30):
        listener = Listener(app, Listen(path=str(tmp_path / "s.sock")))
        await serve([listener], drain=Drain(ready_seconds=60.0, drain_seconds=60.0))
    assert lived == ["started", "ended"]
