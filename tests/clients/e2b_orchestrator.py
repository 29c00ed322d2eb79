"""An orchestrator as people write it, with E2B's own SDK and our helper: one sandbox, or many.

It says which sandboxes it has as one JSON line, waits for a line of input, and leaves its block.
"""

import asyncio
import json
import sys
from typing import Any

import e2b as vendor  # type: ignore[import-not-found]  # in an environment of its own

from daypass import AsyncBroker, Broker, e2b

CREATE = {"template": "agent", "timeout": 600, "metadata": {"task": "42"}, "envs": {"LANG": "C"}}


def one(options: dict[str, Any]) -> None:
    """One sandbox, wrapped for LangChain's Deep Agents."""
    from langchain_e2b import E2BSandbox  # type: ignore[import-not-found]  # as above

    with e2b.sandbox(Broker(), create=CREATE, **options) as vm:
        backend = E2BSandbox(sandbox=vm)
        wait([backend.id])


async def many(options: dict[str, Any]) -> None:
    """Three at once; the last one fails when it is told to go on, which ends the others."""
    broker = AsyncBroker()
    started: list[str] = []
    go = asyncio.Event()

    async def work(number: int) -> None:
        async with e2b.async_sandbox(broker, create=CREATE, **options) as vm:
            started.append(vm.sandbox_id)
            await go.wait()
            if number == 2:
                raise RuntimeError("this task failed")
            await asyncio.Event().wait()

    tasks = [asyncio.ensure_future(work(each)) for each in range(3)]
    while len(started) < 3:
        await asyncio.sleep(0.02)
    await asyncio.to_thread(wait, started)
    go.set()
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    print(json.dumps({"failed": [str(task.exception()) for task in done]}), flush=True)


def wait(idents: list[str]) -> None:
    """Say what there is, and wait to be told to go on."""
    print(json.dumps({"running": idents}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    way, given = sys.argv[1], json.loads(sys.argv[2])
    try:
        if way == "one":
            one(given)
        else:
            asyncio.run(many(given))
    except vendor.SandboxException as error:
        print(json.dumps({"e2b": type(error).__name__}), flush=True)
