"""What is revoked stops: tokens, renewals, sandboxes, tenants, and calls that are running."""

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.servers.client import RawStream
from tests.servers.stack import Answer, Stack, call
from tests.servers.stub import Script, Send, Stall, StubUpstream, chunk
from tests.servers.wire import message_start, sse_answer, text_delta
from tests.support import eventually

MODEL = "claude-sonnet-4-5"
BODY: dict[str, object] = {
    "model": MODEL,
    "max_tokens": 64,
    "stream": True,
    "messages": [{"role": "user", "content": "x"}],
}
RUNNING: Script = [
    Send(sse_answer()),
    chunk(message_start(MODEL, {"input_tokens": 25, "output_tokens": 1})),
    chunk(text_delta("hello")),
    Stall(),
]


BUSY = 5
"""How many times slower this machine may be while other tests run."""


def revoke(stack: Stack, scope: str, ident: str | None = None, **fields: object) -> None:
    """Revoke as admin; fails when the broker did not store it."""
    body = {"scope": scope, "reason": "test"} | fields | ({"ident": ident} if ident else {})
    answer = stack.admin("POST", "/v1/revocations", body)
    assert answer.status == 201, answer.body


def token_id(stack: Stack, token: str) -> str:
    """The jti of a token, read without verifying (the test made it)."""
    import base64

    part = token.split(".")[1]
    return str(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["jti"])


@pytest.mark.parametrize("scope", ["sandbox", "tenant", "global", "ended"])
def test_a_revocation_cuts_a_running_stream(
    make_stack: Callable[..., Stack], upstream: StubUpstream, scope: str
) -> None:
    """Within a second the stream gets an SSE error, the upstream is closed, the row is settled."""
    stack = make_stack()
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    upstream.next(RUNNING)
    stream = RawStream.post(stack.proxy_url, token, BODY)
    stream.until(b"hello")
    if scope == "ended":
        assert stack.admin("DELETE", f"/v1/sandboxes/{sandbox['id']}").status in (200, 204)
    else:
        ident = {"sandbox": sandbox["id"], "tenant": "acme", "global": None}[scope]
        revoke(stack, scope, ident)
    started = time.monotonic()
    stream.rest()
    took = time.monotonic() - started
    assert b"event: error" in stream.body
    assert took < 1.0 * BUSY
    assert upstream.requests[0].peer_gone.wait(10)
    answer = stack.message(token)
    assert answer.status == 401
    assert answer.headers["x-should-retry"] == "false"
    renewed = stack.exchange(sandbox)
    assert (renewed.status, renewed.json()["error"]) == (400, "invalid_grant")
    assert renewed.json()["error_description"]
    (row,) = stack.settled(sandbox)
    assert row["outcome"] == "cut_revoked"
    assert row["cost_nano"] > 0


def test_a_non_streaming_call_is_cut_too(
    make_stack: Callable[..., Stack], upstream: StubUpstream
) -> None:
    """A call that waits for its whole answer ends with 401 when its sandbox is revoked."""
    stack = make_stack()
    sandbox = stack.sandbox()
    upstream.next([Stall()])
    stream = RawStream.post(stack.proxy_url, stack.access_token(sandbox), BODY | {"stream": False})
    upstream.wait_for(1)
    revoke(stack, "sandbox", sandbox["id"])
    stream.rest()
    assert stream.status == 401
    assert upstream.requests[0].peer_gone.wait(10)


def test_a_lone_token_ends_like_expiry(stack: Stack) -> None:
    """A revoked jti is a 401 like that of an expired token; the sandbox goes on with a new one."""
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    assert stack.message(token).status == 200
    revoke(stack, "jti", token_id(stack, token))
    eventually(lambda: stack.message(token).status == 401)
    assert "The access token expired" in stack.message(token).headers["www-authenticate"]

    def renewed() -> str | None:
        fresh = stack.access_token(sandbox)
        return fresh if token_id(stack, fresh) != token_id(stack, token) else None

    assert stack.message(eventually(renewed, timeout=10) or "").status == 200


def test_issued_before_spares_what_came_later(stack: Stack) -> None:
    """`issued before` kills what was issued at or before it, and a new sandbox works."""
    old = stack.sandbox(tenant="globex")
    old_token = stack.access_token(old)
    assert stack.message(old_token).status == 200
    revoke(stack, "tenant", "globex", not_before="now")
    eventually(lambda: stack.message(old_token).status == 401)
    new = stack.sandbox(tenant="globex")
    assert stack.message(stack.access_token(new)).status == 200
    assert stack.exchange(old).status == 400
    other = stack.sandbox(tenant="acme")
    assert stack.message(stack.access_token(other)).status == 200


