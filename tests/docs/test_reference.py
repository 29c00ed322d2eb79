"""The reference pages say what the code says: settings, problem codes, audit tags, routes."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from daypass_broker import settings as broker_settings
from daypass_broker.admin import openapi
from daypass_broker.audit import AuditTag
from daypass_core.problem import Code, Problem
from daypass_proxy import settings as proxy_settings
from daypass_proxy.app import load_prices
from daypass_proxy.price import PriceTable
from daypass_proxy.price.entry import Entry
from daypass_proxy.providers.anthropic import Anthropic
from daypass_proxy.routes import ROUTES

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
METHODS = {"get", "post", "put", "patch", "delete"}
ADMIN_ONLY = {
    Code.INVALID_CREDENTIAL,
    Code.FORBIDDEN,
    Code.BEYOND_PROFILE,
    Code.CONFLICT,
    Code.IDEMPOTENCY_MISMATCH,
    Code.SIGNING_UNAVAILABLE,
}
NEEDED = {
    "DAYPASS_ISSUER": "https://daypass.test",
    "DAYPASS_DATABASE_URL": "sqlite:////var/lib/daypass/daypass.db",
    "DAYPASS_BROKER_INTERNAL": "unix:/run/daypass/broker.sock",
    "DAYPASS_BROKER_KEYS_DIR": "/var/lib/daypass/keys",
    "DAYPASS_PUBLIC_URL": "https://daypass.test",
    "DAYPASS_BROKER_URL": "unix:/run/daypass/broker.sock",
    "DAYPASS_ANTHROPIC_KEYS": "acme=file:///run/secrets/key",
}


def page(name: str) -> str:
    """The text of one reference page."""
    return (REFERENCE / name).read_text(encoding="utf-8")


def settings_in_code() -> set[str]:
    """Every setting that is named anywhere in what is installed: read, set or only told of."""
    parts = ("core/daypass_core", "broker/daypass_broker", "proxy/daypass_proxy", "sdk/daypass")
    files = [path for part in (*parts, "migrations") for path in (ROOT / part).rglob("*.py")]
    return {name for path in files for name in re.findall(r'"(DAYPASS_[A-Z_]+)"', path.read_text())}


def test_every_setting_is_on_the_page_and_nothing_else() -> None:
    """docs/reference/settings.md lists exactly the settings that the code reads."""
    documented = set(re.findall(r"`(DAYPASS_[A-Z_]+)`", page("settings.md")))
    assert documented == settings_in_code()


def test_defaults_are_those_of_the_code() -> None:
    """What the page calls required is required, and its numbers are the defaults."""
    rows = dict(re.findall(r"^\| `(DAYPASS_[A-Z_]+)` \| (.*?) \|", page("settings.md"), re.M))
    assert {name for name, default in rows.items() if default == "required"} == set(NEEDED)
    proxy = proxy_settings.load(NEEDED)
    loaded = broker_settings.load(NEEDED), proxy, proxy.server
    numbers = {name: default for name, default in rows.items() if re.fullmatch(r"[0-9.]+", default)}
    assert len(numbers) >= 11
    for name, default in numbers.items():
        field = name.removeprefix("DAYPASS_").lower()
        found = [getattr(settings, field) for settings in loaded if hasattr(settings, field)]
        assert found == [float(default)], name


def test_every_problem_code_is_on_the_page() -> None:
    """docs/reference/errors.md has one row for each problem code, with what goes on the wire."""
    cells = r"\| `([a-z_]+)` \| (\S+) \| (\S+) \| (\S+) \| (\S+) \| .+ \| .+ \|"
    rows = re.findall(rf"^{cells}$", page("errors.md"), re.MULTILINE)
    assert sorted(row[0] for row in rows) == sorted(Code)
    for name, *documented in rows:
        problem = Problem.of(Code(name))
        rendered = Anthropic().render(problem, "req_x")
        headers = dict(rendered.headers)
        on_wire = [
            str(rendered.status),
            json.loads(rendered.body)["error"]["type"],
            headers.get(b"x-should-retry", b"").decode() or "–",  # noqa: RUF001 - as on the page
            headers.get(b"retry-after", b"").decode() or "–",  # noqa: RUF001
        ]
        if name in ADMIN_ONLY:
            on_wire[1:] = ["–"] * 3  # noqa: RUF001 - a problem document says none of it
        assert documented == on_wire, name


def test_every_error_of_the_token_endpoint_is_on_the_page() -> None:
    """docs/reference/errors.md names every RFC 6749 error that broker and proxy can answer."""
    files = [*(ROOT / "broker/daypass_broker").glob("*.py"), ROOT / "proxy/daypass_proxy/token.py"]
    call = r'(?:OAuthError|_refuse)\(\s*(?:\w+, [0-9]+, )?"([a-z_]+)"|error="([a-z_]+)"'
    found = {a or b for path in files for a, b in re.findall(call, path.read_text())}
    documented = re.findall(r"^\| [45][0-9]{2} \| `([a-z_]+)` \|", page("errors.md"), re.MULTILINE)
    assert found
    assert found <= set(documented)


def test_every_audit_tag_is_on_the_page() -> None:
    """docs/reference/audit.md has one row for each audit tag."""
    documented = re.findall(r"^\| `([a-z]+\.[a-z_]+)`", page("audit.md"), re.MULTILINE)
    assert documented == [tag.value for tag in AuditTag]


def test_tags_nobody_writes_are_marked() -> None:
    """A tag that no code writes says so in its row, and only such a one."""
    source = "".join(path.read_text() for path in (ROOT / "broker/daypass_broker").rglob("*.py"))
    for tag in AuditTag:
        row = next(line for line in page("audit.md").splitlines() if f"| `{tag}` |" in line)
        assert ("not written yet" in row) == (f"AuditTag.{tag.name}" not in source), tag


def test_every_route_of_the_admin_api_is_on_the_page() -> None:
    """docs/reference/api.md names every route of the OpenAPI document."""
    text = page("api.md")
    document = json.loads(openapi())
    for path, methods in document["paths"].items():
        for method in METHODS & set(methods):
            assert f"`{method.upper()} {path}`" in text, (method, path)


def test_every_route_of_the_proxy_is_on_the_page() -> None:
    """docs/reference/api.md names every route of the proxy's table."""
    part = page("api.md").partition("## Proxy\n")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `([A-Z]+ /\S+)` \|", part, re.MULTILINE))
    routes = {f"{method} {path.decode()}" for path, by in ROUTES.items() for method in by}
    assert documented == routes | {"GET /v1/models/{id}", "GET /openai/v1/models/{id}"}


