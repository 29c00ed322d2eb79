"""The command line: what it asks the broker, what people and programs read, how errors end."""

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from daypass import _commands
from daypass.__main__ import main
from daypass._parser import build_parser
from tests.unit.sdk.admin_server import SANDBOX, AdminServer
from tests.unit.sdk.cli import run
from tests.unit.sdk.token_server import LAUNCH, TokenServer

pytestmark = pytest.mark.usefixtures("admin_environment")

SUMS = {"calls": 2, "input_tokens": 50, "output_tokens": 30, "tokens": 90, "cost_usd": "0.0002"}


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Every command that can be run."""
    inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not inner or (parser.get_default("act") and parser.prog != "daypass"):
        yield parser
    for action in inner:
        for choice in action.choices.values():
            yield from leaves(choice)


def test_every_command_has_help_and_an_act(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` works everywhere, and every command leads to a function that exists."""
    commands = list(leaves(build_parser()))
    assert len(commands) >= 25
    for parser in commands:
        words = parser.prog.split()[1:]
        with pytest.raises(SystemExit) as ended:
            main([*words, "--help"])
        assert ended.value.code == 0
        assert "usage: daypass" in capsys.readouterr().out
        undescribed = {a.dest for a in parser._actions if a.option_strings and not a.help}
        assert not undescribed, (parser.prog, undescribed)
        module, _, name = parser.get_default("act").rpartition(":")
        assert not module or callable(getattr(import_module(module), name))


def test_json_is_everywhere_but_where_another_program_speaks() -> None:
    """Every command takes `--json`, except the two whose output is not ours."""
    without = {p.prog for p in leaves(build_parser()) if "--json" not in p._option_string_actions}
    assert without == {"daypass run", "daypass completion"}


