"""The keeper of `daypass run`: the token file follows the token, and trouble is said once."""

from pathlib import Path

import pytest

from daypass import Revoked, Unreachable
from daypass._keeper import Keeper
from daypass._renewal import Time
from daypass._token import TokenProvider
from tests.unit.sdk.token_server import LAUNCH, TokenServer


class Notes:
    """What a keeper said, and a clock for its provider."""

    def __init__(self, server: TokenServer, tmp_path: Path) -> None:
        self.now = 0.0
        self.said: list[str] = []
        clock = Time(monotonic=lambda: self.now, sleep=lambda seconds: None)
        self.launch = tmp_path / "launch.jwt"
        self.launch.write_text(LAUNCH)
        provider = TokenProvider(server.url, launch_file=self.launch, cache=False, clock=clock)
        self.token_file = tmp_path / "token"
        self.keeper = Keeper(provider, self.token_file, self.said.append)


def test_trouble_is_said_once_and_so_is_its_end(server: TokenServer, tmp_path: Path) -> None:
    """An outage of many attempts is two lines: that it is there, and that it is over."""
    notes = Notes(server, tmp_path)
    notes.keeper.start()
    notes.now += 580
    server.faults = [(500, {"error": "server_error"}, {})] * 3
    for _ in range(3):
        assert notes.keeper.step() <= 5.0
        notes.now += 5.1
    assert len(notes.said) == 1
    assert notes.token_file.read_text() == "token-1"
    notes.keeper.step()
    assert notes.said[1:] == ["renewed, access goes on"]
    assert notes.token_file.read_text() == "token-2"
    notes.keeper.stop()
    assert not notes.token_file.exists()


def test_a_restored_sandbox_goes_on(server: TokenServer, tmp_path: Path) -> None:
    """After a revocation the keeper waits for a new launch credential, and asks for nothing."""
    notes = Notes(server, tmp_path)
    notes.keeper.start()
    server.revoked = True
    notes.now += 700
    for _ in range(12):  # a minute
        assert notes.keeper.step() == 5.0
        notes.now += 5.1
    assert server.exchanges == 2
    assert not notes.token_file.exists()
    server.revoked, server.launch = False, "launch-credential-2"
    notes.launch.write_text(server.launch)
    notes.keeper.step()
    assert notes.token_file.read_text() == "token-2"
    assert notes.said == [
        "access is over: sandbox revoked; an administrator must restore it",
        "renewed, access goes on",
    ]
    notes.keeper.stop()


def test_errors_of_the_first_exchange_are_raised(server: TokenServer, tmp_path: Path) -> None:
    """A keeper does not start on a launch credential that does not work."""
    server.revoked = True
    with pytest.raises(Revoked):
        Notes(server, tmp_path).keeper.start()
    server.revoked = False
    server.faults = ["lose"]
    with pytest.raises(Unreachable):
        Notes(server, tmp_path).keeper.start()
