"""`daypass ledger verify`, `daypass audit verify`: which database is checked, what comes of it."""

import importlib.util
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import daypass_migrations
from daypass.__main__ import main


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory as `daypass up` leaves it, with an empty ledger."""
    daypass_migrations.upgrade(f"sqlite:///{tmp_path / 'daypass.db'}")
    return tmp_path


def spoil(state: Path) -> None:
    """Write an account that no call has paid for."""
    with sqlite3.connect(state / "daypass.db") as connection:
        connection.execute(
            "INSERT INTO account (id, kind, tenant, spent_nano, updated_at)"
            " VALUES ('tenant:acme', 'tenant', 'acme', 7, 0)"
        )
    connection.close()


def test_a_right_ledger_ends_with_0(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The check runs on the database of the state directory, and its words are passed on."""
    assert main(["ledger", "verify", "--dir", str(state)]) == 0
    assert "every account is the sum of its usage rows" in capfd.readouterr().out


@pytest.mark.unbooked
def test_a_wrong_ledger_ends_with_1(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A discrepancy is said, for people or as JSON, and is no success."""
    spoil(state)
    assert main(["ledger", "verify", "--dir", str(state)]) == 1
    assert "tenant:acme: spent_nano: 7 recorded" in capfd.readouterr().out
    assert main(["ledger", "verify", "--dir", str(state), "--json"]) == 1
    (found,) = json.loads(capfd.readouterr().out)
    assert (found["account"], found["recorded"], found["computed"]) == ("tenant:acme", 7, 0)


def test_what_cannot_be_read_ends_with_2(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file that is no ledger is neither right nor wrong."""
    (tmp_path / "text").write_text("this is no database, and long enough to be sure" * 9)
    assert main(["ledger", "verify", "--database", f"sqlite:///{tmp_path / 'text'}"]) == 2
    assert "cannot verify" in capfd.readouterr().err


def test_the_database_is_the_one_that_was_said(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """--database before --dir before the environment before the usual state directory."""
    right, wrong = f"sqlite:///{state / 'daypass.db'}", f"sqlite:///{tmp_path / 'none.db'}"
    monkeypatch.setenv("DAYPASS_DATABASE_URL", wrong)
    assert main(["ledger", "verify"]) == 2
    assert main(["ledger", "verify", "--dir", str(state)]) == 0
    assert main(["ledger", "verify", "--database", right, "--dir", str(tmp_path / "x")]) == 0
    monkeypatch.delenv("DAYPASS_DATABASE_URL")
    monkeypatch.setenv("DAYPASS_DIR", str(state))
    assert main(["ledger", "verify"]) == 0
    capfd.readouterr()


def test_a_password_is_in_no_argument(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL goes through the environment, which other users of the machine cannot read."""
    ran: list[tuple[list[str], dict[str, str]]] = []

    class Done:
        returncode = 0

    def run(command: list[str], *, env: dict[str, str]) -> Done:
        ran.append((command, env))
        return Done()

    monkeypatch.setattr(subprocess, "run", run)
    url = "postgresql://u:hunter2@h/d"
    assert main(["ledger", "verify", "--database", url]) == 0
    ((command, env),) = ran
    assert command == [sys.executable, "-m", "daypass_proxy", "verify"]
    assert (env["DAYPASS_DATABASE_URL"], env["PYTHONSAFEPATH"]) == (url, "1")


def test_without_the_proxy_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, not 1: nothing was found wrong."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert main(["ledger", "verify"]) == 2
    said = capsys.readouterr().err
    assert said == ("daypass: daypass_proxy is not installed; run: pip install 'daypass[server]'\n")


def test_a_check_that_was_killed_is_no_finding(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever else ends the check ends with 2 as well."""

    class Killed:
        returncode = -9

    monkeypatch.setattr(subprocess, "run", lambda *_, **__: Killed())
    assert main(["ledger", "verify", "--dir", str(state)]) == 2
    assert "ended with exit code -9" in capsys.readouterr().err


def test_the_trail_is_verified_where_the_database_is(
    state: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`daypass audit verify` passes on the broker's own check, its flags and its exit code; the
    flags of `daypass audit` stay its own."""
    assert main(["audit", "verify", "--dir", str(state)]) == 0
    assert "0 events in 0 heads verified, 0 problems" in capfd.readouterr().out
    heads = tmp_path / "broker.log"
    heads.write_text('{"event":"audit_head"}\n')
    given = ["--heads", str(heads), "--export", str(tmp_path), "--json", "--dir", str(state)]
    assert main(["audit", "verify", *given]) == 1
    assert "line 1: is no whole head" in capfd.readouterr().err
    assert main(["audit", "verify", "--dir", "/nowhere"]) == 2
    assert "no database at /nowhere/daypass.db" in capfd.readouterr().err


def test_a_flag_may_stand_before_the_action(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`daypass audit --dir STATE verify` checks that database, and not the usual one."""
    assert main(["audit", "--json", "--dir", str(state), "verify"]) == 0
    assert json.loads(capfd.readouterr().out)["heads"] == 0
    assert main(["audit", "--dir", "/nowhere", "verify", "--dir", str(state)]) == 0
    assert main(["audit", "--dir", str(state), "verify", "--dir", "/nowhere"]) == 2
    assert "no database at /nowhere/daypass.db" in capfd.readouterr().err


def test_an_empty_name_of_a_log_is_not_passed_over(
    state: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Such as of a variable that is not set; one that begins with a dash is a name."""
    assert main(["audit", "verify", "--dir", str(state), "--heads", ""]) == 1
    assert "Is a directory" in capfd.readouterr().err
    assert main(["audit", "verify", "--dir", str(state), "--heads=-log"]) == 1
    assert "-log: No such file" in capfd.readouterr().err
