"""Broker and proxy as a strict cluster runs them: any user, a read-only root, no capabilities.

What the chart sets besides is in tests/packaging; here the programs have to live with it. Run as
root each gets such a root directory and user; otherwise it runs as whoever runs the tests.
"""

import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.pod import Container, Pod
from tests.fleet.service import Probe
from tests.servers.ports import free_port
from tests.support import eventually

ANYBODY = 12345
DATA = "/var/lib/daypass"
COMMON = {
    "DAYPASS_ISSUER": "https://daypass.test",
    "DAYPASS_DATABASE_URL": f"sqlite:///{DATA}/daypass.db",
    "DAYPASS_DRAIN_SECONDS": "1",
    "DAYPASS_BROKER_DRAIN_SECONDS": "1",
}


def environment(component: str, port: int, health: int) -> dict[str, str]:
    """The settings of a service that listens on two ports."""
    if component == "broker":
        own = {
            "DAYPASS_BROKER_INTERNAL": f"127.0.0.1:{port}",
            "DAYPASS_BROKER_ADMIN": "127.0.0.1:0",
            "DAYPASS_BROKER_METRICS_LISTEN": f"127.0.0.1:{health}",
            "DAYPASS_BROKER_KEYS_DIR": f"{DATA}/keys",
            "DAYPASS_PUBLIC_URL": "https://daypass.test",
        }
    else:
        own = {
            "DAYPASS_PROXY_LISTEN": f"127.0.0.1:{port}",
            "DAYPASS_PROXY_METRICS_LISTEN": f"127.0.0.1:{health}",
            "DAYPASS_BROKER_URL": f"unix:{DATA}/nobody.sock",
            "DAYPASS_ANTHROPIC_KEYS": "*=env://KEY",
            "DAYPASS_SHARED_KEYS": "1",
            "KEY": "sk-test",
        }
    return COMMON | own


@pytest.fixture
def pods() -> Iterator[list[Pod]]:
    """Those that a test starts; they end with it."""
    started: list[Pod] = []
    yield started
    for each in started:
        each.stop()


def answers(url: str) -> bool:
    """Whether a probe succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.parametrize("component", ["broker", "proxy"])
def test_a_service_runs_on_a_read_only_root_as_anybody(
    component: str, pods: list[Pod], tmp_path: Path
) -> None:
    """As user 12345 without capabilities it migrates, serves and ends in order, with nothing to
    write to but its data: there is not even a /tmp (B54).
    """
    port, health = free_port(), free_port()
    start = f"python -m daypass_broker migrate && exec python -m daypass_{component} serve"
    container = Container(
        command=("/bin/sh", "-c", start),
        environment=environment(component, port, health),
        ready=Probe("/readyz", health),
        live=Probe("/livez", health),
        port=port,
        user=ANYBODY,
        empty=(DATA,),
    )
    pod = Pod(component, "127.0.0.1", container, tmp_path)
    pods.append(pod)
    pod.start()
    path = "readyz" if component == "broker" else "livez"  # a proxy waits for its broker's keys
    eventually(lambda: answers(f"http://127.0.0.1:{health}/{path}") or not pod.running, 30)
    assert pod.running, pod.log.read_text()
    assert pod.process is not None
    assert os.geteuid() != 0 or owner(pod.process.pid) == ANYBODY
    pod.signal(signal.SIGTERM)
    assert pod.wait(20) == 0, pod.log.read_text()


def owner(pid: int) -> int:
    """The user of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [each for each in status.splitlines() if each.startswith("Uid:")]
    return int(line.split()[1])
