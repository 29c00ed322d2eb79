"""Files that are written by tools: names of the official clients, examples of the body checks."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.clients.installed import openai_python

pytestmark = pytest.mark.sdk

ROOT = Path(__file__).parents[2]


def tool_of(name: str) -> ModuleType:
    """One of the tools that write files of this repository."""
    path = ROOT / "proxy" / "tools" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_names_are_those_of_the_clients() -> None:
    """Row 32: names.json is what `python proxy/tools/make_names.py` writes for those tested."""
    tool = tool_of("make_names")
    clients = {
        "anthropic": tool.found(sys.executable, "anthropic"),
        "openai": tool.found(str(openai_python()), "openai"),
    }
    assert len(clients["anthropic"]["keys"]) > 150
    assert len(clients["openai"]["types"]) > 80
    assert tool.TARGET.read_text(encoding="utf-8") == tool.text(clients)


def test_the_page_of_the_firewall_is_its_examples() -> None:
    """docs/reference/body-firewall.md is what `python proxy/tools/make_firewall.py` writes."""
    tool = tool_of("make_firewall")
    assert tool.TARGET.read_text(encoding="utf-8") == tool.page()