def test_tables_are_for_people(admin: AdminServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Lists have headings and aligned columns, and say what to do when they are empty."""
    assert run(capsys, "sandbox", "list") == "no sandboxes; `daypass sandbox create` makes one\n"
    row = {
        "id": "sbx_a",
        "tenant": "acme",
        "spent_usd": "0.1",
        "budget_usd": "10",
        "labels": {"a": "b"},
    }
    admin.answers["GET /v1/sandboxes"] = (200, {"sandboxes": [row, {"id": "sbx_bcd"}]})
    assert run(capsys, "sandbox", "list", "--state", "active").splitlines() == [
        "SANDBOX  TENANT  PROFILE  STATE  SPENT  BUDGET  DEADLINE  LABELS",
        "sbx_a    acme          -      -    0.1      10         -  a=b",
        "sbx_bcd  -             -      -      -       -         -  -",
    ]
    assert admin.calls[-1] == "GET /v1/sandboxes?state=active&limit=100"


def test_a_terminal_does_not_obey_what_others_wrote(
    admin: AdminServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control characters in labels and reasons are shown, not sent."""
    events = [{"at": "t", "tag": "x", "detail": {"reason": "\x1b[2J\x07\r\nowned", "n": None}}]
    admin.answers["GET /v1/audit"] = (200, {"events": events})
    out = run(capsys, "audit", "--tag", "x")
    assert "\x1b" not in out
    assert "\x07" not in out
    assert out.count("\n") == 2
    assert "n=-" in out


def test_usage_is_summed_or_listed(admin: AdminServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Grouped by what was asked, or call by call, with the total below."""
    rows = [{"model": "m", **SUMS}]
    admin.answers["GET /v1/usage"] = (200, {"rows": rows, "totals": SUMS})
    out = run(capsys, "usage", "--by", "model", "--since", "2026-11-01")
    assert re.split("  +", out.splitlines()[0]) == [
        *("MODEL", "CALLS", "INPUT", "OUTPUT", "CACHE WRITE", "CACHE READ", "PASSES"),
        *("ALL TOKENS", "COST USD"),
    ]
    assert out.splitlines()[-1] == "2 calls, USD 0.0002 in all"
    assert admin.calls[-1] == "GET /v1/usage?since=2026-11-01&group_by=model"
    admin.answers["GET /v1/usage"] = (200, {"rows": rows, "totals": SUMS, "next": "req_a"})
    lines = run(capsys, "usage").splitlines()
    assert lines[0].startswith("STARTED")
    assert lines[-1] == "2 calls, USD 0.0002 in all; shown: the newest 1"
    assert json.loads(run(capsys, "usage", "--json"))["totals"] == SUMS
    more = SUMS | {"open_calls": 1, "reserved_usd": "0.1", "estimated_calls": 2}
    admin.answers["GET /v1/usage"] = (200, {"rows": [{"model": "m"}], "totals": more})
    lines = run(capsys, "usage").splitlines()
    assert lines[1].endswith(" open")
    assert lines[-2:] == [
        "1 of them is open and holds USD 0.1",
        "2 of them are booked by estimate",
    ]
    label = {"label": "42", **SUMS}
    admin.answers["GET /v1/usage"] = (200, {"rows": [label], "totals": SUMS})
    first, row, *_ = run(capsys, "usage", "--by", "label:task").splitlines()
    assert (first.split()[0], row.split()[0]) == ("LABEL:TASK", "42")
    assert admin.calls[-1] == "GET /v1/usage?group_by=label%3Atask"


def test_usage_is_printed_as_csv(admin: AdminServer, capsysbinary: Any) -> None:
    """Every page, byte for byte as the broker wrote it, line ends too; not together with JSON."""
    admin.answers["GET /v1/usage"] = (200, "model,calls\r\nü,2\r\n".encode())
    assert main(["usage", "--by", "model", "--csv", "--until", "2026-12-01"]) == 0
    assert capsysbinary.readouterr().out == "model,calls\r\nü,2\r\n".encode()
    assert admin.calls == [
        "GET /v1/usage?until=2026-12-01&group_by=model&format=csv&limit=1000",
    ]
    assert main(["usage", "--csv", "--json"]) == 2
    assert b"are two answers; say one of them" in capsysbinary.readouterr().err


def test_usage_of_pruned_time_says_so(
    admin: AdminServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the table, and beside the CSV: what is printed is not all there was."""
    pruned = {"before": "2026-06-01T00:00:00Z", "exports": ["usage-2026-05.ndjson.gz"]}
    admin.answers["GET /v1/usage"] = (200, {"rows": [], "totals": SUMS, "pruned": pruned})
    assert main(["usage"]) == 0
    assert capsys.readouterr().err == (
        "daypass: usage before 2026-06-01 was pruned; exported to usage-2026-05.ndjson.gz\n"
    )
    admin.answers["GET /v1/usage"] = (200, b"model\r\n")
    admin.headers["daypass-pruned-before"] = pruned["before"]  # type: ignore[assignment]
    assert main(["usage", "--csv"]) == 0
    assert "usage before 2026-06-01 was pruned" in capsys.readouterr().err


def test_a_policy_is_applied(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What changed is listed; a dry run says that it was one; a missing file is said plainly."""
    (tmp_path / "p.yaml").write_text("tenants: {}\n")
    admin.answers["PUT /v1/policy"] = (200, {"created": ["tenants.a"], "updated": ["profiles.b"]})
    out = run(capsys, "apply", "-f", str(tmp_path / "p.yaml"))
    assert out == "created tenants.a\nupdated profiles.b\n"
    admin.answers["PUT /v1/policy"] = (200, {})
    out = run(capsys, "apply", "--file", str(tmp_path / "p.yaml"), "--dry-run")
    assert out == "nothing to change\ndry run: nothing was written\n"
    assert main(["apply", "-f", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_policy_is_printed_to_be_applied_again(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What `policy` prints is sent by `apply` as the same document; for people in many lines."""
    document = {"tenants": {"a": {"profiles": ["b"]}}}
    admin.answers["GET /v1/policy"] = (200, document)
    (tmp_path / "p.json").write_text(run(capsys, "policy"))
    admin.answers["PUT /v1/policy"] = (200, {})
    run(capsys, "apply", "-f", str(tmp_path / "p.json"))
    assert admin.asked[-1].json() == document
    assert (tmp_path / "p.json").read_text().count("\n") > 5
    assert run(capsys, "policy", "--json") == json.dumps(document) + "\n"


def test_credentials_are_shown_once(admin: AdminServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A new credential is the only thing on standard output, so that it can be piped."""
    admin.answers["POST /v1/credentials"] = (201, {"id": "crd_a", "credential": "dpo_a_b"})
    assert main(["credential", "create", "--role", "orchestrator", "--orchestrator", "ci"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "dpo_a_b\n"
    assert "shown once" in shown.err
    admin.answers["GET /v1/credentials"] = (
        200,
        {"credentials": [{"id": "crd_a", "role": "admin"}]},
    )
    assert "crd_a" in run(capsys, "credential", "list")
    assert run(capsys, "credential", "revoke", "crd_a") == "revoked crd_a\n"


def test_keys(admin: AdminServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys are a table in which a killed one is told; a rotation says when the next key signs."""
    key = {"kid": "k-1", "purpose": "access", "state": "retired", "revoked": True}
    admin.answers["GET /v1/keys"] = (200, {"keys": [key]})
    assert "retired, revoked" in run(capsys, "keys", "list", "--purpose", "access")
    following = key | {"kid": "k-2", "state": "prepared", "usable_at": "2026-11-29T17:24:00.000Z"}
    admin.answers["POST /v1/keys/rotate"] = (200, {"keys": [following, key]})
    said = run(capsys, "keys", "rotate", "--now")
    assert said == "k-2 is published, and signs access from 2026-11-29T17:24:00.000Z\n"
    assert admin.asked[-1].json() == {"purpose": "access", "now": True}


def test_a_token_is_all_that_is_printed(
    server: TokenServer,
    launch_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key helper prints a live token or nothing at all, with exit code 1."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    words = ("token", "--launch", str(launch_file))
    assert run(capsys, *words) == "token-1\n"
    assert json.loads(run(capsys, *words, "--json"))["access_token"] == "token-1"
    server.revoked = True
    assert main(words) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("daypass: sandbox revoked; an administrator")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("", 2, "the following arguments are required: COMMAND; see `daypass --help`"),
        ("bogus", 2, "invalid choice: 'bogus'"),
        ("sandbox", 2, "see `daypass sandbox --help`"),
        ("sandbox create --count x", 2, "invalid int value: 'x'"),
        ("sandbox create --label x", 2, "write --label NAME=VALUE"),
        ("sandbox show a", 1, "no such sandbox"),
        ("sandbox limits a", 2, "say at least one limit to change; such as --budget 2.50"),
        ("sandbox list --limit 0", 2, "--limit 0 shows nothing; say at least 1"),
        ("sandbox limits a --budget none", 2, "--budget cannot be none; say how much"),
        ("sandbox limits a --rpm x", 2, "argument --rpm: 'x' is neither a number nor none"),
        ("ledger", 2, "see `daypass ledger --help`"),
        ("ledger verify --dir /nowhere", 2, "no database at /nowhere/daypass.db; pass --dir"),
        ("run", 2, "no command given; write: daypass run -- COMMAND"),
        ("run -- true", 2, "no proxy address; set ANTHROPIC_BASE_URL"),
        ("forward", 2, "pass --socket or set DAYPASS_PROXY_SOCKET"),
        ("forward --socket /x --listen 0.0.0.0:1", 2, "is not a loopback address"),
        ("usage --admin-url http://127.0.0.1:1", 1, "nothing listens at http://127.0.0.1:1"),
        ("usage --admin-url http://far.example", 2, "in the clear"),
        ("usage --credential-file /nowhere", 2, "cannot read the credential file /nowhere"),
        ("usage --credential-file /etc/passwd", 2, "what /etc/passwd holds is not a credential"),
        ("usage --admin-url http://127.0.0.1:port", 2, "is not a base URL"),
        ("up --port 99999", 2, "--port 99999 is not a port"),
        ("up --port 7000 --admin-port 7000", 2, "proxy and admin cannot share port 7000"),
    ],
)
def test_errors_are_one_line(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], words: str, code: int, text: str
) -> None:
    """Whatever goes wrong: `daypass: …` on standard error, what to do, and no traceback."""
    admin.answers["GET /v1/sandboxes/a"] = (404, {"title": "no such sandbox"})
    assert main(shlex.split(words)) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("daypass: ")
    assert text in shown.err
    assert shown.err.count("\n") == 1


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted command ends as the shell expects, silently."""

    def interrupt(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(_commands, "usage", interrupt)
    assert main(["usage"]) == 130


def test_an_unwritable_place_is_said_plainly(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An error of the operating system names the file."""
    admin.answers["POST /v1/sandboxes"] = (201, SANDBOX)
    (tmp_path / "file").touch()
    assert main(["sandbox", "create", "--write", str(tmp_path / "file" / "x")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_it_runs_as_a_program() -> None:
    """The installed command and `python -m daypass` are the same, and say their version."""
    script = Path(sys.executable).with_name("daypass")
    for command in ([str(script)], [sys.executable, "-m", "daypass"]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("daypass 0.")
    done = subprocess.run(
        f"{shlex.quote(str(script))} completion bash | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_the_launch_credential_of_a_token_may_be_piped_in(
    server: TokenServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--launch -` reads standard input."""
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(f"{LAUNCH}\n"))
    assert run(capsys, "token", "--launch", "-", "--base-url", server.url) == "token-1\n"
