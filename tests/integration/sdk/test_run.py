"""`daypass run`: what the command sees, how it ends, and how its token stays fresh."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from daypass.run import _Child
from tests.unit.sdk.token_server import LAUNCH, TokenServer, token_server

PRINT_ENVIRONMENT = (
    "import json, os; f = os.environ.get('DAYPASS_TOKEN_FILE');"
    "print(json.dumps({**os.environ, 'token': open(f).read()}))"
)
# What a stock client does with its environment, by the client's own code: its first token, and the
# one that it gets after a 401.
STOCK = """
from anthropic.lib.credentials import default_credentials
import os
found = default_credentials(base_url=os.environ["ANTHROPIC_BASE_URL"]).provider
print(type(found).__name__, found().token, found(force_refresh=True).token)
"""
# Prints the token file each time it changes, three times.
WATCH = """
import os, time
seen = []
end = time.monotonic() + 30
while len(seen) < 3 and time.monotonic() < end:
    now = open(os.environ["DAYPASS_TOKEN_FILE"]).read()
    if now not in seen:
        seen.append(now)
    time.sleep(0.01)
print(*seen)
"""
# Waits until the token file is gone.
WAIT = """
import os, time
print("ready", flush=True)
end = time.monotonic() + 30
while os.path.exists(os.environ["DAYPASS_TOKEN_FILE"]) and time.monotonic() < end:
    time.sleep(0.01)
"""
TRAP = """
import os, signal
def stop(number, frame):
    os.write(1, f"got {signal.Signals(number).name}\\n".encode())
    os._exit(3)
for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"):
    signal.signal(getattr(signal, name), stop)
print("ready", flush=True)
while True:
    signal.pause()
"""


def environment(server: TokenServer, tmp_path: Path, **more: str) -> dict[str, str]:
    """What an orchestrator gives a sandbox."""
    return {
        "PATH": os.defpath,
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(tmp_path),
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_IDENTITY_TOKEN_FILE": str(tmp_path / "launch.jwt"),
        "ANTHROPIC_FEDERATION_RULE_ID": "fdrl_daypass_launch",
        "ANTHROPIC_ORGANIZATION_ID": "acme",
        **more,
    }


def start(
    env: Mapping[str, str], *words: str, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `daypass run` with these words to its end."""
    return subprocess.run(
        [sys.executable, "-m", "daypass", "run", *words],
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )


