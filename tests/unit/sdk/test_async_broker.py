"""Many sandboxes at once: each is ended, whatever becomes of its task."""

import asyncio
import threading
from typing import Any

import pytest

from daypass import AsyncBroker, Refused, Sandbox, Unavailable
from tests.unit.sdk.admin_server import SANDBOX, AdminServer


@pytest.fixture
def broker(admin: AdminServer) -> AsyncBroker:
    """A client of the admin server."""
    admin.answers["POST /v1/sandboxes"] = (201, SANDBOX)
    return AsyncBroker(admin.url, "dpo_x_y")


def ends(admin: AdminServer) -> list[str]:
    """The sandboxes that were ended."""
    return [call.rsplit("/", 1)[1] for call in admin.calls if call.startswith("DELETE")]


async def test_a_sandbox_is_created_and_ended(admin: AdminServer, broker: AsyncBroker) -> None:
    """As with `Broker`: registered, given, ended."""
    async with broker.sandbox(profile="coding", tenant=None) as sandbox:
        assert sandbox.id == "sbx_a"
        assert sandbox.launch == "launch-jwt"
        assert ends(admin) == []
    assert admin.calls == ["POST /v1/sandboxes", "DELETE /v1/sandboxes/sbx_a"]
    assert admin.asked[0].json() == {"profile": "coding"}


async def test_many_are_made_in_one_call_and_all_ended(
    admin: AdminServer, broker: AsyncBroker
) -> None:
    """One that cannot be ended keeps none of the others from it, and is told."""
    rows = [{**SANDBOX, "id": f"sbx_{each}"} for each in "abc"]
    admin.answers["POST /v1/sandboxes"] = (201, {"sandboxes": rows})
    admin.answers["DELETE /v1/sandboxes/sbx_a"] = (503, {})
    with pytest.raises(Unavailable):
        async with broker.sandboxes(3, profile="coding") as made:
            assert [each.id for each in made] == ["sbx_a", "sbx_b", "sbx_c"]
    assert admin.asked[0].json() == {"profile": "coding", "count": 3}
    assert sorted(ends(admin)) == ["sbx_a", "sbx_b", "sbx_c"]


async def test_a_failure_inside_is_the_one_that_is_raised(
    admin: AdminServer, broker: AsyncBroker
) -> None:
    """Also when ending fails too."""
    admin.answers["DELETE /v1/sandboxes/sbx_a"] = (503, {})
    with pytest.raises(ZeroDivisionError):
        async with broker.sandbox():
            raise ZeroDivisionError
    assert ends(admin) == ["sbx_a"]


async def test_a_refused_registration_ends_nothing(admin: AdminServer, broker: AsyncBroker) -> None:
    """There is none to end."""
    admin.answers["POST /v1/sandboxes"] = (403, {"title": "no", "code": "forbidden"})
    with pytest.raises(Refused):
        async with broker.sandbox():
            pass
    assert ends(admin) == []


class Held(AsyncBroker):
    """A broker whose calls wait until they are let go; `arrived` says that one is under way."""

    def __init__(self, admin: AdminServer) -> None:
        super().__init__(admin.url, "dpo_x_y")
        self.arrived, self.go = threading.Event(), threading.Event()

    def _create(self, made: list[Sandbox], *rest: Any) -> None:
        self.arrived.set()
        assert self.go.wait(20)
        super()._create(made, *rest)


@pytest.mark.parametrize("cancellations", [1, 3])
async def test_cancelled_while_it_is_made_it_is_ended(
    admin: AdminServer, broker: AsyncBroker, cancellations: int
) -> None:
    """The thread that registers cannot be stopped, so what it registered is ended after it."""
    held = Held(admin)

    async def work() -> None:
        async with held.sandbox():
            pytest.fail("the block must not run")

    task = asyncio.ensure_future(work())
    await asyncio.to_thread(held.arrived.wait)
    for _ in range(cancellations):
        task.cancel()
        await asyncio.sleep(0)
    held.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert admin.calls == ["POST /v1/sandboxes", "DELETE /v1/sandboxes/sbx_a"]


async def test_cancelled_inside_it_is_ended(admin: AdminServer, broker: AsyncBroker) -> None:
    """What `gather` does with the others when one of them fails."""
    inside = asyncio.Event()

    async def work() -> None:
        async with broker.sandbox():
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends(admin) == ["sbx_a"]


async def test_sandboxes_run_side_by_side(admin: AdminServer, broker: AsyncBroker) -> None:
    """Ten tasks hold their sandboxes at the same time; every one is ended."""
    together = asyncio.Semaphore(0)
    everybody = asyncio.Event()

    async def work() -> None:
        async with broker.sandbox():
            together.release()
            await everybody.wait()

    tasks = [asyncio.ensure_future(work()) for _ in range(10)]
    for _ in tasks:
        await together.acquire()
    everybody.set()
    await asyncio.gather(*tasks)
    assert len(ends(admin)) == 10


async def test_other_calls_are_awaited(admin: AdminServer, broker: AsyncBroker) -> None:
    """Every method of `Broker` is one `run` away."""
    admin.answers["GET /v1/usage"] = (200, {"cost_usd": "1.00"})
    assert await broker.run(broker.sync.usage, tenant="acme") == {"cost_usd": "1.00"}
    assert admin.calls == ["GET /v1/usage?tenant=acme"]
    assert repr(broker) == f"AsyncBroker('{admin.url}')"


async def test_a_heartbeat_goes_on_as_long_as_the_block(
    admin: AdminServer, broker: AsyncBroker
) -> None:
    """Also when one of them is not answered; after the block there is none."""
    admin.answers["POST /v1/sandboxes"] = (201, {**SANDBOX, "heartbeat_seconds": 0.03})
    admin.answers["POST /v1/sandboxes/sbx_a/heartbeat"] = (503, {})

    def beats() -> int:
        return admin.calls.count("POST /v1/sandboxes/sbx_a/heartbeat")

    async with broker.sandbox():
        while beats() < 3:
            await asyncio.sleep(0.01)
    assert admin.calls[-1] == "DELETE /v1/sandboxes/sbx_a"
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_no_heartbeat_comes_after_the_end(
    admin: AdminServer, broker: AsyncBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is under way when the block ends is over before the sandbox is ended."""
    admin.answers["POST /v1/sandboxes"] = (201, {**SANDBOX, "heartbeat_seconds": 0.03})
    under_way, go, beat = threading.Event(), threading.Event(), broker.sync.beat

    def slowly(sandbox: str) -> dict[str, Any]:
        under_way.set()
        assert go.wait(20)
        return beat(sandbox)

    monkeypatch.setattr(broker.sync, "beat", slowly)
    async with broker.sandbox():
        assert await asyncio.to_thread(under_way.wait, 20)
        asyncio.get_running_loop().call_later(0.2, go.set)
    assert admin.calls == [
        "POST /v1/sandboxes",
        "POST /v1/sandboxes/sbx_a/heartbeat",
        "DELETE /v1/sandboxes/sbx_a",
    ]
