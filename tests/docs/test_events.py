"""docs/reference/events.md names every log event of the code, with its level and fields."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/events.md").read_text(encoding="utf-8")
SECTIONS = [
    ("Broker and proxy", "core/daypass_core"),
    ("Broker", "broker/daypass_broker"),
    ("Proxy", "proxy/daypass_proxy"),
]
# Rendered by the log module itself: what libraries say, and what it could not keep.
OF_LOG = {
    "library_message": ("any", {"logger", "message"}),
    "log_lines_dropped": ("warning", {"count"}),
}
# The application's two phases are logged by one call with a name put together.
PUT_TOGETHER = {"f'{phase}_failed'": ("startup_failed", "shutdown_failed")}


@dataclass
class Event:
    """What is known of one event; `open` when some of its fields come from a mapping."""

    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    open: bool = False


def calls(package: str) -> Iterator[ast.Call]:
    """Every call of `event(log, …)` or `failed(log, …)` in a package, outside log.py itself."""
    for path in sorted((ROOT / package).rglob("*.py")):
        if path.name == "log.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("event", "failed"):
                yield node


def closing_lines(package: str) -> dict[str, Event]:
    """The closing lines of a package: subclasses of `Line`, told by `tell(log, …)`."""
    found: dict[str, Event] = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and "Line" in map(ast.unparse, node.bases):
                (tag,) = [word.value for word in node.keywords if word.arg == "tag"]
                fields = {
                    ast.unparse(one.target) for one in node.body if isinstance(one, ast.AnnAssign)
                }
                found[ast.literal_eval(tag)] = Event({"info"}, fields - {"OURS"} | {"request_id"})
    return found


def in_code(package: str) -> dict[str, Event]:
    """The events of a package by name."""
    found = closing_lines(package)
    for call in calls(package):
        text = ast.unparse(call.args[1])
        for name in PUT_TOGETHER.get(text, (ast.literal_eval(text) if text[0] != "f" else text,)):
            one = found.setdefault(name, Event())
            level = "info"
            if ast.unparse(call.func) == "failed":
                level, one.fields = "error", {"kind", "where"}
            for keyword in call.keywords:
                if keyword.arg is None:
                    one.open = True
                elif keyword.arg == "level":
                    level = ast.unparse(keyword.value).rpartition(".")[2].lower()
                else:
                    one.fields.add("exception" if keyword.arg == "exc_info" else keyword.arg)
            one.levels.add(level)
    return found


def documented(section: str) -> dict[str, tuple[str, set[str]]]:
    """Level and fields of the events of one section of the page."""
    part = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z_]+)` \| (\w+) \| (.*?) \| .+ \|$", part, re.MULTILINE)
    return {name: (level, set(re.findall(r"`([a-z_0-9]+)`", cell))) for name, level, cell in rows}


@pytest.mark.parametrize(("section", "package"), SECTIONS)
def test_every_event_is_on_the_page(section: str, package: str) -> None:
    """The page lists exactly the events of a package, with the level and fields they have."""
    page, code = documented(section), in_code(package)
    if package.startswith("core"):
        assert {name: page.pop(name) for name in OF_LOG} == OF_LOG
    assert set(page) == set(code)
    for name, (level, fields) in page.items():
        assert {level} == code[name].levels, name
        assert fields >= code[name].fields if code[name].open else fields == code[name].fields, name


def test_names_are_static() -> None:
    """Every event but the known ones has a name that stands in the code as it is logged."""
    names = {name for _, package in SECTIONS for name in in_code(package)}
    assert [name for name in sorted(names) if not re.fullmatch(r"[a-z_]+", name)] == []
