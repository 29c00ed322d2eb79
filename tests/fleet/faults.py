"""The faults: what is done to the fleet, how it ends, and what a client may see of it.

A fault strikes, holds for some seconds and is taken away. `visible` are the ways in which calls may
fail for good meanwhile, after an SDK's own retries; nothing else may be seen, and no fault may lose
a row, overspend, or turn a valid token away.
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.fleet.cell import Cell
from tests.fleet.pod import Pod

Act = Callable[[Cell], object]

TORN = frozenset({"torn", "reset"})
"""Streams that were on their way through a proxy that was killed."""
NO_STORE = frozenset({"503", "cut: api_error", "nobody ready"})
"""New calls cannot be booked; a stream that needs more held cannot have it. After some seconds no
proxy is ready, and the service refuses connections."""


@dataclass(frozen=True)
class Fault:
    """One line of the table; times in seconds."""

    name: str
    says: str
    strike: Act
    heal: Act = lambda cell: None
    hold: float = 5.0
    visible: frozenset[str] = frozenset()
    recovers: float = 10.0
    """How long after the end of it requests may still fail."""
    clocks: bool = False
    """Whether processes must have clocks that can be moved."""


def _first(cell: Cell, kind: str) -> Pod:
    return next(pod for pod in cell.of(kind) if pod.running)


def _send(kind: str, number: signal.Signals) -> Act:
    def act(cell: Cell) -> None:
        pod = _first(cell, kind)
        cell.service(kind).endpoints[pod.name].unwatch()
        pod.signal(number)

    return act


def _all(*acts: Act) -> Act:
    def act(cell: Cell) -> None:
        for one in acts:
            one(cell)

    return act


def _sql(*statements: str) -> Act:
    return lambda cell: cell.database.run(*statements)


def _clock(kind: str, seconds: int) -> Act:
    def act(cell: Cell) -> None:
        for pod in cell.of(kind):
            pod.set_clock(seconds)

    return act


def _kill_all(cell: Cell) -> None:
    cell.database.kill()
    for pod in cell.pods.values():
        cell.service(pod.kind).endpoints[pod.name].unwatch()
        pod.signal(signal.SIGKILL)


def _roll(cell: Cell) -> None:
    statuses = [*cell.roll("broker"), *cell.roll("proxy")]
    assert set(statuses) == {0}, f"a pod that was told to end did so with {statuses}"


_KILL_PROXY, _KILL_BROKER = (_send(kind, signal.SIGKILL) for kind in ("proxy", "broker"))


def _postgres(step: str) -> Act:
    return lambda cell: getattr(cell.database, step)()


def _bao(step: str) -> Act:
    return lambda cell: getattr(cell.bao, step)()


def _disk(step: str, disk: str) -> Act:
    return lambda cell: getattr(cell.database, step)(getattr(cell.database, disk))


def _replace_proxy(cell: Cell) -> None:
    old = cell.of("proxy")[0]
    cell.start_pod("proxy")
    cell.await_ready("proxy")
    assert cell.retire(old) == 0


ROLL_ONE = Fault("roll-one", "a proxy is replaced", _replace_proxy, hold=1, recovers=0.0)
KILL_THREE: Act = _all(_KILL_PROXY, _KILL_BROKER, _postgres("kill"))
POSTGRES_BACK: Act = _postgres("resume")
"""Parts of the short form, which `make test` runs."""


def _restart_one(cell: Cell) -> None:
    """Let a proxy and a broker start anew, by the clock that the database has now."""
    _KILL_PROXY(cell)
    _KILL_BROKER(cell)


FAULTS: tuple[Fault, ...] = (
    Fault("none", "nothing happens", lambda cell: None, hold=10),
    Fault("proxy-kill", "kill -9 of a proxy", _KILL_PROXY, visible=TORN),
    Fault("broker-kill", "kill -9 of a broker", _KILL_BROKER),
    Fault(
        "postgres-kill",
        "kill -9 of all of PostgreSQL, down for 5 s",
        _postgres("kill"),
        _postgres("resume"),
        visible=NO_STORE,
    ),
    Fault(
        "proxy-stop",
        "SIGSTOP of a proxy for 10 s",
        _send("proxy", signal.SIGSTOP),
        _send("proxy", signal.SIGCONT),
        hold=10,
    ),
    Fault(
        "broker-stop",
        "SIGSTOP of a broker for 10 s",
        _send("broker", signal.SIGSTOP),
        _send("broker", signal.SIGCONT),
        hold=10,
    ),
    Fault(
        "postgres-stop",
        "SIGSTOP of all of PostgreSQL for 10 s",
        _postgres("freeze"),
        _postgres("cont"),
        hold=10,
        visible=NO_STORE,
    ),
    Fault("openbao-stop", "SIGSTOP of OpenBao for 10 s", _bao("freeze"), _bao("thaw"), hold=10),
    Fault("openbao-seal", "OpenBao sealed for 10 s", _bao("seal"), _bao("unseal"), hold=10),
    Fault(
        "revoke-proxy",
        "the proxies' login loses its role for 5 s",
        _sql("REVOKE daypass_proxy FROM fleet_proxy"),
        _sql("GRANT daypass_proxy TO fleet_proxy"),
        visible=NO_STORE,
    ),
    Fault(
        "revoke-broker",
        "the brokers' login loses its role for 5 s",
        _sql("REVOKE daypass_broker FROM fleet_broker"),
        _sql("GRANT daypass_broker TO fleet_broker"),
    ),
    Fault(
        "disk-full",
        "the disk of the tables is full for 8 s",
        _disk("fill", "data"),
        _disk("free", "data"),
        hold=8,
        visible=NO_STORE,
    ),
    Fault(
        "wal-full",
        "the disk of PostgreSQL's log is full for 8 s",
        _postgres("fill_wal"),
        _all(_disk("free", "wal"), _postgres("await_ready")),
        hold=8,
        visible=NO_STORE,
    ),
    Fault("rolling", "every broker and every proxy is replaced", _roll, hold=1),
    Fault(
        "broker-and-postgres",
        "kill -9 of a broker while PostgreSQL restarts",
        _all(_postgres("kill"), _KILL_BROKER),
        _postgres("resume"),
        visible=NO_STORE,
    ),
    Fault(
        "proxy-and-seal",
        "kill -9 of a proxy while OpenBao is sealed: it cannot come back before",
        _all(_bao("seal"), _KILL_PROXY),
        _bao("unseal"),
        hold=10,
        visible=TORN,
    ),
    Fault(
        "power-cut",
        "kill -9 of everything but OpenBao",
        _kill_all,
        _postgres("resume"),
        visible=TORN | NO_STORE | {"refused"},
        recovers=40.0,
    ),
    Fault("proxy-clock+60", "the proxies' clocks jump 60 s ahead, and back after 10 s",
          _clock("proxy", 60), _clock("proxy", 0), hold=10, clocks=True),
    Fault("proxy-clock-60", "the proxies' clocks jump 60 s back, and ahead after 10 s",
          _clock("proxy", -60), _clock("proxy", 0), hold=10, clocks=True),
    Fault("broker-clock+60", "the brokers' clocks jump 60 s ahead, and back after 10 s",
          _clock("broker", 60), _clock("broker", 0), hold=10, clocks=True),
    Fault("broker-clock-60", "the brokers' clocks jump 60 s back, and ahead after 10 s",
          _clock("broker", -60), _clock("broker", 0), hold=10, clocks=True),
    Fault("postgres-clock-60", "PostgreSQL's clock jumps 60 s back; then a proxy and a broker"
          " are killed", lambda cell: cell.database.set_clock(-60), _restart_one, hold=5,
          visible=TORN, clocks=True, recovers=30.0),
    Fault("postgres-clock+60", "PostgreSQL's clock returns: 60 s ahead",
          lambda cell: cell.database.set_clock(0), hold=10, visible=NO_STORE, clocks=True),
)  # fmt: skip
"""In the order they are made. The clock of PostgreSQL stays where the fault before has left it."""
