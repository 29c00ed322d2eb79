"""A registry that is away for a moment fails no test, and one that stays away is named."""

import sys
from pathlib import Path

import pytest

from tests import registries

# Fails as often as it is told to, and counts in a file.
PROGRAM = """
import pathlib, sys
tries = pathlib.Path("tries")
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
if len(tries.read_text()) <= int(sys.argv[1]):
    sys.exit("no route to the registry")
print("installed")
"""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many attempts, one directly after the other."""
    monkeypatch.setattr(registries, "PAUSES", (0.0, 0.0))


def command(failures: int) -> list[str]:
    """A command that fails so often before it succeeds."""
    return [sys.executable, "-c", PROGRAM, str(failures)]


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_it_is_asked_again(tmp_path: Path, failures: int) -> None:
    """What fails twice and then goes well has gone well, and is not done once more."""
    assert registries.ask(command(failures), tmp_path) == "installed\n"
    assert len((tmp_path / "tries").read_text()) == failures + 1


def test_it_says_what_failed(tmp_path: Path) -> None:
    """After three attempts: how often, the command, and its own words."""
    with pytest.raises(AssertionError, match=r"(?s)3 times: .* 3: no route"):
        registries.ask(command(3), tmp_path)
    assert len((tmp_path / "tries").read_text()) == 3


def test_an_attempt_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs is ended with all that it started."""
    monkeypatch.setattr(registries, "SECONDS", 0.2)
    with pytest.raises(AssertionError, match=r"goes on after 0\.2 s"):
        registries.ask(["sh", "-c", "sleep 300; true"], tmp_path)