def test_every_example_in_json_is_json() -> None:
    """Each JSON block of the reference can be read."""
    for path in REFERENCE.glob("*.md"):
        for block in re.findall(r"```json\n(.*?)```", path.read_text(), re.DOTALL):
            json.loads(block)


def test_the_example_of_prices_is_an_overlay(tmp_path: Path) -> None:
    """The file shown in docs/reference/prices.md can be used, and every field is explained."""
    (shown,) = re.findall(r"```json\n(.*?)```", page("prices.md"), re.DOTALL)
    file = tmp_path / "prices.json"
    file.write_text(shown)
    assert PriceTable.load(file).find("anthropic", "llama-on-our-own-machines", 0.0) is not None
    rows = re.findall(r"^\| (`.+?`) \| ", page("prices.md"), re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`([a-z_0-9]+)`", row)}
    entry = {field.encode_name for field in msgspec.structs.fields(Entry)}
    assert documented == entry


def test_internal_links_lead_somewhere() -> None:
    """Every relative link in the Markdown files points to a file, and to a heading in it."""
    for source in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", source.read_text()):
            file = source.parent / target if target else source
            assert file.exists(), f"{source.name}: {target}"
            if anchor:
                assert anchor in anchors(file), f"{source.name}: {target}#{anchor}"


def test_files_named_in_the_prose_exist() -> None:
    """Every path of the repository that a page names, such as a test, is there."""
    folders = "core|broker|proxy|sdk|migrations|demo|deploy|docs|tests"
    for source in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for path in re.findall(rf"`((?:{folders})/[\w./-]+)`", source.read_text()):
            assert (ROOT / path).exists(), f"{source.name}: {path}"


def anchors(file: Path) -> set[str]:
    """The anchors that the headings of a page get."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_readme_is_short() -> None:
    """The README has at most 150 lines."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("word", ["mint", "virtual key", "whitelist", "blacklist", "quota"])
def test_the_glossary_binds(word: str) -> None:
    """Words the glossary rules out stand in no page but the glossary itself."""
    for source in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        if source.name == "glossary.md":
            continue
        # What another program says is shown as code, in its own words.
        ours = re.sub(r"`[^`]*`", "", source.read_text())
        found = re.search(rf"\b{re.escape(word)}\w*", ours, re.IGNORECASE)
        assert not found, f"{source.name}: {found}"


def test_the_example_of_upstreams_can_be_read(tmp_path: Path) -> None:
    """The file shown in docs/openai.md is one that the proxy reads, prices included."""
    shown = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "openai.md").read_text(), re.DOTALL)
    file = tmp_path / "upstreams.json"
    file.write_text(shown[0])
    vault = {"DAYPASS_VAULT_ADDR": "https://bao.test", "DAYPASS_VAULT_TOKEN_FILE": "/run/token"}
    loaded = proxy_settings.load(NEEDED | vault | {"DAYPASS_UPSTREAMS": str(file)})
    assert set(loaded.upstreams) == {"vllm", "ollama"}
    assert load_prices(loaded).find("ollama", "qwen3:8b", 0.0) is not None
