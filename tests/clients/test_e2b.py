"""E2B's own SDK and our helper: sandboxes with a day pass, which end here when E2B ends them."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.installed import frameworks_python
from tests.clients.stock import PATIENCE
from tests.clients.test_recipes import ROOT
from tests.servers.agent import Agent
from tests.servers.e2b import API_KEY, E2B, Machine, e2b
from tests.servers.stack import Stack
from tests.servers.stub import StubUpstream
from tests.support import eventually

pytestmark = pytest.mark.sdk

ORCHESTRATOR = Path(__file__).parent / "e2b_orchestrator.py"
SECRET = "whsec-of-a-test-account-0123456789"
BOUND_SECONDS = 0.8
"""What is published for proxies that poll."""
BUSY = 5
"""How many times slower this machine may be while other tests run."""
LAUNCH_FILE = "/run/daypass/launch.jwt"


@pytest.fixture(scope="module")
def e2b_stack(
    tmp_path_factory: pytest.TempPathFactory, module_stub: StubUpstream, keys: str
) -> Iterator[Stack]:
    """A stack that takes E2B's webhooks."""
    folder = tmp_path_factory.mktemp("e2b")
    (folder / "secret").write_text(SECRET)
    settings = {"DAYPASS_WEBHOOK_SECRETS": f"e2b={folder / 'secret'}"}
    with Stack(folder, module_stub.url, keys, broker_settings=settings) as stack:
        yield stack


@pytest.fixture
def account(e2b_stack: Stack, module_stub: StubUpstream) -> Iterator[E2B]:
    """E2B, telling the broker of what it kills."""
    module_stub.reset()
    with e2b(SECRET, e2b_stack.admin_url) as server:
        yield server