def test_b22_revocations_survive_a_restart(make_stack: Callable[..., Stack]) -> None:
    """B22: after a restart of broker and proxy the revoked sandbox is still revoked."""
    stack = make_stack()
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    revoke(stack, "sandbox", sandbox["id"])
    stack.stop()
    stack.start_broker()
    stack.start_proxy()
    assert stack.message(token).status == 401
    assert stack.exchange(sandbox).status == 400


def test_restore_brings_a_sandbox_back(stack: Stack) -> None:
    """After `restore` and a fresh launch credential the sandbox works again."""
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    revoke(stack, "sandbox", sandbox["id"])
    eventually(lambda: stack.message(token).status == 401)
    assert stack.admin("POST", f"/v1/sandboxes/{sandbox['id']}/restore").status == 200
    answer = stack.admin("POST", f"/v1/sandboxes/{sandbox['id']}/launch")
    assert answer.status in (200, 201), answer.body
    again: dict[str, Any] = sandbox | {"launch": answer.json()["launch"]}
    assert stack.message(stack.access_token(again)).status == 200
    assert stack.message(token).status == 401


def test_unknown_scope_is_refused_with_its_name(stack: Stack) -> None:
    """A revocation that cannot be understood is refused loudly, never stored half."""
    answer = stack.admin("POST", "/v1/revocations", {"scope": "everything"})
    assert answer.status == 400
    assert answer.json()["field"] == "scope"


def test_self_tells_what_is_allowed_and_left(stack: Stack) -> None:
    """GET /v1/self answers scope, expiry and what is left of the budget."""
    sandbox = stack.sandbox(budget_usd="2.50")
    token = stack.access_token(sandbox)
    assert stack.message(token).status == 200
    answer = call(stack.proxy_url, "GET", "/v1/self", headers={"authorization": f"Bearer {token}"})
    assert answer.status == 200
    found = answer.json()
    assert found["sandbox"] == sandbox["id"]
    assert found["budget"]["budget_usd"] == "2.50"
    assert found["budget"]["spent_usd"] == "0.0003"


def form(stack: Stack, path: str, token: str, credential: str | None = None) -> Answer:
    """Send a token to the admin listener, as RFC 7009 and RFC 7662 have it."""
    headers = {
        "authorization": f"Bearer {credential or stack.admin_credential}",
        "content-type": "application/x-www-form-urlencoded",
    }
    return call(stack.admin_url, "POST", path, urlencode({"token": token}).encode(), headers)


def test_a_token_is_revoked_by_itself(stack: Stack) -> None:
    """RFC 7009 and RFC 7662 on a running daypass: live, revoked by its orchestrator, refused; no
    token stands in a log."""
    orchestrator = stack.new_credential("orchestrator", "--orchestrator", "acme-ci")
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    assert form(stack, "/v1/oauth/introspect", token, orchestrator).json()["active"] is True
    assert stack.message(token).status == 200
    ended = form(stack, "/v1/oauth/revoke", token, orchestrator).json()
    assert (ended["scope"], ended["ident"]) == ("jti", token_id(stack, token))
    eventually(lambda: stack.message(token).status == 401)
    assert form(stack, "/v1/oauth/introspect", token).json() == {"active": False}
    for name in ("broker", "proxy"):
        assert token.rpartition(".")[2] not in stack.log(name)


def buy(stack: Stack, token: str) -> str:
    """Buy a narrower token with an access token."""
    body = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": token,
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
    }
    headers = {"content-type": "application/x-www-form-urlencoded"}
    sent = urlencode(body).encode()
    answer = call(stack.proxy_url, "POST", "/v1/oauth/token", sent, headers)
    assert answer.status == 200, answer.body
    return str(answer.json()["access_token"])


@pytest.mark.parametrize("end", ["grant", "jti"])
def test_what_was_bought_ends_with_what_it_was_bought_with(
    stack: Stack, upstream: StubUpstream, end: str
) -> None:
    """Revoking a node ends its subtree at the proxy, a stream that runs there too, and no more."""
    sandbox = stack.sandbox(budget_usd="5.00")
    root = stack.access_token(sandbox)
    child = buy(stack, root)
    grandchild, sibling = buy(stack, child), buy(stack, root)
    upstream.next(RUNNING)
    stream = RawStream.post(stack.proxy_url, grandchild, BODY)
    stream.until(b"hello")
    if end == "grant":
        (row,) = stack.rows("SELECT grant_id FROM token WHERE jti = ?", token_id(stack, child))
        revoke(stack, "grant", row["grant_id"])
    else:
        revoke(stack, "jti", token_id(stack, child))
    stream.rest()
    assert b"event: error" in stream.body
    eventually(lambda: stack.message(grandchild).status == 401)
    if end == "grant":
        assert stack.message(child).headers["x-should-retry"] == "false"
    assert stack.message(child).status == 401
    for alive in (root, sibling):
        assert stack.message(alive).status == 200
