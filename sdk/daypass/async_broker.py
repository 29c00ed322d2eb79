"""`AsyncBroker`: an orchestrator that starts many sandboxes at once, with asyncio.

    async with AsyncBroker().sandbox(profile="coder") as sandbox:
        await start_my_container(env=sandbox.environment, files=sandbox.files)

It is `Broker` in threads, which is safe because that one shares nothing between calls. What it adds
is cancellation: a sandbox is ended also when its task is cancelled while it is being made or ended,
as `asyncio.gather`, `timeout` and `TaskGroup` do with the others when one fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from daypass._errors import DaypassError
from daypass.broker import Broker, Sandbox

T = TypeVar("T")


class AsyncBroker:
    """One broker, one credential; arguments and errors as of `Broker`, which it holds as `sync`."""

    def __init__(
        self,
        url: str | None = None,
        credential: str | None = None,
        *,
        ca_file: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.sync = Broker(url, credential, ca_file=ca_file, env=env)

    async def run(self, method: Callable[..., T], *arguments: object, **fields: object) -> T:
        """Await one method of `sync`: `await broker.run(broker.sync.usage, group_by="sandbox")`."""
        return await asyncio.to_thread(method, *arguments, **fields)

    @asynccontextmanager
    async def sandbox(self, **fields: object) -> AsyncIterator[Sandbox]:
        """Register a sandbox, give it, and end it whatever happens; `fields` as `Broker.create`.

        One with a heartbeat is said to be alive for as long as the block runs.
        """
        async with self.sandboxes(None, **fields) as made:
            yield made[0]

    @asynccontextmanager
    async def sandboxes(self, count: int | None, **fields: object) -> AsyncIterator[list[Sandbox]]:
        """Register `count` sandboxes in one call, give them, and end them all whatever happens.

        Raises the first error of the block, else the first of ending, after all were tried.
        """
        made: list[Sandbox] = []
        try:
            await _to_its_end(partial(self._create, made, count, fields))
            beats = [asyncio.ensure_future(self._beat(each)) for each in made]
            try:
                yield made
            finally:
                for beat in beats:
                    beat.cancel()
                if beats:  # none of them comes after the end
                    await asyncio.wait(beats)
        except BaseException:
            with suppress(DaypassError):  # the first error is the one to see
                await self._end(made)
            raise
        await self._end(made)

    def _create(self, made: list[Sandbox], count: int | None, fields: dict[str, object]) -> None:
        if count is None:
            made.append(self.sync.create(**fields))  # type: ignore[arg-type]
        else:
            made.extend(self.sync.create_many(count, **fields))  # type: ignore[arg-type]

    async def _beat(self, sandbox: Sandbox) -> None:
        """Say that it lives, three times in the time that the broker waits, until cancelled."""
        seconds = sandbox.raw.get("heartbeat_seconds")
        while seconds is not None:
            await asyncio.sleep(seconds / 3)
            with suppress(DaypassError):  # the next one may get through
                await _to_its_end(partial(self.sync.beat, sandbox.id))

    async def _end(self, made: list[Sandbox]) -> None:
        ended = [_to_its_end(partial(self.sync.end, each.id)) for each in made]
        for outcome in await asyncio.gather(*ended, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def __repr__(self) -> str:
        """Name the broker, never the credential."""
        return f"Async{self.sync!r}"


async def _to_its_end(work: Callable[[], T]) -> T:
    """Run in a thread until it is done, also when cancelled meanwhile; that is raised then.

    A thread cannot be stopped: who left it alone would never learn what it registered.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:  # noqa: PERF203 - there may be several
            cancelled = error
    if cancelled is None:
        return running.result()
    with suppress(DaypassError):  # asked for here, so that it does not count as never seen
        running.result()
    raise cancelled