class Orchestrator:
    """The program with E2B's SDK; a context manager that ends it."""

    def __init__(self, stack: Stack, account: E2B, way: str, **options: object) -> None:
        given = {"proxy": stack.proxy_url, "tenant": "acme", **options}
        environment = {
            "PATH": os.defpath,
            "HOME": "/nonexistent",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(ROOT / "sdk"),
            "DAYPASS_ADMIN_URL": stack.admin_url,
            "DAYPASS_CREDENTIAL": stack.admin_credential,
            "E2B_API_KEY": API_KEY,
            "E2B_API_URL": account.url,
            "E2B_SANDBOX_URL": account.url,
            "E2B_HTTP_VERSION": "1.1",
        }
        self._process = subprocess.Popen(
            [str(frameworks_python()), "-P", str(ORCHESTRATOR), way, json.dumps(given)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Orchestrator":
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()

    def said(self) -> dict[str, Any]:
        """Its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(self._process.communicate(timeout=PATIENCE)[1][-3000:])
        found: dict[str, Any] = json.loads(line)
        return found

    def go_on(self) -> tuple[str, str]:
        """Let it leave its block; what it said after that."""
        return self._process.communicate("\n", timeout=PATIENCE)


def ours(stack: Stack, machine: Machine) -> dict[str, Any]:
    """Our sandbox of a machine, as the broker shows it."""
    ident = machine.asked["metadata"]["daypass_sandbox"]
    found: dict[str, Any] = stack.admin("GET", f"/v1/sandboxes/{ident}").json()
    return found


def test_a_killed_sandbox_is_over_within_the_bound(
    e2b_stack: Stack, account: E2B, module_stub: StubUpstream, tmp_path: Path
) -> None:
    """Made by E2B's SDK with our environment, a stock client works in it; when E2B kills it, its
    webhook ends calls and exchanges within 0.8 s, with the orchestrator still in its block.
    """
    with Orchestrator(e2b_stack, account, "one") as orchestrator:
        (ident,) = orchestrator.said()["running"]
        machine = account.machines[ident]
        reports = Agent.start("anthropic 2.x", machine.environment(tmp_path)).reports()
        assert [report["ok"] for report in reports] == [True, True], reports
        shown = ours(e2b_stack, machine)
        assert (shown["state"], shown["vendor"], shown["vendor_id"]) == ("active", "e2b", ident)

        sandbox = {"launch": {"credential": machine.files[LAUNCH_FILE]}} | {
            "environment": machine.asked["envVars"]
        }
        token = e2b_stack.access_token(sandbox)
        assert e2b_stack.message(token).status == 200
        began = time.monotonic()
        account.kill(ident)
        assert [answer.json() for answer in account.webhooks] == [{"status": "ended"}]
        eventually(lambda: e2b_stack.message(token).status == 401, timeout=BOUND_SECONDS * BUSY)
        assert time.monotonic() - began < BOUND_SECONDS * BUSY
        assert e2b_stack.exchange(sandbox).status == 400
        assert ours(e2b_stack, machine)["state"] == "ended"

        (report,) = Agent.start("anthropic 2.x", machine.environment(tmp_path)).reports()
        assert "sandbox ended" in report["text"], report
        orchestrator.go_on()


def test_what_e2b_is_given_holds_no_credential(e2b_stack: Stack, account: E2B) -> None:
    """The request that E2B stores has variables, metadata, and a network with one way out; the
    credential is written into the running machine's memory, as root's.
    """
    with Orchestrator(e2b_stack, account, "one", reach=["pypi.org"]) as orchestrator:
        (ident,) = orchestrator.said()["running"]
        machine = account.machines[ident]
        sandbox = ours(e2b_stack, machine)
        assert machine.asked["envVars"] == {
            "LANG": "C",
            "ANTHROPIC_BASE_URL": e2b_stack.proxy_url,
            "ANTHROPIC_IDENTITY_TOKEN_FILE": LAUNCH_FILE,
            "ANTHROPIC_FEDERATION_RULE_ID": "fdrl_daypass_launch",
            "ANTHROPIC_ORGANIZATION_ID": "acme",
        }
        assert machine.asked["metadata"] == {"task": "42", "daypass_sandbox": sandbox["id"]}
        assert machine.asked["network"] == {
            "allowOut": ["127.0.0.1", "pypi.org"],
            "denyOut": ["0.0.0.0/0"],
        }
        assert (machine.asked["templateID"], machine.asked["timeout"]) == ("agent", 600)
        credential = machine.files[LAUNCH_FILE]
        assert credential.count(".") == 2
        assert credential not in json.dumps(machine.asked)
        assert machine.owners == {LAUNCH_FILE: "root"}
        orchestrator.go_on()


def test_the_end_of_the_block_ends_both(e2b_stack: Stack, account: E2B) -> None:
    """E2B's sandbox is killed and ours is over; the webhook that follows finds nothing to do."""
    with Orchestrator(e2b_stack, account, "one") as orchestrator:
        (ident,) = orchestrator.said()["running"]
        out, err = orchestrator.go_on()
        assert (out, err) == ("", "")
    machine = account.machines[ident]
    assert not machine.alive
    assert ours(e2b_stack, machine)["state"] == "ended"


def test_a_sandbox_that_e2b_refuses_leaves_none_behind(e2b_stack: Stack, account: E2B) -> None:
    """The error is E2B's own; ours was idle, and is ended."""
    account.refuse = 400
    before = len(list(living(e2b_stack)))
    with Orchestrator(e2b_stack, account, "one") as orchestrator:
        assert orchestrator.said() == {"e2b": "SandboxException"}
        orchestrator.go_on()
    assert len(list(living(e2b_stack))) == before


def test_many_at_once_end_when_one_fails(e2b_stack: Stack, account: E2B) -> None:
    """With asyncio: a task that fails and tasks that are cancelled leave nothing running."""
    with Orchestrator(e2b_stack, account, "many") as orchestrator:
        idents = orchestrator.said()["running"]
        assert len(set(idents)) == 3
        assert all(ours(e2b_stack, account.machines[each])["state"] == "active" for each in idents)
        out, err = orchestrator.go_on()
    assert json.loads(out) == {"failed": ["this task failed"]}, err
    for each in idents:
        assert not account.machines[each].alive
        assert ours(e2b_stack, account.machines[each])["state"] == "ended"


def living(stack: Stack) -> list[dict[str, Any]]:
    """Sandboxes that are not over."""
    return stack.rows("SELECT id FROM sandbox WHERE state IN ('idle', 'active')")
