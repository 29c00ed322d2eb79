"""`daypass up` for real: one command to a working proxy, the lines it prints, and its end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.canary import CANARY
from tests.servers.stub import StubUpstream
from tests.support import eventually

DAYPASS = [sys.executable, "-m", "daypass"]
START = [*DAYPASS, "up", "--port", "0", "--admin-port", "0", "--dir"]
CALL = (
    "import anthropic; print(anthropic.Anthropic().messages.create(model='claude-haiku-4-5',"
    " max_tokens=16, messages=[{'role': 'user', 'content': 'hi'}]).content[0].text)"
)
OURS = (
    "import daypass.anthropic as a; print(a.client().messages.create(model='claude-haiku-4-5',"
    " max_tokens=16, messages=[{'role': 'user', 'content': 'hi'}]).content[0].text)"
)


class Up:
    """A running `daypass up` and a shell beside it."""

    def __init__(self, state: Path, process: subprocess.Popen[str], ready: dict[str, Any]) -> None:
        self.state = state
        self.process = process
        self.ready = ready
        self.environment = {
            "PATH": os.defpath,
            "HOME": str(state.parent),
            "XDG_RUNTIME_DIR": str(state.parent),
            "DAYPASS_DIR": str(state),
        }

    def daypass(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run one `daypass` command."""
        return subprocess.run(
            [*DAYPASS, *words],
            env=self.environment | more,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def sandbox(self, *words: str) -> dict[str, str]:
        """Register a sandbox as a newcomer does, and give what the shell then has."""
        made = self.daypass("sandbox", "create", *words)
        assert made.returncode == 0, made.stderr
        shown = subprocess.run(
            ["sh", "-c", f"{made.stdout}\nenv -0"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return dict(line.split("=", 1) for line in shown.stdout.split("\0") if line)

    def python(self, environment: dict[str, str], script: str) -> str:
        """What a script prints in a sandbox's environment."""
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True
        )
        return done.stdout.strip() or done.stderr.strip().splitlines()[-1]

    def stop(self, number: int = signal.SIGINT) -> int:
        """Interrupt it and give its exit code."""
        self.process.send_signal(number)
        self.process.communicate(timeout=20)
        return self.process.returncode


@contextmanager
def up(state: Path, upstream: StubUpstream, *words: str) -> Iterator[Up]:
    """Run `daypass up` inside the block."""
    process = subprocess.Popen(
        [*START, str(state), "--json", "--anthropic-url", upstream.url, *words],
        env={
            "PATH": os.defpath,
            "HOME": str(state.parent),
            "ANTHROPIC_API_KEY": f"sk-ant-{CANARY}-acme",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield Up(state, process, json.loads(line))
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.sdk
def test_from_nothing_to_a_metered_call_and_a_revocation(
    tmp_path: Path, stub: StubUpstream
) -> None:
    """The three lines that `daypass up` prints work as printed, then it ends cleanly."""
    with up(tmp_path / "s", stub) as running:
        sandbox = running.sandbox("--budget", "1.00", "--label", "task=42")
        assert running.python(sandbox, CALL) == "Hello"
        assert running.python(sandbox, OURS) == "Hello"
        usage = json.loads(running.daypass("usage", "--json").stdout)
        assert usage["totals"]["calls"] == 2
        assert {row["sandbox"] for row in usage["rows"]} == {sandbox["DAYPASS_SANDBOX"]}
        assert "task=42" in running.daypass("sandbox", "list").stdout

        revoked = running.daypass("revoke", "--sandbox", sandbox["DAYPASS_SANDBOX"])
        assert revoked.returncode == 0, revoked.stderr
        assert running.python(sandbox, OURS).startswith("daypass._errors.Revoked: ")
        refused = running.daypass("token", **sandbox)
        assert (refused.returncode, refused.stdout) == (1, "")
        tags = json.loads(running.daypass("audit", "--json").stdout)["events"]
        assert {"sandbox.created", "token.issued", "policy.applied"} <= {e["tag"] for e in tags}

        sandbox = running.sandbox()
        assert running.python(sandbox, CALL) == "Hello"
        assert running.stop() == 0
    assert all(record.header("x-api-key") for record in stub.requests)


def test_a_single_use_sandbox_runs_behind_the_socket(tmp_path: Path, stub: StubUpstream) -> None:
    """`daypass run` forwards the socket and holds the generation; clients read a profile."""
    with up(tmp_path / "s", stub) as running:
        sandbox = running.sandbox("--launch", "single_use", "--connect", "socket")
        sandbox["DAYPASS_PROXY_SOCKET"] = running.ready["proxy_socket"]
        words = ("run", "--listen", "127.0.0.1:0", "--", sys.executable, "-c")
        for script in (CALL, OURS):  # the second run goes on where the first one stopped
            done = running.daypass(*words, script, **sandbox)
            assert (done.returncode, done.stdout) == (0, "Hello\n"), done.stderr


def test_a_second_start_goes_on_with_what_is_there(tmp_path: Path, stub: StubUpstream) -> None:
    """Credential, policy and sandboxes stay; a policy that was changed is not overwritten."""
    with up(tmp_path / "s", stub) as running:
        credential = (running.state / "admin.credential").read_text()
        policy = json.dumps({"tenants": {"acme": {"profiles": ["default"]}}})
        (tmp_path / "p.json").write_text(policy)
        applied = running.daypass("apply", "-f", str(tmp_path / "p.json"))
        assert applied.stdout == "created tenants.acme\n", applied.stderr
        assert running.stop(signal.SIGTERM) == 0
    with up(tmp_path / "s", stub) as running:
        assert (running.state / "admin.credential").read_text() == credential
        made = running.daypass("sandbox", "create", "--tenant", "acme")
        assert made.returncode == 0, made.stderr
        second = running.daypass("up", "--dir", str(running.state), ANTHROPIC_API_KEY="x")
        assert (second.returncode, second.stdout) == (2, "")
        assert second.stderr.startswith("daypass: daypass is already up in ")


@pytest.mark.sdk
def test_tls_is_one_flag(tmp_path: Path, stub: StubUpstream) -> None:
    """With --tls the sandbox gets the CA with its environment, and stock clients trust it."""
    with up(tmp_path / "s", stub, "--tls") as running:
        assert running.ready["proxy_url"].startswith("https://")
        sandbox = running.sandbox()
        assert Path(sandbox["SSL_CERT_FILE"]).read_text().startswith("-----BEGIN CERTIFICATE")
        assert running.python(sandbox, CALL) == "Hello"
        assert running.daypass("token", **sandbox).returncode == 0


@pytest.mark.parametrize("name", ["broker", "proxy"])
def test_a_service_that_dies_ends_the_whole(tmp_path: Path, stub: StubUpstream, name: str) -> None:
    """It says which one, shows its last lines, ends the other, and does not pretend to be fine."""
    with up(tmp_path / "s", stub) as running:
        other = running.ready["pids"]["proxy" if name == "broker" else "broker"]
        os.kill(running.ready["pids"][name], signal.SIGKILL)
        _, err = running.process.communicate(timeout=20)
    assert running.process.returncode == 1
    assert f"daypass: the {name} ended with signal 9, so daypass stops" in err
    assert f"last lines of {tmp_path}/s/logs/{name}.log:" in err
    eventually(lambda: not Path(f"/proc/{other}").exists())


def test_a_key_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """The start says which provider key cannot be read and why, and goes on."""
    words = ["--dir", str(tmp_path / "d"), "--port", "0", "--admin-port", "0", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "daypass", "up", *words, "--anthropic-key", "file:///nowhere/key"],
        env={"PATH": os.defpath, "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["proxy_url"]
    process.terminate()
    _, told = process.communicate(timeout=30)
    assert "warning: provider key file:///nowhere/key cannot be read" in told
    assert "Traceback" not in told


def test_a_tenant_without_a_key_is_told(tmp_path: Path, stub: StubUpstream) -> None:
    """The start names each tenant of the policy that has no provider key, and goes on."""
    scope = "[{type: llm_inference, provider: anthropic, endpoints: [messages], models: ['*']}]"
    profile = f"{{authorization_details: {scope}, budget_usd: '1'}}"
    tenants = "{default: {profiles: [p]}, acme: {profiles: [p]}}"
    (tmp_path / "p.yaml").write_text(f"profiles: {{p: {profile}}}\ntenants: {tenants}\n")
    with up(tmp_path / "s", stub, "--policy", str(tmp_path / "p.yaml")) as running:
        running.process.terminate()
        _, told = running.process.communicate(timeout=20)
    assert [line for line in told.splitlines() if "warning" in line] == [
        "daypass: warning: tenant acme has no provider key, so its calls are refused;"
        " pass --anthropic-key acme=REF"
    ]


def test_a_bad_policy_stops_the_start(tmp_path: Path, stub: StubUpstream) -> None:
    """One line names what is wrong in the file, and nothing is left running."""
    (tmp_path / "p.yaml").write_text("tenants: {acme: {profiles: [none]}}\n")
    done = subprocess.run(
        [*START, str(tmp_path / "s"), "--policy", str(tmp_path / "p.yaml")],
        env={"PATH": os.defpath, "HOME": str(tmp_path), "ANTHROPIC_API_KEY": "x"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "tenants.acme" in done.stderr.splitlines()[-1]
