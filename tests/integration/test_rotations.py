"""Keys change under load and brokers go away, and no call is lost; with a real OpenBao."""

import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo.services.openbao import OpenBao
from tests.canary import CANARY
from tests.servers.stack import Answer, Stack
from tests.servers.steady import Steady, kid_of
from tests.servers.stub import StubUpstream
from tests.servers.transit import enable, token
from tests.support import eventually

OLD, NEW = f"sk-ant-{CANARY}-old", f"sk-ant-{CANARY}-new"


@pytest.fixture(scope="module")
def bao(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBao]:
    """One server with a transit engine."""
    with OpenBao.start(tmp_path_factory.mktemp("openbao")) as server:
        enable(server)
        yield server


@pytest.fixture
def upstream_of_vault() -> Iterator[StubUpstream]:
    """A provider that knows the key in the vault."""
    with StubUpstream([OLD]) as server:
        yield server


@pytest.fixture
def vault_stack(bao: OpenBao, upstream_of_vault: StubUpstream, tmp_path: Path) -> Iterator[Stack]:
    """A stack that signs in the vault and reads provider keys from it."""
    bao.put("secret/llm/acme", api_key=OLD)

    def login(name: str, text: str) -> dict[str, str]:
        file = tmp_path / name
        file.write_text(text)
        file.chmod(0o600)
        return {"DAYPASS_VAULT_ADDR": bao.address, "DAYPASS_VAULT_TOKEN_FILE": str(file)}

    with Stack(
        tmp_path / "stack",
        upstream_of_vault.url,
        "*=vault://secret/llm/{tenant}#api_key",
        proxy_settings=login("proxy.token", bao.token_for(["secret/llm/*"])),
        broker_settings={
            **login("broker.token", token(bao)),
            "DAYPASS_SIGNING": "transit",
            "DAYPASS_TRANSIT_KEY": f"daypass-{secrets.token_hex(4)}",
        },
    ) as made:
        yield made


def active(stack: Stack, purpose: str = "access") -> str:
    """The kid that signs for a purpose."""
    keys = stack.admin("GET", f"/v1/keys?purpose={purpose}").json()["keys"]
    (kid,) = [key["kid"] for key in keys if key["state"] == "active"]
    return str(kid)


def rotate(stack: Stack, purpose: str) -> str:
    """Rotate at once and return the next key's kid."""
    answer = stack.admin("POST", "/v1/keys/rotate", {"purpose": purpose, "now": True})
    assert answer.status == 200, answer.body
    return str(answer.json()["keys"][0]["kid"])


def works(stack: Stack) -> str:
    """Register a sandbox, make a call for it, and return the kid of its token."""
    made = stack.access_token(stack.sandbox())
    assert stack.message(made).status == 200
    return kid_of(made)


@pytest.mark.openbao
def test_rotations_under_load_cost_no_call(
    bao: OpenBao, vault_stack: Stack, upstream_of_vault: StubUpstream
) -> None:
    """B24: with 100 calls a second every signing key and the provider key change; none fails."""
    with Steady(vault_stack) as steady:
        steady.started()
        kids = {each: rotate(vault_stack, each) for each in ("access", "launch", "renewal")}
        eventually(lambda: steady.all_use(kids["access"]), timeout=40)
        assert {each: active(vault_stack, each) for each in kids} == kids
        assert works(vault_stack) == kids["access"]
        bao.put("secret/llm/acme", api_key=NEW)
        upstream_of_vault.keys.add(NEW)
        upstream_of_vault.keys.discard(OLD)
        seen = len(upstream_of_vault.requests)

        def new_key_calls() -> int:
            requests = upstream_of_vault.requests[seen:]
            return sum(NEW in request.header("x-api-key") for request in requests)

        eventually(lambda: new_key_calls() > 100, timeout=40)
    assert steady.failed == []
    assert steady.calls > 300
    assert not (vault_stack.folder / "keys").exists()


@pytest.mark.openbao
def test_a_sealed_vault_costs_renewals_and_no_call(bao: OpenBao, vault_stack: Stack) -> None:
    """Sealed, exchanges are 503 with `retry-after` and nothing is spent; tokens held go on."""
    once = vault_stack.sandbox()
    with Steady(vault_stack, token_calls=None) as steady:
        steady.started()
        bao.seal()
        try:
            before, refused = steady.calls, list[Answer]()
            asking = threading.Thread(target=lambda: refused.append(vault_stack.exchange(once)))
            asking.start()
            made = vault_stack.admin("POST", "/v1/sandboxes", {"tenant": "acme"})
            assert (made.status, made.headers["retry-after"]) == (503, "5")
            asking.join(30)
            assert (refused[0].status, refused[0].headers["retry-after"]) == (503, "5")
            eventually(lambda: steady.calls > before, timeout=30)
        finally:
            bao.unseal()
        eventually(lambda: vault_stack.exchange(once).status == 200, timeout=30)
    assert steady.failed == []
    assert vault_stack.rows("SELECT * FROM token WHERE sandbox = ?", once["id"])


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_a_broker_that_is_away_costs_no_call(make_stack: Callable[..., Stack], how: str) -> None:
    """Whoever holds a token calls on while the broker hangs or is gone, and renews afterwards."""
    stack = make_stack()
    with Steady(stack, clients=4, rate=50, token_calls=None) as steady:
        steady.started()
        broker = stack.processes["broker"]
        if how == "frozen":
            broker.send_signal(signal.SIGSTOP)
        else:
            stack.stop_process("broker", signal.SIGKILL)
        try:
            away = steady.calls
            eventually(lambda: steady.calls > away + 100, timeout=30)
        finally:
            if how == "frozen":
                broker.send_signal(signal.SIGCONT)
            else:
                stack.start_broker()
        works(stack)
    assert steady.failed == []


def test_a_killed_key_is_replaced_without_a_restart(make_stack: Callable[..., Stack]) -> None:
    """Its tokens are refused, the next exchange waits for the next key, nobody restarts a thing."""
    stack = make_stack()
    sandbox, old = stack.sandbox(), active(stack)
    held = stack.access_token(sandbox)
    assert stack.message(held).status == 200
    pid = stack.processes["broker"].pid
    assert stack.admin("POST", "/v1/revocations", {"scope": "kid", "ident": old}).status == 201
    eventually(lambda: stack.message(held).status == 401, timeout=20)
    renewed = stack.access_token(sandbox)
    assert kid_of(renewed) == active(stack) != old
    assert stack.message(renewed).status == 200
    assert stack.message(held).headers["x-should-retry"] == "false"
    assert stack.processes["broker"].pid == pid
    assert stack.processes["broker"].poll() is None
