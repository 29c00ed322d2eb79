"""Several workers of one proxy: shared out, replaced, ended together; what none of them shows."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.canary import CANARY
from tests.servers.client import RawStream
from tests.servers.ports import free_port
from tests.servers.stack import Stack, call
from tests.servers.stub import Send, Stall, StubUpstream, chunk
from tests.servers.wire import message_start, sse_answer
from tests.support import eventually

MODEL = "claude-sonnet-4-5"
BODY: dict[str, object] = {
    "model": MODEL,
    "max_tokens": 64,
    "stream": True,
    "messages": [{"role": "user", "content": "x"}],
}
START = message_start(MODEL, {"input_tokens": 25, "output_tokens": 1})


def below(pid: int) -> list[int]:
    """The processes that this one has started and that live."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):  # a thread that has just ended
                children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
                found += [int(child) for child in children]
    return found


def lives(pid: int) -> bool:
    """Whether it runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def with_workers(make_stack: Callable[..., Stack], **settings: str) -> tuple[Stack, str, list[int]]:
    """A stack whose proxy has two workers, its metrics listener, and the workers' pids."""
    port = free_port()
    stack = make_stack(
        proxy_settings={
            "DAYPASS_PROXY_WORKERS": "2",
            "DAYPASS_PROXY_METRICS_LISTEN": f"127.0.0.1:{port}",
            **settings,
        }
    )
    parent = stack.processes["proxy"].pid
    eventually(lambda: stack.log("proxy").count('"event":"worker_ready"') == 2, timeout=30)
    return stack, f"http://127.0.0.1:{port}", below(parent)


def test_workers_share_the_work_and_one_that_ends_is_replaced(
    make_stack: Callable[..., Stack], upstream: StubUpstream
) -> None:
    """Both workers serve and show figures; killed, one is replaced and the other goes on (K18)."""
    stack, metrics, workers = with_workers(make_stack)
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)

    def served() -> set[str]:
        text = call(metrics, "GET", "/metrics").body.decode()
        lines = [line for line in text.splitlines() if line.startswith("daypass_calls_total{")]
        assert text.count("# TYPE daypass_calls_total ") == (1 if lines else 0)
        return {line.partition('worker="')[2][0] for line in lines}

    def both_have_served() -> bool:
        assert stack.message(token).status == 200
        return served() == {"0", "1"}

    eventually(both_have_served, timeout=30)
    os.kill(workers[0], signal.SIGKILL)
    eventually(lambda: stack.log("proxy").count('"event":"worker_ready"') == 3, timeout=30)
    assert stack.log("proxy").count('"event":"worker_ended"') == 1
    for _ in range(8):
        assert stack.message(token).status == 200
    parent = stack.processes["proxy"].pid
    after = below(parent)
    assert len(after) == 2
    assert stack.stop_process("proxy") == 0
    assert not any(lives(pid) for pid in after)
    assert "Traceback" not in stack.log("proxy")


def test_no_worker_outlives_its_parent(make_stack: Callable[..., Stack]) -> None:
    """However the parent ends, its workers and their body checkers end with it."""
    stack, _, workers = with_workers(make_stack)
    everybody = [*workers, *(child for worker in workers for child in below(worker))]
    assert len(everybody) == 2 + 2 * 2
    stack.stop_process("proxy", signal.SIGKILL)
    eventually(lambda: not any(lives(pid) for pid in everybody))
    stack.start_proxy()


def test_a_silent_worker_is_replaced_only_when_it_is_wedged(
    make_stack: Callable[..., Stack],
) -> None:
    """B55: a stopped worker takes nobody's probe along: the other answers in a probe's time."""
    stack, metrics, workers = with_workers(make_stack)
    os.kill(workers[0], signal.SIGSTOP)
    try:
        for _ in range(4):
            assert call(metrics, "GET", "/livez", timeout=5).status == 200
    finally:
        os.kill(workers[0], signal.SIGCONT)
    assert '"event":"worker_wedged"' not in stack.log("proxy")


