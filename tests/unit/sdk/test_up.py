"""`daypass up`: its settings, its state directory, its two processes; the real thing is started in
the integration tests.
"""

import importlib.util
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from queue import SimpleQueue

import pytest

from daypass import NotInstalled, ServiceFailed, SettingsError
from daypass import _process as process
from daypass import up as up_module
from daypass._http import Origin
from daypass._process import Service, end, tail
from daypass._progress import Progress
from daypass._state import State, UpOptions, make_plan
from daypass_core import server
from daypass_proxy.ledger import writer
from tests.servers.ports import free_port
from tests.support import eventually

ENV = {
    "PATH": os.defpath,
    "HOME": "/home/me",
    "ANTHROPIC_API_KEY": "sk-ant-default",
    "GLOBEX_KEY": "sk-ant-globex",
    "AWS_SECRET_ACCESS_KEY": "mine",
    "DAYPASS_CREDENTIAL": "dpa_a_b",
    "DAYPASS_LOG_LEVEL": "debug",
    "DAYPASS_IDLE_SECONDS": "7",
    "DAYPASS_EGRESS_PROXY": "http://me:secret@egress.test:3128",
    "DAYPASS_UPSTREAM_PRIVATE": "1",
    "DAYPASS_VAULT_TOKEN_FILE": "/vault-token",
    "DAYPASS_MIN_TOKEN_TTL": "60",
}
# A service that answers /readyz, says something, and does not mind SIGTERM when asked not to.
FAKE = """
import http.server, os, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "0"); self.end_headers()
    def log_message(self, *a): pass
print("service speaks", sys.argv[1:], flush=True)
if os.environ.get("FAIL"):
    print("\\n".join(f"line {n}" for n in range(40)), flush=True)
    sys.exit(5)
if os.environ.get("STUBBORN"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


def options(tmp_path: Path, **more: object) -> UpOptions:
    """Options with ports that are free."""
    return UpOptions(directory=tmp_path / "s", port=0, admin_port=0, **more)  # type: ignore[arg-type]


def plan(tmp_path: Path, env: dict[str, str] | None = None, **more: object):  # type: ignore[no-untyped-def]
    """The settings that these options give."""
    wanted = options(tmp_path, **more)
    return make_plan(wanted, State(wanted.directory), ENV if env is None else env)


def test_secrets_reach_the_proxy_only(tmp_path: Path) -> None:
    """Of our variables, the broker gets none that a key reference names, and nobody gets others."""
    made = plan(tmp_path, anthropic_keys=["env://ANTHROPIC_API_KEY", "globex=env://GLOBEX_KEY"])
    assert made.proxy["ANTHROPIC_API_KEY"] == "sk-ant-default"
    assert made.proxy["GLOBEX_KEY"] == "sk-ant-globex"
    keys = "default=env://ANTHROPIC_API_KEY,globex=env://GLOBEX_KEY"
    assert made.proxy["DAYPASS_ANTHROPIC_KEYS"] == keys
    assert not {"ANTHROPIC_API_KEY", "GLOBEX_KEY", "DAYPASS_VAULT_TOKEN_FILE"} & set(made.broker)
    for env in (made.broker, made.proxy):
        assert not {"AWS_SECRET_ACCESS_KEY", "DAYPASS_CREDENTIAL"} & set(env)
        assert env["DAYPASS_LOG_LEVEL"] == "debug"
        assert env["DAYPASS_ISSUER"] == made.proxy_url
    assert made.proxy["DAYPASS_IDLE_SECONDS"] == "7"
    for name in ("DAYPASS_EGRESS_PROXY", "DAYPASS_UPSTREAM_PRIVATE"):
        assert made.proxy[name] == ENV[name]
        assert name not in made.broker
    assert made.broker["DAYPASS_MIN_TOKEN_TTL"] == "60"


def test_a_key_for_all_tenants_has_to_be_asked_for(tmp_path: Path) -> None:
    """A bare reference is tenant default's; a template or --shared-key is everybody's."""
    template = "vault://secret/llm/{tenant}#api_key"
    made = plan(tmp_path, anthropic_keys=[template], vault_addr="http://127.0.0.1:8200")
    assert made.proxy["DAYPASS_ANTHROPIC_KEYS"] == f"*={template}"
    assert "DAYPASS_SHARED_KEYS" not in made.proxy
    made = plan(tmp_path, shared_key=True)
    assert made.proxy["DAYPASS_ANTHROPIC_KEYS"] == "*=env://ANTHROPIC_API_KEY"
    assert made.proxy["DAYPASS_SHARED_KEYS"] == "1"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("env://NOT_THERE", "NOT_THERE is not set, so there is no provider key"),
        ("vault://secret/llm#api_key", "pass --vault-addr"),
        ("sk-ant-real", "the given text is not a key reference"),
        ("acme=sk-ant-real", "the given text is not a key reference"),
    ],
)
def test_a_key_that_cannot_work_is_refused(tmp_path: Path, key: str, words: str) -> None:
    """Before anything starts, and without repeating what may be the key itself."""
    with pytest.raises(SettingsError, match=words) as caught:
        plan(tmp_path, anthropic_keys=[key])
    assert "sk-ant-real" not in str(caught.value)


def test_tls_names_the_certificate_in_both_services(tmp_path: Path) -> None:
    """With --tls sandboxes are told https, and each service where its files are."""
    made = plan(tmp_path, tls=True)
    assert made.proxy_url.startswith("https://localhost:")
    assert made.broker["DAYPASS_PUBLIC_URL"] == made.proxy_url
    assert made.broker["DAYPASS_CA_FILE"] == str(tmp_path / "s" / "tls" / "ca.pem")
    assert made.proxy["DAYPASS_PROXY_TLS_KEY"] == str(tmp_path / "s" / "tls" / "server.key")


def test_a_taken_port_is_said_plainly(tmp_path: Path) -> None:
    """The sentence names the port and the flag that chooses another."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        wanted = UpOptions(directory=tmp_path, port=0, admin_port=port)
        with pytest.raises(SettingsError, match=rf"127\.0\.0\.1:{port}: .* with --admin-port"):
            make_plan(wanted, State(tmp_path), ENV)