def seen(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The environment that the command printed."""
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_reusable_launch_gives_the_federation_variables(
    server: TokenServer, tmp_path: Path, launch_file: Path
) -> None:
    """The command gets the four variables and a token file, and no key of anybody's."""
    env = environment(
        server,
        tmp_path,
        ANTHROPIC_API_KEY="sk-ant-mine",
        ANTHROPIC_AUTH_TOKEN="mine",
        DAYPASS_CREDENTIAL="dpa_x_y",
        OTHER="kept",
    )
    done = start(env, "--", sys.executable, "-c", PRINT_ENVIRONMENT)
    found = seen(done)
    for name in (*env, "ANTHROPIC_CONFIG_DIR"):
        kept = name in env and not name.endswith(("_KEY", "_AUTH_TOKEN", "_CREDENTIAL"))
        assert found.get(name) == (env[name] if kept else None), name
    assert found["token"] == "token-1"
    assert found["DAYPASS_BASE_URL"] == server.url
    assert "removed ANTHROPIC_API_KEY, ANTHROPIC_AUTH_TOKEN for the command" in done.stderr
    assert "mine" not in done.stderr


def test_files_are_private_and_gone_afterwards(
    server: TokenServer, tmp_path: Path, launch_file: Path
) -> None:
    """The token file is readable by its owner only, and nothing of a run stays but the cache."""
    script = "import os; f = os.environ['DAYPASS_TOKEN_FILE']; print(oct(os.stat(f).st_mode), f)"
    done = start(environment(server, tmp_path), "--", sys.executable, "-c", script)
    mode, path = done.stdout.split()
    assert stat.S_IMODE(int(mode, 8)) == 0o600
    assert not Path(path).parent.exists()
    assert not list((tmp_path / "daypass").glob("run-*"))


def test_a_named_token_file_is_written(
    server: TokenServer, tmp_path: Path, launch_file: Path
) -> None:
    """`--token-file` says where the token is kept while the command runs."""
    path = tmp_path / "token"
    done = start(environment(server, tmp_path), "--token-file", str(path), "--", "cat", str(path))
    assert (done.returncode, done.stdout) == (0, "token-1")
    assert not path.exists()


@pytest.mark.sdk
@pytest.mark.parametrize(
    ("single_use", "kind"),
    [
        (False, "WorkloadIdentityCredentials token-2 token-3"),
        (True, "CredentialsFile token-1 token-2"),
    ],
)
def test_official_clients_find_their_way(
    server: TokenServer, tmp_path: Path, launch_file: Path, single_use: bool, kind: str
) -> None:
    """With a reusable launch they exchange it, with a single-use one they renew by a profile."""
    server.single_use = single_use
    done = start(environment(server, tmp_path), "--", sys.executable, "-c", STOCK)
    assert done.stdout.strip() == kind, done.stderr
    assert server.incidents == []


def test_a_single_use_launch_stays_with_us(
    server: TokenServer, tmp_path: Path, launch_file: Path
) -> None:
    """The command gets a profile and no way to use the launch credential a second time."""
    server.single_use = True
    script = (
        "import os, json; c = os.environ['ANTHROPIC_CONFIG_DIR'] + '/configs/default.json';"
        "f = os.environ['DAYPASS_TOKEN_CACHE'];"
        "print(json.dumps([sorted(os.environ), json.load(open(c)), f, json.load(open(f)),"
        "oct(os.lstat(f).st_mode)]))"
    )
    done = start(environment(server, tmp_path), "--", sys.executable, "-c", script)
    names, config, path, credentials, mode = json.loads(done.stdout)
    assert not [name for name in names if "IDENTITY" in name or "FEDERATION" in name]
    assert config == {
        "version": "1.0",
        "authentication": {
            "type": "user_oauth",
            "client_id": "daypass",
            "credentials_path": path,
        },
        "base_url": server.url,
    }
    assert credentials["type"] == "oauth_token"
    assert credentials["access_token"] == "token-1"
    assert credentials["refresh_token"] == "generation-1"
    assert isinstance(credentials["expires_at"], int)
    assert credentials["expires_at"] == pytest.approx(time.time() + 600, abs=60)
    assert int(mode, 8) == stat.S_IFREG | 0o600


def test_without_an_organization_clients_read_what_we_renew(
    server: TokenServer, tmp_path: Path, launch_file: Path
) -> None:
    """A reusable launch whose federation is not known: a profile that the client does not renew."""
    env = environment(server, tmp_path)
    del env["ANTHROPIC_ORGANIZATION_ID"]
    done = start(env, "--", sys.executable, "-c", STOCK)
    assert done.stdout.strip() == "CredentialsFile token-1 token-1", done.stderr


def test_our_own_client_in_the_command_shares_the_token(
    server: TokenServer, tmp_path: Path, launch_file: Path
) -> None:
    """A TokenProvider in the command takes the same token, also for a single-use launch."""
    server.single_use = True
    script = "import daypass; t = daypass.TokenProvider(); print(t.token(), t.token(rejected='x'))"
    done = start(environment(server, tmp_path), "--", sys.executable, "-c", script)
    assert done.stdout.split() == ["token-1", "token-1"], done.stderr
    assert server.exchanges == 1


def test_the_launch_credential_may_come_by_standard_input(
    server: TokenServer, tmp_path: Path
) -> None:
    """`--launch -` reads it; it reaches the command as a private file."""
    env = environment(server, tmp_path)
    del env["ANTHROPIC_IDENTITY_TOKEN_FILE"]
    words = ("--launch", "-", "--", sys.executable, "-c", PRINT_ENVIRONMENT)
    found = seen(start(env, *words, stdin=f"{LAUNCH}\n"))
    assert found["ANTHROPIC_IDENTITY_TOKEN_FILE"].endswith("/launch.jwt")
    done = start(env, *words, stdin="")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("daypass: no launch credential on standard input")


def test_a_socket_is_forwarded(tmp_path: Path, launch_file: Path) -> None:
    """With a proxy socket the command speaks to a loopback port, and its traffic arrives."""
    with token_server(tmp_path / "p.sock") as server:
        env = environment(server, tmp_path, DAYPASS_PROXY_SOCKET=str(tmp_path / "p.sock"))
        env["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:8788"
        words = ("--listen", "127.0.0.1:0", "--", sys.executable, "-c", PRINT_ENVIRONMENT)
        found = seen(start(env, *words))
        assert found["ANTHROPIC_BASE_URL"].startswith("http://127.0.0.1:")
        assert found["token"] == server.newest
        assert "DAYPASS_PROXY_SOCKET" not in found


def test_a_socket_without_a_proxy_is_named(
    server: TokenServer, tmp_path: Path, launch_file: Path
) -> None:
    """When nobody answers at the socket, its path is said and nothing is started."""
    env = environment(server, tmp_path, DAYPASS_PROXY_SOCKET=str(tmp_path / "gone.sock"))
    done = start(env, "--", "echo", "started")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"no proxy answers at {tmp_path / 'gone.sock'}" in done.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -TERM $$"), 143),
        (("no-such-command",), 127),
        (("/",), 126),
        (("echo", "--token-file", "x"), 0),
    ],
)
def test_the_exit_code_is_the_commands(
    server: TokenServer, tmp_path: Path, launch_file: Path, command: tuple[str, ...], code: int
) -> None:
    """Codes are kept, signals become 128 + n, what cannot start ends as in a shell."""
    done = start(environment(server, tmp_path), "--", *command)
    assert done.returncode == code
    if command[0] == "echo":
        assert done.stdout == "--token-file x\n"


