"""Running the command line in tests."""

import pytest

from daypass.__main__ import main


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command that succeeds and give what it printed."""
    assert main(words) == 0, capsys.readouterr().err
    return capsys.readouterr().out
