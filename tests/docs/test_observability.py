"""Dashboard, alerts, their cases and docs/observability.md belong together, and can be read."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from daypass_broker import metric_specs as of_broker
from daypass_proxy import metric_specs as of_proxy
from tests.servers.promql import family, names

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "observability"
PAGE = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
CASES = yaml.safe_load((FOLDER / "alerts_test.yaml").read_text())["tests"]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = {
    **{rule["alert"]: rule["expr"] for rule in RULES},
    **{
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in PANELS
        for target in panel["targets"]
    },
}
SPECS = {spec.name: spec for spec in (*of_proxy.ALL, *of_broker.ALL)}
# What every scraped target has, and what Prometheus adds to it.
COMMON = {
    "process_open_fds",
    "process_max_fds",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
}
TARGET_LABELS = {"instance", "job", "le", "namespace"}


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_expressions_name_metrics_and_labels_of_the_code(where: str) -> None:
    """Each expression can be parsed, and every metric and label in it is declared."""
    named = names(EXPRESSIONS[where])
    assert named.selected
    labels = set(TARGET_LABELS)
    for name, selected in named.selected:
        if name in COMMON:
            continue
        spec = SPECS[family(name) if family(name) in SPECS else name]
        assert (name == spec.name) is (spec.kind.value != "histogram"), name
        assert selected <= {*spec.labels, *TARGET_LABELS}, name
        labels |= set(spec.labels)
    assert named.grouped <= labels


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_what_every_program_shows_is_asked_of_ours_alone(where: str) -> None:
    """`process_…` has no name of ours: other programs that the same Prometheus scrapes stay out."""
    selected = {name for name, _ in names(EXPRESSIONS[where]).selected}
    assert not selected & COMMON or "daypass_build_info" in selected


def test_the_dashboard_is_one_that_grafana_can_load() -> None:
    """Ids are unique, panels overlap nowhere, and all ask the data source that is chosen."""
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        area = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not area & taken, panel["title"]
        assert max(x for x, _ in area) < 24
        taken |= area
    for panel in PANELS:
        assert panel["targets"]
        for asked in (panel, *panel["targets"]):
            assert asked["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([DASHBOARD["panels"]])))
    assert used == variables


def test_every_alert_says_what_to_do() -> None:
    """Each has a severity, words, and a runbook that is a heading of the page; no other heading."""
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        told = rule["annotations"]
        assert set(told) == {"summary", "description", "runbook"}
        assert told["runbook"] == f"docs/observability.md#{rule['alert'].lower()}"
        assert 20 < len(told["description"]) < 400
    documented = re.findall(r"^### (Daypass\w+)$", PAGE, re.MULTILINE)
    assert documented == [rule["alert"] for rule in RULES]


def test_every_alert_has_a_case_where_it_fires_and_one_where_it_does_not() -> None:
    """`make test-alerts` runs two cases for each alert, and nothing else."""
    wanted = [f"{rule['alert']} {what}" for rule in RULES for what in ("fires", "stays quiet")]
    assert [case["name"] for case in CASES] == wanted
    for case in CASES:
        (check,) = case["promql_expr_test"]
        alert, _, what = case["name"].partition(" ")
        assert f'"{alert}"' in check["expr"]
        assert bool(check["exp_samples"]) is (what == "fires")