def heed_all_signals() -> None:
    """What nohup or a background job made of a signal for the whole test run must not decide."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_signals_are_passed_on(
    server: TokenServer, tmp_path: Path, launch_file: Path, name: str
) -> None:
    """The command decides what a signal means; its exit code comes back."""
    with subprocess.Popen(
        [sys.executable, "-m", "daypass", "run", "--", sys.executable, "-c", TRAP],
        env=environment(server, tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_all_signals,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(getattr(signal, name))
            out, _ = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (out, process.returncode) == (f"got {name}\n", 3)


def test_a_signal_while_the_command_starts_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command may run before we know of it: it is not left behind."""
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def starts_slowly(command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        started.append(popen(command, env=env))
        os.kill(os.getpid(), signal.SIGTERM)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", starts_slowly)
    child = _Child()
    child.take_signals()
    try:
        assert child.run(["sleep", "60"], {"PATH": os.defpath}) == 128 + signal.SIGTERM
    finally:
        child.restore_signals()
        started[0].kill()
        started[0].wait()


@pytest.mark.parametrize("single_use", [False, True])
def test_the_token_file_is_renewed(
    server: TokenServer, tmp_path: Path, launch_file: Path, single_use: bool
) -> None:
    """B18: a command that outlives its first token finds the next ones in the same file."""
    server.ttl = 0.5
    server.single_use = single_use
    done = start(environment(server, tmp_path), "--", sys.executable, "-c", WATCH)
    tokens = done.stdout.split()
    assert len(tokens) == 3, done.stderr
    assert all(token.startswith("token-") for token in tokens)
    assert server.incidents == []


def test_revocation_is_said_once_and_the_token_goes(
    server: TokenServer, tmp_path: Path, launch_file: Path
) -> None:
    """When access is over, one line says so, and a helper that prints the file fails."""
    server.ttl = 0.5
    process = subprocess.Popen(
        [sys.executable, "-m", "daypass", "run", "--", sys.executable, "-c", WAIT],
        env=environment(server, tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    server.revoked = True
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert err.count("\n") == 1, err
    assert "sandbox revoked; an administrator" in err


def test_a_refused_launch_starts_nothing(
    server: TokenServer, tmp_path: Path, launch_file: Path
) -> None:
    """Without access there is no command: one line, exit code 1."""
    server.revoked = True
    done = start(environment(server, tmp_path), "--", "echo", "started")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("daypass: sandbox revoked; ")
    assert start(environment(server, tmp_path)).returncode == 2
