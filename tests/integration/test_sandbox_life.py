"""The life of a sandbox on a running daypass: given out, bound to a place, ended from outside."""

import base64
import hashlib
import http.client
import json
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from daypass.broker import Broker
from tests.servers.stack import Answer, Stack, call
from tests.support import eventually

HERE, THERE = "198.51.100.7", "203.0.113.9"
SECRET = "an-e2b-secret-of-some-length"


def ask(stack: Stack, method: str, path: str, body: object, peer: str, token: str = "") -> Answer:
    """One request that comes through a trusted proxy, from this address."""
    headers = {"content-type": "application/json", "x-forwarded-for": f"6.6.6.6, {peer}"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    return call(stack.proxy_url, method, path, data, headers)


def exchange(stack: Stack, sandbox: dict[str, Any], peer: str) -> Answer:
    """Ask for a token from this address."""
    body = {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": sandbox["launch"]["credential"],
    }
    return ask(stack, "POST", "/v1/oauth/token", body, peer)


def through_socket(stack: Stack, token: str) -> int:
    """The status of a call through the proxy's Unix socket."""

    class Connection(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(str(stack.proxy_socket))

    with closing(Connection("localhost")) as connection:
        headers = {"authorization": f"Bearer {token}", "x-forwarded-for": HERE}
        connection.request("GET", "/v1/self", headers=headers)
        return connection.getresponse().status


def change(stack: Stack, statement: str, *values: object) -> None:
    """Write to the database directly."""
    path = stack.database_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, timeout=10)) as store, store:
        store.execute(statement, values)


@pytest.fixture(scope="module")
def webhook_secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that holds a vendor's secret."""
    file = tmp_path_factory.mktemp("vendor") / "e2b"
    file.write_text(SECRET)
    return file


def test_a_bound_sandbox_works_from_one_place_alone(make_stack: Callable[..., Stack]) -> None:
    """Bound by its first exchange: the credential and the token are of no use elsewhere, the same
    connection, the socket and the cached token included; the owner never notices.
    """
    stack = make_stack(proxy_settings={"DAYPASS_TRUSTED_PROXIES": "127.0.0.1"})
    sandbox = stack.sandbox(source="first")
    token = exchange(stack, sandbox, HERE).json()["access_token"]
    shown = stack.admin("GET", f"/v1/sandboxes/{sandbox['id']}").json()
    assert shown["source_bound"] == f"{HERE}/32"
    for _ in range(2):
        assert ask(stack, "GET", "/v1/self", None, HERE, token).status == 200
        stolen = ask(stack, "GET", "/v1/self", None, THERE, token)
        assert (stolen.status, stolen.headers["x-should-retry"]) == (401, "false")
        assert "may not be used from this address" in stolen.body.decode()
    assert through_socket(stack, token) == 401
    refused = exchange(stack, sandbox, THERE)
    assert (refused.status, refused.json()["error"]) == (400, "invalid_grant")
    assert "bound to another network" in refused.json()["error_description"]
    assert exchange(stack, sandbox, HERE).status == 200
    eventually(lambda: stack.incidents(sandbox["id"]).get("foreign_source") == 4)


def test_clients_that_share_a_connection_are_told_apart(make_stack: Callable[..., Stack]) -> None:
    """A load balancer sends the requests of many through one connection, each with its own header;
    the same head again is still the same client.
    """
    stack = make_stack(proxy_settings={"DAYPASS_TRUSTED_PROXIES": "127.0.0.1"})
    token = exchange(stack, stack.sandbox(source="first"), HERE).json()["access_token"]
    found = []
    with closing(http.client.HTTPConnection("127.0.0.1", stack.proxy_port)) as shared:
        for peer in (HERE, HERE, THERE, THERE, HERE, HERE):
            headers = {"authorization": f"Bearer {token}", "x-forwarded-for": peer}
            shared.request("GET", "/v1/self", headers=headers)
            answer = shared.getresponse()
            answer.read()
            found.append(answer.status)
    assert found == [200, 200, 401, 401, 200, 200]


def test_a_header_alone_moves_nobody(stack: Stack) -> None:
    """Without the setting an address in a header is a text: all come from where they connect."""
    sandbox = stack.sandbox(source=[f"{HERE}/32"])
    assert exchange(stack, sandbox, HERE).status == 400
    sandbox = stack.sandbox(source=["127.0.0.0/8"])
    token = exchange(stack, sandbox, HERE).json()["access_token"]
    assert ask(stack, "GET", "/v1/self", None, THERE, token).status == 200
    assert through_socket(stack, token) == 401


