"""docs/reference/metrics.md lists every metric of proxy and broker as the code declares it."""

import re
from pathlib import Path

from daypass_broker import metric_specs as of_broker
from daypass_proxy import metric_specs as of_proxy

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
ALL = (*of_proxy.ALL, *of_broker.ALL)
ROW = re.compile(r"^\| `((?:daypass|gen_ai)_\w+)` \| (\w+) \| (.*?) \| (.+) \|$", re.MULTILINE)


def test_every_metric_is_on_the_page() -> None:
    """The page has one row for each metric, with its type, labels and help, and no other row."""
    page = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)), words)
        for name, kind, labels, words in ROW.findall(PAGE)
    }
    assert page == {spec.name: (spec.kind.value, spec.labels, spec.help) for spec in ALL}
    assert len(ROW.findall(PAGE)) == len(ALL) > 60


def test_every_label_is_explained() -> None:
    """Each label has a row of values, but the three that explain themselves."""
    part = PAGE.partition("\n## Values of labels\n")[2].partition("\n## ")[0]
    explained = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.+?`) \|", part, re.M))))
    labels = {label for spec in ALL for label in spec.labels}
    assert labels - explained == {"gen_ai_request_model", "tenant", "version"}


def test_expressions_name_metrics_that_exist() -> None:
    """Every metric in the prose and in the expressions is one of the code."""
    known = {spec.name for spec in ALL}
    for name in re.findall(r"\b(?:daypass|gen_ai)_\w+", PAGE):
        whole = re.sub(r"_(bucket|sum|count)$", "", name)
        labels = {label for spec in ALL for label in spec.labels}
        assert name in known | labels or whole in known or name == "gen_ai_", name
