"""`daypass sandbox …`: what it asks the broker, and what it leaves for a shell, and on the disk."""

import json
import subprocess
from pathlib import Path

import pytest

from daypass.__main__ import main
from tests.unit.sdk.admin_server import SANDBOX, AdminServer
from tests.unit.sdk.cli import run

pytestmark = pytest.mark.usefixtures("admin_environment")


def test_a_sandbox_is_created_as_lines_for_a_shell(
    admin: AdminServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """`eval` of the output sets the environment, quoted, with the files on this machine."""
    admin.answers["POST /v1/sandboxes"] = (201, SANDBOX)
    words = "sandbox create --profile coding --budget 5.00 --label task=42 --label x=a=b"
    out = run(
        capsys, *words.split(), "--lifetime", "60", "--token-ttl", "300", "--launch", "reusable"
    )
    assert admin.asked[0].json() == {
        "profile": "coding",
        "budget_usd": "5.00",
        "labels": {"task": "42", "x": "a=b"},
        "lifetime_seconds": 60,
        "token_ttl_seconds": 300,
        "launch": "reusable",
    }
    script = (
        f'{out}\nprintf "%s|" "$DAYPASS_SANDBOX" "$ANTHROPIC_ORGANIZATION_ID" "$ANTHROPIC_API_KEY"'
    )
    script += ' "$(cat "$ANTHROPIC_IDENTITY_TOKEN_FILE")"'
    shown = subprocess.run(
        ["sh", "-c", script], env={"ANTHROPIC_API_KEY": "x"}, capture_output=True, text=True
    )
    assert shown.stdout == "sbx_a|ac me||launch-jwt|"
    assert "launch-jwt" not in out


def test_a_sandbox_is_created_as_json(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`--json` is the broker's answer as it is, and writes no file."""
    admin.answers["POST /v1/sandboxes"] = (201, SANDBOX)
    assert json.loads(run(capsys, "sandbox", "create", "--json")) == SANDBOX
    admin.answers["POST /v1/sandboxes"] = (201, {"sandboxes": [SANDBOX]})
    many = json.loads(run(capsys, "sandbox", "create", "--json", "--count", "1"))
    assert many == {"sandboxes": [SANDBOX]}
    assert not (tmp_path / "state").exists()


def test_several_sandboxes_are_scripts_to_source(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One shell can be one sandbox only, so each gets a script of its own."""
    both = [{**SANDBOX, "id": name} for name in ("sbx_a", "sbx_b")]
    admin.answers["POST /v1/sandboxes"] = (201, {"sandboxes": both})
    lines = run(capsys, "sandbox", "create", "--count", "2").splitlines()
    folder = tmp_path / "state" / "sandboxes"
    assert lines == [f". {folder}/{name}/environment.sh" for name in ("sbx_a", "sbx_b")]
    assert "export DAYPASS_SANDBOX=sbx_b" in (folder / "sbx_b" / "environment.sh").read_text()


def test_a_single_use_sandbox_says_how_to_start(
    admin: AdminServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stock clients would use such a credential twice, so the output names `daypass run`."""
    row = {**SANDBOX, "launch": {**SANDBOX["launch"], "mode": "single_use"}}
    admin.answers["POST /v1/sandboxes"] = (201, row)
    assert "daypass run -- COMMAND" in run(capsys, "sandbox", "create", "--launch", "single_use")


def test_ending_a_sandbox_removes_its_files(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The credential of an ended sandbox does not stay on the disk."""
    admin.answers["POST /v1/sandboxes"] = (201, SANDBOX)
    run(capsys, "sandbox", "create")
    folder = tmp_path / "state" / "sandboxes" / "sbx_a"
    assert folder.exists()
    for name in ("..", "sbx_a/..", "."):
        run(capsys, "sandbox", "end", name)
        assert folder.exists()
    assert run(capsys, "sandbox", "end", "sbx_a", "sbx_b") == "ended sbx_a\nended sbx_b\n"
    assert not folder.exists()


def test_a_restored_sandbox_gets_its_new_credential(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Restoring hands out like creating, into the same place."""
    admin.answers["POST /v1/sandboxes/sbx_a/restore"] = (200, SANDBOX)
    assert "export DAYPASS_SANDBOX=sbx_a" in run(capsys, "sandbox", "restore", "sbx_a")
    assert (tmp_path / "state" / "sandboxes" / "sbx_a" / "launch.jwt").exists()


def test_a_launch_credential_is_replaced(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`sandbox launch` hands out the new credential like creating, or as the broker's answer."""
    admin.answers["POST /v1/sandboxes/sbx_a/launch"] = (201, SANDBOX)
    assert "export DAYPASS_SANDBOX=sbx_a" in run(capsys, "sandbox", "launch", "sbx_a")
    assert (tmp_path / "state" / "sandboxes" / "sbx_a" / "launch.jwt").exists()
    assert json.loads(run(capsys, "sandbox", "launch", "sbx_a", "--json")) == SANDBOX


STATE = {"limit": 4, "used": 0, "held": 1, "left": 3, "resets_at": None}


def test_limits_are_shown_and_changed(
    admin: AdminServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each flag is a field of the request, `none` is no limit, and the answer shows them as a
    table."""
    row = {"id": "sbx_a", "budget_usd": "2.50", "limits": {}}
    row["tenant_limits"] = {"concurrency": STATE}
    admin.answers["PATCH /v1/sandboxes/sbx_a"] = admin.answers["GET /v1/sandboxes/sbx_a"] = 200, row
    flags = "--budget 2.50 --day 1 --month none --tokens 9 --rpm none --tpm 7 --concurrency 4"
    terms = "--over-budget clamp --drain-seconds 0.5 --drain-tokens none"
    out = run(capsys, "sandbox", "limits", "sbx_a", *flags.split(), *terms.split())
    assert admin.asked[0].json() == {
        "budget_usd": "2.50",
        "budget_per_day_usd": "1",
        "budget_per_month_usd": None,
        "token_budget": 9,
        "requests_per_minute": None,
        "tokens_per_minute": 7,
        "concurrency": 4,
        "over_budget": "clamp",
        "drain_seconds": "0.5",
        "drain_tokens": None,
    }
    assert out.splitlines() == [
        "id          sbx_a",
        "budget_usd  2.50",
        "",
        "LIMIT        OF      MOST  USED  HELD  LEFT  RESETS",
        "concurrency  tenant     4     0     1     3       -",
    ]
    assert run(capsys, "sandbox", "show", "sbx_a") == out
    assert json.loads(run(capsys, "sandbox", "show", "sbx_a", "--json")) == row


def test_a_sandbox_is_created_with_limits(
    admin: AdminServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a request may ask for has the same flags; `none` is nothing to ask for."""
    admin.answers["POST /v1/sandboxes"] = (201, SANDBOX)
    run(capsys, "sandbox", "create", "--json", "--day", "1", "--rpm", "30", "--drain-seconds", "1")
    asked = {"budget_per_day_usd": "1", "requests_per_minute": 30, "drain_seconds": "1"}
    assert admin.asked[0].json() == asked
    assert main(["sandbox", "create", "--rpm", "none"]) == 2