def test_the_policy_is_read_before_anything_starts(tmp_path: Path) -> None:
    """A wrong path is said at once; the file goes to the broker as it is."""
    with pytest.raises(SettingsError, match="cannot read the policy"):
        plan(tmp_path, policy=tmp_path / "none")
    (tmp_path / "p.yaml").write_bytes(b"tenants: {}\n")
    assert plan(tmp_path, policy=tmp_path / "p.yaml").policy == b"tenants: {}\n"


def test_progress_is_one_line_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    """In a log, a step is what was done and how long it took; a failed one leaves no line."""
    progress = Progress()
    with progress.step("broker") as tick:
        tick()
    with pytest.raises(ZeroDivisionError), progress.step("proxy"):
        raise ZeroDivisionError
    assert re.fullmatch(r"daypass: broker \(\d\.\d s\)\n", capsys.readouterr().err)


def test_a_state_directory_has_one_owner(tmp_path: Path) -> None:
    """A second `daypass up` on the same directory says so; the lock ends with its holder."""
    second = State(tmp_path / "s").claimed()
    refused = pytest.raises(SettingsError, match="already up in")
    with State(tmp_path / "s").claimed(), refused, second:
        pass
    with State(tmp_path / "s").claimed():
        pass


def test_the_state_directory_is_private(tmp_path: Path) -> None:
    """Others can look into none of it; a directory that they could is refused."""
    state = State(tmp_path / "s")
    with state.claimed():
        state.write_config({"admin_url": "http://127.0.0.1:1"})
    for path in (state.directory, state.keys, state.logs, state.proxy_socket.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(state.config_file.stat().st_mode) == 0o600
    assert json.loads(state.config_file.read_text())["proxy_socket"] == str(state.proxy_socket)
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(SettingsError, match="chmod 700"), State(tmp_path / "open").claimed():
        pass


def test_sockets_of_a_killed_run_are_cleared_away(tmp_path: Path) -> None:
    """What a killed run left does not keep the next one from listening."""
    state = State(tmp_path / "s")
    with state.claimed():
        state.proxy_socket.touch()
    with state.claimed():
        assert not state.proxy_socket.exists()


def test_a_path_too_long_for_a_socket_is_said_plainly(tmp_path: Path) -> None:
    """The operating system's own message for it helps nobody."""
    long = State(tmp_path / ("x" * 100)).claimed()
    with pytest.raises(SettingsError, match="too long for a socket"), long:
        pass


def test_a_large_log_is_put_aside(tmp_path: Path) -> None:
    """A log over 10 MiB starts anew, and the old one is kept once."""
    state = State(tmp_path / "s")
    with state.claimed():
        path = state.log_file("proxy")
    with open(path, "wb") as log:
        log.truncate(11 * 1024 * 1024)
    assert state.log_file("proxy") == path
    assert not path.exists()
    assert path.with_suffix(".log.1").stat().st_size == 11 * 1024 * 1024


@pytest.mark.parametrize("missing", ["daypass_broker", "daypass_proxy"])
def test_a_missing_part_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """The sentence names the module and the command that installs it."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == missing else find(name)
    )
    with pytest.raises(NotInstalled, match=rf"{missing} is not installed; run: pip install 'day"):
        up_module.up(options(tmp_path))


def service(tmp_path: Path, **env: str) -> tuple[Service, Origin]:
    """A fake service under our care."""
    (tmp_path / "fake_service.py").write_text(FAKE)
    port = free_port()
    given = {"PATH": os.defpath, "PYTHONPATH": str(tmp_path), "PORT": str(port), **env}
    made = Service("proxy", "fake_service", given, tmp_path / "proxy.log", tmp_path)
    return made, Origin(f"http://127.0.0.1:{port}")


def test_a_service_is_waited_for_and_ended(tmp_path: Path) -> None:
    """Ready when /readyz answers 200; ended by SIGTERM; its output is in its log."""
    made, origin = service(tmp_path)
    ticks: list[None] = []
    made.await_ready(origin, lambda: ticks.append(None))
    events: SimpleQueue[object] = SimpleQueue()
    made.report(events)
    assert os.getsid(made.process.pid) == made.process.pid
    end([made])
    assert made.process.returncode == -signal.SIGTERM
    assert events.get(timeout=30) is made
    assert "service speaks ['serve']" in made.log.read_text()


def test_a_service_that_ends_at_the_start_shows_its_last_words(tmp_path: Path) -> None:
    """The error carries the exit code and the last fifteen lines of the log."""
    made, origin = service(tmp_path, FAIL="1")
    with pytest.raises(ServiceFailed, match="the proxy ended with exit code 5") as caught:
        made.await_ready(origin, lambda: None)
    assert str(caught.value).endswith("\n".join(f"line {n}" for n in range(25, 40)))


def test_a_service_that_never_gets_ready_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time it is a failure like any other."""
    monkeypatch.setattr(process, "READY_SECONDS", 0.0)
    made, _ = service(tmp_path)
    with pytest.raises(ServiceFailed, match="was not ready within 0 s"):
        made.await_ready(Origin("http://127.0.0.1:1"), lambda: None)
    end([made])


def test_a_service_that_does_not_want_to_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked, told, then killed: nothing is left running."""
    monkeypatch.setattr(process, "ASKED_SECONDS", 0.1)
    monkeypatch.setattr(process, "TOLD_SECONDS", 0.1)
    made, origin = service(tmp_path, STUBBORN="1")
    made.await_ready(origin, lambda: None)
    end([made])
    assert made.process.returncode == -signal.SIGKILL


def test_whoever_waits_for_another_waits_longer() -> None:
    """The ledger gives up before its service closes, and that before `daypass up` kills it."""
    assert writer.CLOSING_SECONDS < server.CLOSE_SECONDS
    assert server.UNWIND_SECONDS + server.CLOSE_SECONDS < process.TOLD_SECONDS


def test_services_do_not_outlive_us(tmp_path: Path) -> None:
    """If `daypass up` is killed, the kernel ends its children."""
    (tmp_path / "fake_service.py").write_text(FAKE)
    script = (
        "import sys, time; from pathlib import Path; from daypass._process import Service;"
        f"p = Path({str(tmp_path)!r});"
        "s = Service('x', 'fake_service', {'PYTHONPATH': str(p), 'PORT': '0'}, p / 'l', p);"
        "print(s.process.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    eventually(lambda: "speaks" in (tmp_path / "l").read_text(), timeout=30)
    parent.kill()
    parent.communicate()

    def gone() -> bool:
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state == "Z"  # an orphan that nobody has collected yet

    eventually(gone, timeout=30)


def test_the_tail_of_a_log_survives_anything(tmp_path: Path) -> None:
    """No log, or one that is not text, is no reason to fail while reporting a failure."""
    assert tail(tmp_path / "none") == ""
    (tmp_path / "log").write_bytes(b"\xff\n" * 100_000 + b"end")
    assert tail(tmp_path / "log", 2) == "\N{REPLACEMENT CHARACTER}\nend"
