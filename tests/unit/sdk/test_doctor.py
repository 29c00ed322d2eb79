"""`daypass doctor`: each thing that can be wrong with a sandbox is found, and its cure is said."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from daypass import TokenProvider
from daypass.__main__ import main
from daypass._doctor import VENDORS, Check, can_reach, examine
from tests.unit.sdk.token_server import LAUNCH, TokenServer


def findings(
    server: TokenServer, *, launch: str = LAUNCH, reached: tuple[str, ...] = ()
) -> dict[str, Check]:
    """The checks by name, with these vendors in reach and no other."""
    provider = TokenProvider(server.url, launch=launch, cache=False)
    return {check.name: check for check in examine(provider, lambda host: host in reached)}


def wrong(found: dict[str, Check]) -> dict[str, str]:
    """What is not well, by name."""
    return {name: check.text for name, check in found.items() if not check.ok}


def test_a_good_sandbox(server: TokenServer) -> None:
    """Everything is looked at, in order, and the pass is told: what for, and what is left."""
    scope = {"provider": "anthropic", "endpoints": ["messages", "models"], "models": ["claude-*"]}
    server.own_details = [scope]
    found = findings(server)
    assert list(found) == [
        *("variables", "proxy", "token", "clock", "may call", "budget", "network"),
    ]
    assert wrong(found) == {}
    assert found["proxy"].text == f"{server.url} is ready, in plain text, on loopback"
    assert found["token"].text == "tok_1 of sbx_1, tenant acme"
    assert found["may call"].text == "anthropic: messages, models with claude-*"
    assert found["budget"].text == "4.50 USD left"


def test_a_key_in_the_environment_is_named(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would win over the day pass is said by its name, never by its value."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-mine")
    text = wrong(findings(server))["variables"]
    assert text.startswith("ANTHROPIC_API_KEY set: ")
    assert "daypass run" in text
    assert "mine" not in text


def test_a_proxy_that_is_not_there(server: TokenServer) -> None:
    """Without a proxy there is nothing to ask about the token, and the network is looked at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        server.url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        found = findings(server)
    assert list(found) == ["variables", "proxy", "network"]
    assert wrong(found)["proxy"].startswith(f"nothing listens at {server.url}; check the address")


def test_a_proxy_that_is_not_ready(server: TokenServer) -> None:
    """What it misses is said in its own words."""
    server.ready = False
    assert '"missing"' in wrong(findings(server))["proxy"]


def test_a_revoked_sandbox(server: TokenServer) -> None:
    """The broker's sentence is the finding."""
    server.revoked = True
    assert wrong(findings(server)) == {"token": "sandbox revoked; an administrator must restore it"}


@pytest.mark.parametrize(("off", "which"), [(-45, "ahead of"), (45, "behind")])
def test_a_wrong_clock(server: TokenServer, off: int, which: str) -> None:
    """More than 30 s of difference is found, and in which direction."""
    server.clock_ahead = off
    (told,) = wrong(findings(server)).values()
    assert re.fullmatch(rf"(3[5-9]|[45]\d) s {which} the broker's; set the clock here", told)
    server.clock_ahead = off // 2
    assert wrong(findings(server)) == {}


def test_a_way_round_the_proxy(server: TokenServer) -> None:
    """Vendors in reach are named: there a key of its own would be good."""
    text = wrong(findings(server, reached=(VENDORS[1],)))["network"]
    assert text.startswith("api.openai.com can be reached: ")
    assert VENDORS[0] not in text


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """A forward proxy that gives one answer to every CONNECT, and the environment that names it."""
    answer = {"line": b"HTTP/1.1 403 Forbidden"}
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    taken, _ = listening.accept()
                except OSError:
                    return
                with taken:
                    taken.recv(4096)
                    taken.sendall(answer["line"] + b"\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{listening.getsockname()[1]}")
        yield answer
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_forward_proxy_is_a_way_too(gate: dict[str, bytes]) -> None:
    """A host is in reach when the forward proxy of the environment lets through to it."""
    assert not can_reach("vendor.test")
    gate["line"] = b"HTTP/1.1 200 Connection established"
    assert can_reach("vendor.test")


def test_the_command(
    server: TokenServer,
    launch_file: Path,
    gate: dict[str, bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Lines for people, JSON for programs; the exit code says whether anything is wrong."""
    words = ["doctor", "--base-url", server.url, "--launch", str(launch_file)]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ok       variables  no key or token of another kind is set"
    gate["line"] = b"HTTP/1.1 200 Connection established"
    assert main([*words, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert [check["name"] for check in told["checks"] if not check["ok"]] == ["network"]
    assert main(["doctor"]) == 2
    assert "no proxy address" in capsys.readouterr().err
