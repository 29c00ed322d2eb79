"""What a comparison looks like: a table for people, JSON, and a textfile for Prometheus.

The textfile is what a node exporter collects: drift is a gauge, so that an alert is one line.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

from daypass_proxy.reconcile import Comparison, Drift

_HEADS = ("day", "model", "kind", "ours", "estimated", "theirs", "drift")
_RATIO = "daypass_reconcile_drift_ratio"
_GAUGES = (
    ("daypass_reconcile_ours", "ours", "What the usage rows say, of the range reconciled last."),
    ("daypass_reconcile_estimated", "estimated", "The part of it that is estimated."),
    ("daypass_reconcile_theirs", "theirs", "What the provider's usage report says."),
)


def table(found: Comparison) -> str:
    """Return both sides as a table: day by day, then the whole range, then the verdict."""
    rows = [
        (str(day.day), drift.model, *_cells(drift))
        for day, drifts in found.days
        for drift in drifts
    ]
    rows += [("all", drift.model, *_cells(drift)) for drift in found.models]
    return "".join(f"{line}\n" for line in (*_aligned([_HEADS, *rows]), *_verdict(found)))


def document(found: Comparison) -> str:
    """Return the same as JSON; ratios are decimals in quotes."""
    content = {
        "within": not found.beyond,
        "tolerance": str(found.tolerance),
        "open_calls": found.booked.open_calls,
        "crashed_calls": found.booked.crashed_calls,
        "edge_calls": found.booked.edge_calls,
        "models": [_entry(drift) for drift in found.models],
        "days": [
            {"day": str(day.day), **_entry(drift)} for day, drifts in found.days for drift in drifts
        ],
    }
    return json.dumps(content, indent=2) + "\n"


def write_textfile(found: Comparison, path: Path, now: float) -> None:
    """Replace the file at `path` in one step; `now` in epoch seconds. Raises OSError."""
    lines = [*_family(_RATIO, "Ours minus theirs, as a part of the larger of both.")]
    lines += [_sample(_RATIO, drift, f"{drift.ratio:.9f}") for drift in found.models]
    for name, field, words in _GAUGES:
        lines += _family(name, words)
        lines += [_sample(name, drift, str(getattr(drift, field))) for drift in found.models]
    ended = "daypass_reconcile_timestamp_seconds"
    lines += [*_family(ended, "When the last reconciliation ended."), f"{ended} {int(now)}"]
    # Written beside it and renamed: a collector never sees a half of it.
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def percent(ratio: Decimal) -> str:
    """Return a ratio in percent with three decimals."""
    return f"{(ratio * 100).quantize(Decimal('0.001'), ROUND_HALF_EVEN):+}%"


def _cells(drift: Drift) -> tuple[str, ...]:
    counts = (f"{count:,}" for count in (drift.ours, drift.estimated, drift.theirs))
    return (drift.kind.value, *counts, percent(drift.ratio))


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield rows in columns, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if place < 3 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _verdict(found: Comparison) -> Iterator[str]:
    booked = found.booked
    if booked.open_calls:
        yield f"{booked.open_calls} calls are still open and not counted"
    if booked.crashed_calls:
        yield f"{booked.crashed_calls} calls crashed with their proxy and have no figures"
    if booked.edge_calls:
        yield f"{booked.edge_calls} calls ran across the edge of the range"
    allowed = f"{found.tolerance * 100:f} percent"
    if not found.models:
        yield "neither side has any usage in the range"
    elif found.beyond:
        yield f"{len(found.beyond)} of {len(found.models)} figures differ by more than {allowed}"
    else:
        yield f"all {len(found.models)} figures are within {allowed}"


def _entry(drift: Drift) -> dict[str, object]:
    return {
        "model": drift.model,
        "kind": drift.kind.value,
        "ours": drift.ours,
        "estimated": drift.estimated,
        "theirs": drift.theirs,
        "drift_ratio": f"{drift.ratio:.9f}",
    }


def _family(name: str, words: str) -> tuple[str, str]:
    return f"# HELP {name} {words}", f"# TYPE {name} gauge"


def _sample(name: str, drift: Drift, value: str) -> str:
    model = drift.model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{name}{{model="{model}",kind="{drift.kind}"}} {value}'