def test_of_a_warm_pool_only_what_is_given_out_works(stack: Stack) -> None:
    """A hundred idle, ten activated: ten have a credential, and of the others there is none."""
    broker = Broker(stack.admin_url, stack.admin_credential)
    idle = broker.create_many(100, tenant="acme", idle=True)
    assert not any(sandbox.launch or sandbox.files for sandbox in idle)
    given = [broker.activate(one.id, labels={"task": str(n)}) for n, one in enumerate(idle[:10])]
    assert all(stack.message(stack.access_token(one.raw)).status == 200 for one in given)
    found = list(broker.list(state="idle"))
    assert {row["id"] for row in found} == {one.id for one in idle[10:]}
    issued = stack.rows("SELECT DISTINCT sandbox FROM token")
    assert not {row["sandbox"] for row in issued} & {row["id"] for row in found}
    # Whoever has read the row of an idle one still cannot make a credential of it.
    (row,) = stack.rows("SELECT * FROM sandbox WHERE id = ?", idle[10].id)
    assert (row["state"], row["launch_used_at"], row["activated_at"]) == ("idle", None, None)


@pytest.mark.parametrize(
    "lapse",
    [
        "UPDATE sandbox SET heartbeat_at = heartbeat_at - 60000 WHERE id = ?",
        "UPDATE sandbox SET deadline = deadline - 14401 WHERE id = ?",
    ],
    ids=["heartbeat", "deadline"],
)
def test_the_reaper_ends_what_is_over(stack: Stack, lapse: str) -> None:
    """A running call is cut, the token refused, nothing renewed, within seconds."""
    sandbox = stack.sandbox(heartbeat_seconds=60, lifetime_seconds=14400)
    token = stack.access_token(sandbox)
    assert stack.message(token).status == 200
    path = f"/v1/sandboxes/{sandbox['id']}"
    assert stack.admin("POST", f"{path}/heartbeat").status == 200
    change(stack, lapse, sandbox["id"])
    eventually(lambda: stack.admin("GET", path).json()["state"] == "ended", timeout=15)
    eventually(lambda: stack.message(token).status == 401)
    refused = stack.exchange(sandbox)
    assert (refused.status, refused.json()["error"]) == (400, "invalid_grant")
    assert stack.admin("POST", f"{path}/heartbeat").status == 409


def test_a_vendor_that_kills_a_sandbox_ends_it_here(
    make_stack: Callable[..., Stack], webhook_secret: Path
) -> None:
    """E2B says killed: within a moment no call and no exchange works, also without a credential of
    ours in the hands of the vendor.
    """
    settings = {"DAYPASS_WEBHOOK_SECRETS": f"e2b={webhook_secret}"}
    stack = make_stack(broker_settings=settings)
    sandbox = stack.sandbox(vendor="e2b", vendor_id="i4x")
    token = stack.access_token(sandbox)
    assert stack.message(token).status == 200
    said = {
        "id": "evt-1",
        "type": "sandbox.lifecycle.killed",
        "sandboxId": "i4x",
        "timestamp": datetime.now(UTC).isoformat(),
    }
    body = json.dumps(said).encode()
    digest = base64.b64encode(hashlib.sha256(SECRET.encode() + body).digest()).rstrip(b"=")
    headers = {"content-type": "application/json", "e2b-signature": digest.decode()}
    answer = call(stack.admin_url, "POST", "/v1/webhooks/e2b", body, headers)
    assert (answer.status, answer.json()) == (200, {"status": "ended"})
    eventually(lambda: stack.message(token).status == 401)
    assert stack.exchange(sandbox).status == 400
    assert SECRET not in stack.log("broker")


def test_the_sdk_keeps_a_sandbox_alive(stack: Stack) -> None:
    """Inside `with Broker().sandbox(heartbeat_seconds=…)` the heartbeat is the SDK's matter."""
    broker = Broker(stack.admin_url, stack.admin_credential)
    with broker.sandbox(tenant="acme", heartbeat_seconds=10) as sandbox:
        first = broker.get(sandbox.id)["heartbeat_at"]
        moved = eventually(lambda: broker.get(sandbox.id)["heartbeat_at"] > first, timeout=10)
        assert moved
    assert broker.get(sandbox.id)["state"] == "ended"
