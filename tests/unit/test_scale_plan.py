"""The simulations of the scale plan: they keep the laws that any such system must keep."""

from dataclasses import replace

import pytest

from bench.scale_simulation import Budget, Database, simulate_admissions, simulate_leases

DATABASE = Database(cores=4, commit_cpu=0.0005, operation_cpu=0.00005, commit=0.001, operation=5e-5)


def test_a_call_alone_waits_for_one_commit() -> None:
    """With hardly anything to do the median is a transaction of one operation."""
    seen = simulate_admissions(DATABASE, 4, 10, 20.0, 0.0)
    assert seen.p50 == pytest.approx(DATABASE.seconds(1))
    assert seen.operations == pytest.approx(1.0, abs=0.05)


def test_it_always_says_the_same() -> None:
    """Two runs with the same figures are equal, so a page can quote one."""
    assert simulate_admissions(DATABASE, 8, 2000, 2.0, 0.0) == simulate_admissions(
        DATABASE, 8, 2000, 2.0, 0.0
    )
    assert simulate_leases(Budget(100, 4, 10), 1.0) == simulate_leases(Budget(100, 4, 10), 1.0)


def test_nothing_is_lost_and_no_core_is_used_twice() -> None:
    """Operations that were committed are those that came: two for each call, within the noise."""
    seen = simulate_admissions(DATABASE, 16, 1500, 10.0, 0.0)
    assert seen.commits * seen.operations == pytest.approx(3000, rel=0.05)
    assert 0 < seen.utilization < 1
    assert seen.kept_up


def test_too_little_is_told() -> None:
    """A database that cannot keep up is not reported as one that does."""
    weak = replace(DATABASE, cores=1, operation_cpu=0.001, operation=0.001)
    assert not simulate_admissions(weak, 16, 2000, 4.0, 0.0).kept_up


def test_company_saves_commits_and_costs_time() -> None:
    """Who waits 5 ms commits less often, and each call waits at least so long."""
    plain = simulate_admissions(DATABASE, 40, 3000, 3.0, 0.0)
    waiting = simulate_admissions(DATABASE, 40, 3000, 3.0, 0.005)
    assert waiting.commits < plain.commits * 0.8
    assert waiting.p50 > 0.005


def test_a_hot_row_makes_calls_wait() -> None:
    """With one lock for all the same calls wait longer, on the same server."""
    spread = simulate_admissions(DATABASE, 16, 1000, 3.0, 0.0)
    hot = simulate_admissions(DATABASE, 16, 1000, 3.0, 0.0, hot=True)
    assert hot.p99 > 2 * spread.p99


@pytest.mark.parametrize("lease", [0.0, 0.5, 5.0, 500.0])
def test_leases_never_overspend(lease: float) -> None:
    """Whatever the size of a lease, what is spent is at most the budget."""
    seen = simulate_leases(Budget(dollars=500, workers=10, rate=100), lease)
    assert seen.overspent == 0
    assert 0.9 < seen.spent <= 1


def test_larger_leases_refuse_earlier() -> None:
    """The price of a larger lease: the first refusal comes while more is left."""
    budget = Budget(dollars=1000, workers=20, rate=100)
    first = [simulate_leases(budget, lease).first_refusal for lease in (0.0, 1.0, 10.0)]
    assert first == sorted(first, reverse=True)
    assert first[0] > first[2]
