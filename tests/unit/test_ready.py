"""Ready databases of test stacks: the first of a kind is made, the others are copies of it."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.servers import ready

KIND = ("a policy", "2")


def making(file: Path, credential: str, made: list[str]) -> Callable[[], str]:
    """What stands for the broker's commands: it writes the file and notes that it ran."""

    def make() -> str:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE IF NOT EXISTS admin (credential TEXT)")
            connection.execute("INSERT INTO admin VALUES (?)", (credential,))
            connection.commit()
        made.append(credential)
        return credential

    return make


def admins(file: Path) -> list[str]:
    """The credentials that a file knows."""
    with closing(sqlite3.connect(file)) as connection:
        return [row[0] for row in connection.execute("SELECT credential FROM admin")]


def test_files_of_a_kind_are_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second of a kind is a private copy with the first one's admin; another kind is made."""
    monkeypatch.setattr(ready, "_made", {})
    made: list[str] = []
    first, second, other = (tmp_path / f"{name}.db" for name in ("first", "second", "other"))
    assert ready.ready_file(first, KIND, making(first, "one", made)) == "one"
    assert ready.ready_file(second, KIND, making(second, "two", made)) == "one"
    assert ready.ready_file(other, ("another", "2"), making(other, "three", made)) == "three"
    assert made == ["one", "three"]
    assert admins(second) == admins(first) == ["one"]
    assert second.stat().st_mode & 0o777 == 0o600


def test_a_file_that_exists_is_no_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a test has put there before goes through the commands, as it would outside."""
    monkeypatch.setattr(ready, "_made", {KIND: (b"", "one")})
    made: list[str] = []
    file = tmp_path / "there.db"
    making(file, "before", [])()
    assert ready.ready_file(file, KIND, making(file, "two", made)) == "two"
    assert admins(file) == ["before", "two"]
