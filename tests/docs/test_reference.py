"""The reference pages name everything there is: settings, problem codes, audit tags, routes."""

import json
import re
from pathlib import Path

import pytest

from daypass_broker.audit import AuditTag
from daypass_core.problem import Code

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"


def page(name: str) -> str:
    """The text of one reference page."""
    return (REFERENCE / name).read_text(encoding="utf-8")


def settings_in_code() -> set[str]:
    """Every setting that broker or proxy reads."""
    names: set[str] = set()
    for path in ("broker/daypass_broker/settings.py", "proxy/daypass_proxy/settings.py"):
        names |= set(re.findall(r'"(DAYPASS_[A-Z_]+)"', (ROOT / path).read_text()))
    sdk = (ROOT / "sdk/daypass/_settings.py").read_text()
    return names | set(re.findall(r'"(DAYPASS_[A-Z_]+)"', sdk))


def test_every_setting_is_on_the_page_and_nothing_else() -> None:
    """docs/reference/settings.md lists exactly the settings that the code reads."""
    documented = set(re.findall(r"`(DAYPASS_[A-Z_]+)`", page("settings.md")))
    assert documented == settings_in_code()


def test_every_problem_code_is_on_the_page() -> None:
    """docs/reference/errors.md has one row for each problem code."""
    documented = set(re.findall(r"^\| `([a-z_]+)`", page("errors.md"), re.MULTILINE))
    assert documented == {code.value for code in Code}


def test_every_audit_tag_is_on_the_page() -> None:
    """docs/reference/audit.md has one row for each audit tag."""
    documented = set(re.findall(r"^\| `([a-z]+\.[a-z_]+)`", page("audit.md"), re.MULTILINE))
    assert documented == {tag.value for tag in AuditTag}


def test_every_route_of_the_admin_api_is_on_the_page() -> None:
    """docs/reference/api.md names every route of the OpenAPI document."""
    text = page("api.md")
    document = json.loads((ROOT / "docs" / "openapi.json").read_text())
    for path, methods in document["paths"].items():
        for method in methods:
            if method in {"get", "post", "put", "delete"}:
                assert f"`{method.upper()} {path}`" in text, (method, path)


def test_internal_links_lead_somewhere() -> None:
    """Every relative link in the Markdown files points to a file that exists."""
    for source in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", source.read_text()):
            assert (source.parent / target).exists(), f"{source.name}: {target}"


def test_readme_is_short() -> None:
    """The README has at most 150 lines."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("word", ["mint", "virtual key", "whitelist", "blacklist", "quota"])
def test_the_glossary_binds(word: str) -> None:
    """Words the glossary rules out stand in no page but the glossary itself."""
    for source in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        if source.name == "glossary.md":
            continue
        found = re.search(rf"\b{re.escape(word)}\w*", source.read_text(), re.IGNORECASE)
        assert not found, f"{source.name}: {found}"
