"""docs/scale.md quotes the plan as it is computed, from figures of docs/performance.md."""

import json
import re
from pathlib import Path

from bench.scale_plan import tables

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
INPUTS = json.loads((ROOT / "bench" / "scale_plan.json").read_text())


def last_run(row: str) -> list[str]:
    """The further cells of the first row of docs/performance.md that begins like this."""
    (found, *_) = re.findall(rf"^{re.escape(row)} (.+) \|$", PERFORMANCE, re.MULTILINE)
    return [cell.strip() for cell in str(found).split("|")]


def test_the_tables_are_those_of_the_simulation() -> None:
    """Run anew, every table of the plan stands in the page as it is, to the last figure."""
    for title, table in tables().items():
        assert table in PAGE, f"{title}: run `make scale-plan` and put its table into the page"


def test_inputs_say_where_they_come_from() -> None:
    """What is measured names its source, what is assumed its reason."""
    for entry in INPUTS["measured"].values():
        assert set(entry) == {"value", "from"}
        assert re.match(r"docs/|bench\.|the same fit", entry["from"])
    for entry in INPUTS["assumed"].values():
        assert set(entry) == {"value", "why"}


def test_inputs_are_the_figures_of_the_last_run() -> None:
    """What is said to be from docs/performance.md stands there, and the fit is that of its rows."""
    value = {name: entry["value"] for name, entry in INPUTS["measured"].items()}
    json1k = PERFORMANCE.partition("### json1k")[2].partition("\n### ")[0]
    assert f"| daypass, ledger on | {value['proxy_cpu_us_call']:g} |" in json1k
    paced = PERFORMANCE.partition("### paced")[2].partition("\n### ")[0]
    assert f"| daypass, ledger on | {value['proxy_cpu_us_event']:g} |" in paced
    streams = PERFORMANCE.partition("### Open streams")[2].partition("\n### ")[0]
    assert f"| {value['proxy_kb_stream']:g} |" in streams
    one = float(last_run("| PostgreSQL | 1 | daypass |")[0].replace(",", ""))
    many = float(last_run("| PostgreSQL | 64 | daypass |")[0].replace(",", ""))
    # One caller: a transaction for each of a call's two operations. 64 of them: 63 operations each.
    alone, together = 1000 / one / 2, 1000 * 63 / many / 2
    operation = (together - alone) / 62
    assert abs(operation - value["ledger_operation_ms"]) < 0.0005
    assert abs(alone - operation - value["ledger_commit_ms"]) < 0.005
