"""What the broker does by itself goes on whatever happens."""

from typing import Any

import pytest

from daypass_broker import db, periodic
from daypass_broker.periodic import Periodic, repeat


class Ended(BaseException):
    """Ends the loop, for the test."""


async def test_a_task_is_done_again_whatever_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is away is told once until it is back, a fault each time; neither ends it."""
    told = list[tuple[str, Any]]()

    def event(_: object, name: str, **fields: object) -> None:
        told.append((name, fields.get("task")))

    def failed(_: object, name: str, error: Exception) -> None:
        told.append((name, str(error)))

    monkeypatch.setattr(periodic, "event", event)
    monkeypatch.setattr(periodic, "failed", failed)
    gone = db.StoreUnavailable("gone")
    happens: list[Exception | None] = [gone, gone, None, gone, ValueError("odd"), None]
    done, slept = list[object](), list[float]()

    def work() -> None:
        done.append(error := happens[len(done)])
        if error is not None:
            raise error

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(done) == len(happens):
            raise Ended

    with pytest.raises(Ended):
        await repeat(Periodic("clock", 5.0, work), sleep)
    assert done == happens
    assert set(slept) == {5.0}
    waits = ("task_waits_for_store", "clock")
    assert told == [waits, waits, ("task_failed", "odd")]
