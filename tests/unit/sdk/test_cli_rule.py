"""`daypass rule …`: what is asked of the broker, and what people are shown."""

import json
from pathlib import Path

import pytest

from daypass.__main__ import main
from tests.unit.sdk.admin_server import AdminServer
from tests.unit.sdk.cli import run

pytestmark = pytest.mark.usefixtures("admin_environment")

RULE = {
    "id": "fdrl_a",
    "name": "agents",
    "tenant": "acme",
    "profile": "coding",
    "state": "active",
    "issuer": "https://token.actions.githubusercontent.com",
    "conditions": {"repository_id": ["1"]},
    "environment": {
        "ANTHROPIC_BASE_URL": "https://proxy.test",
        "ANTHROPIC_FEDERATION_RULE_ID": "fdrl_a",
        "ANTHROPIC_ORGANIZATION_ID": "acme",
    },
}
ADD = ["rule", "add", "agents", "--template", "github", "--tenant", "acme"]
ADD += ["--profile", "coding", "--audience", "me"]


def test_a_rule_is_added(admin: AdminServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Repeated claims allow one value more; what is printed starts a workload."""
    admin.answers["POST /v1/rules"] = (201, RULE)
    claims = ["--claim", "repository_id=1", "--claim", "ref=a=b", "--claim", "repository_id=2"]
    out = run(capsys, *ADD, *claims, "--replay", "once", "--max-life", "600")
    assert admin.asked[0].json() == {
        "name": "agents",
        "template": "github",
        "tenant": "acme",
        "profile": "coding",
        "audience": "me",
        "conditions": {"repository_id": ["1", "2"], "ref": ["a=b"]},
        "replay": "once",
        "max_life_seconds": 600,
    }
    assert out.splitlines() == [
        "# fdrl_a",
        "ANTHROPIC_BASE_URL=https://proxy.test",
        "ANTHROPIC_FEDERATION_RULE_ID=fdrl_a",
        "ANTHROPIC_ORGANIZATION_ID=acme",
    ]
    assert json.loads(run(capsys, *ADD, "--json")) == RULE


def test_keys_come_from_a_url_or_a_file(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Exactly one of them, and the file is a JWK set."""
    admin.answers["POST /v1/rules"] = (201, RULE)
    file = tmp_path / "keys.json"
    file.write_text('{"keys": []}')
    run(capsys, *ADD, "--keys-file", str(file))
    run(capsys, *ADD, "--keys-url", "https://issuer.test/keys")
    assert [asked.json()["keys"] for asked in admin.asked] == [
        {"inline": {"keys": []}},
        {"url": "https://issuer.test/keys"},
    ]
    file.write_text("-----BEGIN PUBLIC KEY-----")
    for words, said in (
        (["--keys-file", str(file)], "is not JSON; give a JWK set"),
        (["--keys-file", str(tmp_path / "none")], "cannot read"),
        (["--keys-file", str(file), "--keys-url", "x"], "two places"),
        (["--claim", "repository_id"], "write --claim NAME=VALUE"),
    ):
        assert main([*ADD, *words]) == 2
        assert said in capsys.readouterr().err
    assert len(admin.asked) == 2


def test_rules_are_listed_and_shown(admin: AdminServer, capsys: pytest.CaptureFixture[str]) -> None:
    """One line a rule; one field a line."""
    admin.answers["GET /v1/rules"] = (200, {"rules": [RULE]})
    admin.answers["GET /v1/rules/fdrl_a"] = (200, RULE)
    lines = run(capsys, "rule", "list", "--tenant", "acme").splitlines()
    assert lines[0].split() == ["RULE", "NAME", "TENANT", "PROFILE", "STATE", "ISSUER"]
    assert lines[1].split()[:2] == ["fdrl_a", "agents"]
    assert admin.calls == ["GET /v1/rules?tenant=acme"]
    assert 'conditions   {"repository_id": ["1"]}' in run(capsys, "rule", "show", "fdrl_a")


@pytest.mark.parametrize(
    ("verb", "method", "body", "words"),
    [
        ("disable", "PATCH", {"state": "disabled"}, "fdrl_a is disabled"),
        ("enable", "PATCH", {"state": "active"}, "fdrl_a is in force"),
        ("remove", "DELETE", None, "removed fdrl_a"),
    ],
)
def test_a_rule_is_changed(
    admin: AdminServer,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    method: str,
    body: object,
    words: str,
) -> None:
    """One request, one line."""
    admin.answers[f"{method} /v1/rules/fdrl_a"] = (200, RULE)
    assert run(capsys, "rule", verb, "fdrl_a").startswith(words)
    assert (admin.asked[0].json() if body else None) == body
    assert json.loads(run(capsys, "rule", verb, "fdrl_a", "--json")) == RULE


def test_templates_say_what_to_pin(admin: AdminServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever adds a rule sees which claims never change hands."""
    one = {"name": "github", "title": "GitHub Actions", "immutable": ["a", "b"], "identity": ["c"]}
    admin.answers["GET /v1/rule-templates"] = (200, {"templates": [one]})
    lines = run(capsys, "rule", "templates").splitlines()
    assert lines[1].split("  ")[0] == "github"
    assert "a, b" in lines[1]
