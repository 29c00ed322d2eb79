"""What the soak concludes from its samples."""

from dataclasses import replace

import pytest

from bench.process import BenchError
from bench.soak import Sample, _back, slope

START = Sample(
    minute=0.0, proxy_mb=100.0, workers_mb=26.0, broker_mb=80.0, fds=24, threads=9, tasks=9,
    open_calls=0, wal_mb=4.0, db_mb=1.0, cpu_percent=1.0, lag_ms=1.0, p50_ms=2.0, p99_ms=9.0,
)  # fmt: skip


def samples(megabytes: list[float]) -> list[Sample]:
    """One sample a minute with so much memory."""
    return [replace(START, minute=float(at), proxy_mb=size) for at, size in enumerate(megabytes, 1)]


def test_the_slope_is_that_of_the_last_two_thirds() -> None:
    """What grows in the warm-up alone is no leak; what grows by 2 MB each minute after it is."""
    warm = [100.0, 120.0, 140.0, 150.0]
    assert slope(samples([*warm, *[150.0] * 8]), "proxy_mb") == pytest.approx(0.0)
    leaking = [150.0 + 2 * minute for minute in range(8)]
    assert slope(samples([*warm, *leaking]), "proxy_mb") == pytest.approx(2.0)
    assert slope(samples([*warm, *reversed(leaking)]), "proxy_mb") == pytest.approx(-2.0)


def test_too_few_samples_are_no_verdict() -> None:
    """From two points anything could be concluded."""
    with pytest.raises(BenchError):
        slope(samples([100.0, 101.0]), "proxy_mb")


def test_descriptors_and_tasks_have_to_come_back() -> None:
    """Two more of either are let pass, three are not."""
    assert _back(START, replace(START, fds=26, tasks=11))
    assert not _back(START, replace(START, fds=27))
    assert not _back(START, replace(START, tasks=12))