def test_workers_drain_together(make_stack: Callable[..., Stack], upstream: StubUpstream) -> None:
    """B89: SIGTERM reaches every worker: all streams are told, booked, and the exit code is 0."""
    stack, _, _ = with_workers(make_stack, DAYPASS_DRAIN_SECONDS="1")
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    upstream.always([Send(sse_answer()), chunk(START), Stall()])
    streams = [RawStream.post(stack.proxy_url, token, BODY) for _ in range(8)]
    for stream in streams:
        stream.until(START)
    assert stack.stop_process("proxy") == 0
    for stream in streams:
        stream.rest()
        assert stream.complete
        assert b"event: error" in stream.body
    assert {row["outcome"] for row in stack.settled(sandbox, 8)} == {"shutdown"}
    stack.start_proxy()


def test_nobody_waits_at_the_unix_socket_of_workers_that_end(
    make_stack: Callable[..., Stack], upstream: StubUpstream
) -> None:
    """B53: once nothing new is taken, a client of the shared Unix socket is refused at once."""
    stack, _, _ = with_workers(make_stack, DAYPASS_DRAIN_SECONDS="8")
    token = stack.access_token(stack.sandbox())
    upstream.always([Send(sse_answer()), chunk(START), Stall()])
    stream = RawStream.post(stack.proxy_url, token, BODY)
    stream.until(START)

    def is_taken() -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(5.0)  # less than is drained
            try:
                sock.connect(str(stack.proxy_socket))
                sock.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                return bool(sock.recv(1))
            except ConnectionError:
                return False

    assert is_taken()
    stack.processes["proxy"].send_signal(signal.SIGTERM)
    eventually(lambda: not is_taken())
    assert stack.processes["proxy"].poll() is None
    stream.close()
    assert stack.processes.pop("proxy").wait(20) == 0
    stack.start_proxy()


def test_workers_that_cannot_start_end_the_service(tmp_path: Path) -> None:
    """With a certificate that is none all of it ends with exit code 2, and nothing is retried."""
    for name in ("key", "cert.pem"):
        (tmp_path / name).write_text("sk-ant-nothing")
    settings = {
        "PATH": os.defpath,
        "DAYPASS_ISSUER": "http://127.0.0.1:1",
        "DAYPASS_DATABASE_URL": f"sqlite:///{tmp_path}/daypass.db",
        "DAYPASS_PROXY_TLS_CERT": f"{tmp_path}/cert.pem",
        "DAYPASS_PROXY_TLS_KEY": f"{tmp_path}/cert.pem",
        "DAYPASS_PROXY_LISTEN": "127.0.0.1:0",
        "DAYPASS_BROKER_URL": f"unix:{tmp_path}/none.sock",
        "DAYPASS_ANTHROPIC_KEYS": f"acme=file://{tmp_path}/key",
        "DAYPASS_PROXY_WORKERS": "2",
    }
    done = subprocess.run(
        [sys.executable, "-m", "daypass_proxy", "serve"],
        env=settings, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert '"event":"worker_not_started"' in done.stderr
    assert "not a certificate and its key" in done.stderr


def test_b54_no_process_shows_what_it_was_given(make_stack: Callable[..., Stack]) -> None:
    """Row 44: /proc/PID/environ of proxy, workers, body checkers and broker holds no setting."""
    stack, _, workers = with_workers(
        make_stack,
        DAYPASS_ANTHROPIC_KEYS="acme=env://LLM_KEY",
        LLM_KEY=f"sk-ant-{CANARY}-acme",
    )
    assert stack.message(stack.access_token(stack.sandbox())).status == 200
    parents = [process.pid for process in stack.processes.values()]
    checkers = [child for worker in workers for child in below(worker)]
    assert len(checkers) == 4
    for pid in (*parents, *workers, *checkers):
        shown = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"DAYPASS_" not in shown
        assert CANARY.encode() not in shown
        assert stack.database_url.encode() not in shown
    for pid in (*parents, *workers):
        assert Path(f"/proc/{pid}/environ").read_bytes().strip(b"\0") == b""
        assert os.stat(f"/proc/{pid}/mem").st_uid == 0
        status = Path(f"/proc/{pid}/status").read_text()
        assert "NoNewPrivs:\t1" in status
        assert "Umask:\t0077" in status
