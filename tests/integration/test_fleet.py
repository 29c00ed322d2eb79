"""Three proxies, two brokers, PostgreSQL and OpenBao as the chart starts them, on a bad day.

The short form of `make test-fleet`, by the same code: all that can be lost at once is killed, and a
proxy is replaced as a rolling update does it.
"""

from collections.abc import Iterator

import pytest

from tests.fleet import faults
from tests.fleet.cell import Cell
from tests.fleet.faults import Fault
from tests.fleet.report import Result
from tests.fleet.run import round_of

pytestmark = [pytest.mark.postgres, pytest.mark.openbao]

RATE = 40.0
"""Streams a second; each lasts one second."""
BUSY_SECONDS = 40.0
"""How long recovering may take where other tests run beside this one."""


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """One fleet for both tests."""
    with Cell(tmp_path_factory.mktemp("fleet") / "cell", stream_seconds=1.0) as running:
        yield running


def strike(cell: Cell, fault: Fault) -> Result:
    """Make one fault; what no fault may do is asserted."""
    result = round_of(cell, fault, RATE, lambda words: None)
    assert result.broken == [], result.books
    assert result.books.calls > RATE
    return result


def test_a_proxy_that_is_replaced_costs_nobody_a_stream(cell: Cell) -> None:
    """B53, B90: one more starts, an old one is told to end: no call fails, it exits with 0."""
    assert strike(cell, faults.ROLL_ONE).visible == {}


def test_kills_lose_and_double_nothing(cell: Cell) -> None:
    """B11, B12, B36: a proxy, a broker and PostgreSQL die together; all comes back by itself.

    Only streams of the dead proxy tear, calls are refused with 503 or not at all; every bill of the
    provider has one row, no budget and no rate is passed, no valid token is answered 401, and all
    who were not killed are alive all the time.
    """
    killed = Fault(
        "killed",
        "a proxy, a broker and PostgreSQL",
        faults.KILL_THREE,
        faults.POSTGRES_BACK,
        hold=3,
        visible=faults.TORN | faults.NO_STORE | {"refused"},
        recovers=BUSY_SECONDS,
    )
    assert strike(cell, killed).denied == 0
