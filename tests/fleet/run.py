"""Running faults: one round each, from the calm before it to the books after it."""

import time
from collections.abc import Callable, Sequence

from tests.fleet.cell import PROXY_NAME, TENANTS, Cell
from tests.fleet.faults import Fault
from tests.fleet.load import Load, Sandbox
from tests.fleet.report import Result, judge
from tests.fleet.truth import books

RICH, POOR_BUDGET, RATE_LIMIT = 10, "0.05", 40
"""Sandboxes of each tenant with money; the budget of a poor one; calls a minute of the limited."""
CALM_SECONDS, QUIET_SECONDS, MOST_SECONDS = 4.0, 4.0, 60.0
"""Before a fault; without trouble after it, and how long that is waited for."""

Tell = Callable[[str], None]


def sandboxes(cell: Cell) -> list[Sandbox]:
    """Sandboxes for one round: most have money, some run out of it, one is limited by rate."""
    found = []
    for tenant in TENANTS:
        found += [Sandbox(one) for one in cell.sandboxes(RICH, tenant, budget_usd="900.00")]
        poor = cell.sandboxes(2, tenant, budget_usd=POOR_BUDGET)
        found += [Sandbox(one, poor=True) for one in poor]
    limited = cell.sandboxes(1, TENANTS[0], requests_per_minute=RATE_LIMIT)
    return [*found, *(Sandbox(one, poor=True, rate_limit=RATE_LIMIT) for one in limited)]


def round_of(cell: Cell, fault: Fault, rate: float, tell: Tell) -> Result:
    """Let one fault strike under the load; what came of it."""
    if fault.clocks:
        cell.use_movable_clocks()
    for kind in ("broker", "proxy"):
        cell.await_ready(kind)
        for endpoint in cell.service(kind).endpoints.values():
            endpoint.not_alive.clear()
    who = sandboxes(cell)
    load = Load(cell.loop, cell.proxies, cell.tls, PROXY_NAME)
    began = time.monotonic()
    load.start(who, rate)
    try:
        time.sleep(CALM_SECONDS)
        struck = time.monotonic()
        fault.strike(cell)
        time.sleep(max(0.0, struck + fault.hold - time.monotonic()))
        fault.heal(cell)
        healed = time.monotonic()
        _await_quiet(load, cell, healed)
    finally:
        seen = load.stop()
    took = time.monotonic() - began
    endpoints = [*cell.proxies.endpoints.values(), *cell.brokers.endpoints.values()]
    not_alive = sum(len(one.not_alive) for one in endpoints)
    result = judge(fault, seen, books(cell, who, seen), (struck, healed), not_alive)
    result.rate = len(seen.calls) / took
    tell(f"{fault.name}: {result.verdict}")
    return result


def run(cell: Cell, faults: Sequence[Fault], rate: float, tell: Tell) -> list[Result]:
    """Make the faults one after the other."""
    return [round_of(cell, fault, rate, tell) for fault in faults]


def _await_quiet(load: Load, cell: Cell, healed: float) -> None:
    """Wait until everything is ready and nothing has failed for a while, within a bound."""
    while time.monotonic() < healed + MOST_SECONDS:
        time.sleep(0.2)
        since = load.trouble_since(healed) or healed
        endpoints = [*cell.proxies.endpoints.values(), *cell.brokers.endpoints.values()]
        all_ready = all(one.ready for one in endpoints)
        if all_ready and time.monotonic() > since + QUIET_SECONDS:
            return
