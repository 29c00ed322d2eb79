"""A whole daypass that starts without its Vault: not ready, in words, and by itself ready later."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daypass_core.clock import StoreClock
from daypass_proxy.key_check import check, show
from daypass_proxy.settings import load
from tests.canary import CANARY
from tests.servers.federation import ORGANIZATION, RULE
from tests.servers.stack import Stack, call
from tests.servers.stub import StubUpstream
from tests.servers.vault import DurableBao, approle, shipped
from tests.support import eventually

pytestmark = pytest.mark.openbao

KEY = f"sk-ant-{CANARY}-of-vault"


@pytest.fixture(scope="module")
def bao(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DurableBao]:
    """One server on disk, with the policy that the repository ships, and an audit log."""
    with DurableBao(tmp_path_factory.mktemp("openbao")) as server:
        server.put("secret/llm/acme", api_key=KEY)
        server.policy("proxy", shipped("proxy"))
        header = "sys/config/auditing/request-headers/X-Daypass-Request-Id"
        server.request("POST", header, {"hmac": False})
        yield server


@pytest.fixture(scope="module")
def stack(
    bao: DurableBao, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """A stack whose keys are in Vault by tenant, with AppRole; its proxy starts before Vault."""
    login = approle(bao, tmp_path_factory.mktemp("login"), "proxy", token_ttl="1h",
                    token_no_default_policy=True)  # fmt: skip
    with StubUpstream([KEY]) as stub:
        made = Stack(
            folder,
            stub.url,
            "*=vault://secret/llm/{tenant}#api_key",
            proxy_settings={
                "DAYPASS_VAULT_ADDR": bao.address,
                "DAYPASS_VAULT_ROLE_ID": login.role_id or "",
                "DAYPASS_VAULT_SECRET_ID_FILE": str(login.secret_id_file),
            },
        )
        with made:
            yield made


def events(stack: Stack, name: str) -> list[dict[str, Any]]:
    """The proxy's log lines of one event."""
    lines = [json.loads(line) for line in stack.log("proxy").splitlines() if line.endswith("}")]
    return [line for line in lines if line["event"] == name]


def readiness(stack: Stack) -> tuple[int, Any]:
    """Status and body of /readyz; 0 while nobody listens."""
    try:
        answer = call(stack.proxy_url, "GET", "/readyz")
    except OSError:
        return 0, {}
    return answer.status, answer.json()


def test_the_call_s_id_is_in_the_log_of_vault(bao: DurableBao, stack: Stack) -> None:
    """A tenant's first call waits for its key: Vault's audit log and ours name the call."""
    answer = stack.message(stack.access_token(stack.sandbox()))
    assert answer.status == 200
    reads = [line["request"].get("headers", {}).get("x-daypass-request-id")
             for line in bao.audited()
             if line["type"] == "request"
             and line["request"]["path"] == "secret/data/llm/acme"
             and line["request"]["operation"] == "read"]  # fmt: skip
    closed = eventually(lambda: events(stack, "call_closed"))[0]["request_id"]
    assert reads[0] == [closed]
    (read,) = [line for line in events(stack, "vault_read") if line.get("request_id") == closed]
    assert (read["reference"], read["version"]) == ("vault://secret/llm/acme#api_key", 1)
    assert read["ms"] > 0
    assert CANARY not in stack.log("proxy")


def test_vault_goes_away_and_comes_back(bao: DurableBao, stack: Stack) -> None:
    """B12: with Vault gone calls go on with the key in memory, and the proxy stays ready."""
    token = stack.access_token(stack.sandbox())
    assert stack.message(token).status == 200
    bao.kill()
    try:
        for _ in range(5):
            assert stack.message(token).status == 200
        assert readiness(stack)[0] == 200
    finally:
        bao.restart()


def test_a_start_without_vault(bao: DurableBao, stack: Stack) -> None:
    """B12: alive, not ready, in a sentence; calls are 503; later it is ready without a restart."""
    token = stack.access_token(stack.sandbox())
    stack.stop_process("proxy")
    bao.kill()
    try:
        stack.spawn_proxy()
        eventually(lambda: readiness(stack)[0] == 503, timeout=30)
        status, body = readiness(stack)
        sentence = "provider keys: not one can be read from where it lives"
        assert (status, body["missing"]) == (503, [sentence])
        answer = stack.message(token)
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert "the key of acme at anthropic is not available right now" in answer.body.decode()
    finally:
        bao.restart()
    eventually(lambda: readiness(stack)[0] == 200, timeout=30)
    # The key of one tenant, asked for in vain before, is tried again within ten seconds.
    eventually(lambda: stack.message(token).status == 200, timeout=30)
    assert "Traceback" not in stack.log("proxy")
    assert events(stack, "vault_not_reached")


def checked(stack: Stack, tenant: str | None = None, **settings: str) -> tuple[int, str]:
    """What `python -m daypass_proxy check` prints about keys, and its exit code."""
    lines = list[str]()
    found = check(load(stack.proxy_environment | settings), StoreClock(), tenant)
    code = show(found, lines.append)
    said = "".join(lines)
    assert CANARY not in said
    return code, said


def test_check(bao: DurableBao, stack: Stack, tmp_path: Path) -> None:
    """`check` says whether the login works and each key can be read, and shows no part of one."""
    done = subprocess.run(
        [sys.executable, "-m", "daypass_proxy", "check", "--tenant", "acme"],
        env=stack.proxy_environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert CANARY not in done.stdout + done.stderr
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    login = f"ok      vault {bao.address}, AppRole login at auth/approle: the token ends in 3"
    assert login in done.stdout
    assert "ok      vault://secret/llm/acme#api_key (anthropic, *)\n" in done.stdout
    code, said = checked(stack)
    assert code == 0
    assert "#api_key (anthropic, *): not read: name a tenant with --tenant" in said
    code, said = checked(stack, "nobody")
    assert code == 1
    assert "PROBLEM vault://secret/llm/nobody#api_key (anthropic, *): VaultMissing" in said


def test_check_of_what_is_wrong(stack: Stack, tmp_path: Path) -> None:
    """A login that is refused and a file that is absent are problems, each in a line of its own."""
    identity = tmp_path / "identity.jwt"
    identity.write_text("a.b.c")
    keys = (
        f"acme=federation://{identity}?rule={RULE}&organization={ORGANIZATION},"
        f"globex=federation:///absent?rule={RULE}&organization={ORGANIZATION}"
    )
    code, said = checked(stack, DAYPASS_ANTHROPIC_KEYS=keys, DAYPASS_VAULT_ROLE_ID="unknown")
    assert code == 1
    assert "AppRole login at auth/approle was refused; check mount, role and secret_id" in said
    assert "(anthropic, acme): the identity token can be read; it was not exchanged" in said
    assert "(anthropic, globex): SecretUnreadable: cannot read /absent" in said
