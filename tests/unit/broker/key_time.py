"""A broker's key ring with time in the test's hands: `Ring.after` lets time pass and refreshes."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from daypass_broker import db, key_rotation, revocation, schema
from daypass_broker.act import Act
from daypass_broker.key_ring import KeyRing
from daypass_broker.keys import KeyStores, Purpose
from daypass_core.ids import new_id

START_MS = 1_800_000_000_000


def together(rings: Sequence["Ring"], seconds: float) -> None:
    """Let time pass, then have all brokers look at the same moment."""
    rings[0].time.ms += round(seconds * 1000)
    meeting = threading.Barrier(len(rings))

    def refresh(ring: "Ring") -> None:
        meeting.wait(20)
        ring.keys.refresh()

    threads = [threading.Thread(target=refresh, args=[ring]) for ring in rings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)


def agree_on_every_step(rings: Sequence["Ring"]) -> None:
    """Rotate, kill and replace a key with all brokers looking at once; fails unless they agree."""
    one = rings[0]
    one.rotate()
    (new,) = [kid for kid, row in one.rows().items() if row.state == "prepared"]
    together(rings, 600)
    assert {ring.kid() for ring in rings} == {new}
    one.revoke(new)
    together(rings, 1)
    together(rings, 5)
    assert len({ring.kid() for ring in rings}) == 1
    assert one.states() == ["retired", "retired", "active"]
    tags = [tag for tag, _, _ in one.told()][3:]
    # The rotation, and the kill.
    assert sorted(tags) == sorted(["key.prepared", "key.retired", "key.activated"] * 2)


@dataclass
class Time:
    """The store's clock in milliseconds; the monotonic one goes with it."""

    ms: int = START_MS

    def now_ms(self, _: sa.Connection) -> int:
        """Be the store's clock."""
        return self.ms

    def monotonic(self) -> float:
        """Be the machine's."""
        return self.ms / 1000


@dataclass
class Ring:
    """One broker of an installation; several share `engine` and `time`."""

    engine: sa.Engine
    stores: KeyStores
    time: Time = field(default_factory=Time)
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = KeyRing.load(
            self.engine,
            self.stores,
            new_id,
            now_ms=self.time.now_ms,
            monotonic=self.time.monotonic,
            **self.options,
        )

    def and_others(self, count: int) -> "list[Ring]":
        """This broker and further ones on the same database, stores and clock."""
        others = [Ring(self.engine, self.stores, self.time, self.options) for _ in range(count)]
        return [self, *others]

    def after(self, seconds: float) -> None:
        """Let time pass, then do what the broker does each second."""
        self.time.ms += round(seconds * 1000)
        self.keys.refresh()

    def kid(self, purpose: Purpose = Purpose.ACCESS) -> str:
        """The key that signs now."""
        return self.keys.active(purpose).kid

    def published(self) -> set[str]:
        """The kids of the key set."""
        keys: Any = self.keys.jwks()["keys"]
        return {key["kid"] for key in keys}

    @contextmanager
    def acting(self, lock: Callable[[sa.Connection], object] | None = None) -> Iterator[Act]:
        """Open an act of an admin at this time."""
        with db.begin(self.engine) as conn:
            if lock is not None:
                lock(conn)
            yield Act(conn, "crd_admin", self.time.ms, new_id)

    def rotate(self, purpose: Purpose = Purpose.ACCESS, *, at_once: bool = False) -> None:
        """Rotate as an admin does."""
        self.keys.rotate(purpose, self.acting, at_once=at_once)

    def revoke(self, kid: str) -> None:
        """Kill a key as an admin does."""
        with self.acting(revocation.lock_version) as act:
            revocation.append(act, "kid", kid, None, "stolen")

    def rows(self, purpose: Purpose = Purpose.ACCESS) -> dict[str, sa.Row[Any]]:
        """The rows of a purpose by kid, oldest first."""
        with db.read(self.engine) as conn:
            found = key_rotation.read(conn)[0]
        return {row.kid: row for row in found if row.purpose == purpose}

    def states(self, purpose: Purpose = Purpose.ACCESS) -> list[str]:
        """The states of the keys of a purpose, oldest first."""
        return [row.state for row in self.rows(purpose).values()]

    def told(self) -> list[tuple[str, str, str]]:
        """Tag, actor and kid of each audit event about keys, oldest first."""
        table = schema.audit
        query = sa.select(table).where(table.c.tag.like("key.%")).order_by(table.c.seq)
        with db.read(self.engine) as conn:
            return [(row.tag, row.actor, row.subject) for row in conn.execute(query)]
