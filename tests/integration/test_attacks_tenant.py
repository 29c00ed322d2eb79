"""Attacks by a tenant: an orchestrator or sandbox of one that reaches for another, or for more."""

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.canary import CANARY
from tests.servers.stack import Answer, Stack, call
from tests.servers.stub import StubUpstream
from tests.support import eventually


@pytest.fixture(scope="module")
def orchestrator(module_stack: Stack) -> str:
    """The credential of an orchestrator of acme, the attacker."""
    return module_stack.new_credential("orchestrator", "--orchestrator", "acme-ci")


@pytest.fixture(scope="module")
def victim(module_stack: Stack) -> dict[str, Any]:
    """A sandbox of globex that has made a call."""
    made = module_stack.sandbox("globex")
    assert module_stack.message(module_stack.access_token(made)).status == 200
    return made


def ids_of(stack: Stack, victim: dict[str, Any]) -> list[str]:
    """Every id that names something of the victim."""
    queries = (
        "SELECT id FROM grant_record WHERE sandbox = ?",
        "SELECT jti AS id FROM token WHERE sandbox = ?",
        "SELECT launch_jti AS id FROM sandbox WHERE id = ?",
        "SELECT id FROM usage WHERE sandbox = ?",
    )
    found = [row["id"] for query in queries for row in stack.rows(query, victim["id"])]
    assert len(found) >= 4
    return [victim["id"], *found]


def test_an_orchestrator_sees_nothing_of_another_tenant(
    stack: Stack, orchestrator: str, victim: dict[str, Any]
) -> None:
    """Every read of an orchestrator is 404 or empty for another tenant, and names nothing of it."""
    ids = ids_of(stack, victim)
    paths = [
        f"/v1/sandboxes/{victim['id']}",
        "/v1/sandboxes?tenant=globex",
        f"/v1/sandboxes?after={victim['id']}",
        "/v1/sandboxes?limit=1000",
        "/v1/usage?tenant=globex",
        "/v1/usage?tenant=globex&tenant=acme",
        "/v1/usage?group_by=tenant",
        "/v1/usage?group_by=sandbox",
        f"/v1/usage?sandbox={victim['id']}",
        *(f"/v1/usage?after={ident}" for ident in ids),
        "/v1/audit?tenant=globex",
        f"/v1/audit?sandbox={victim['id']}",
        "/v1/audit?limit=1000",
        "/v1/revocations?limit=1000",
    ]
    for path in paths:
        answer = stack.admin("GET", path, credential=orchestrator)
        assert answer.status in (200, 400, 404), path
        assert not [ident for ident in ids if ident in answer.body.decode()], path
        # A refusal may repeat the name that was asked for, an answer holds none of it.
        assert answer.status != 200 or b"globex" not in answer.body, path


def test_an_orchestrator_touches_nothing_of_another_tenant(
    stack: Stack, orchestrator: str, victim: dict[str, Any]
) -> None:
    """Ending, revoking, renewing and registering for another tenant are 404 and do nothing."""
    before = stack.rows("SELECT * FROM sandbox WHERE tenant = 'globex'")
    revocations = stack.rows("SELECT count(*) AS n FROM revocation")
    one = f"/v1/sandboxes/{victim['id']}"
    tries: list[tuple[str, str, object]] = [
        ("DELETE", one, None),
        ("POST", f"{one}/launch", None),
        ("POST", "/v1/sandboxes", {"tenant": "globex"}),
        ("POST", "/v1/revocations", {"scope": "tenant", "ident": "globex"}),
    ]
    tries += [
        ("POST", "/v1/revocations", {"scope": scope, "ident": ident})
        for ident in ids_of(stack, victim)
        for scope in ("sandbox", "grant", "jti")
    ]
    for method, path, body in tries:
        answer = stack.admin(method, path, body, credential=orchestrator)
        assert answer.status == 404, (path, body)
    assert stack.rows("SELECT * FROM sandbox WHERE tenant = 'globex'") == before
    assert stack.rows("SELECT count(*) AS n FROM revocation") == revocations


def test_what_is_foreign_looks_like_what_is_not_there(stack: Stack, orchestrator: str) -> None:
    """Another tenant's sandbox and one that never was get the same words."""
    victim = stack.sandbox("globex")["id"]
    nobody = "sbx_" + "a" * 26
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/launch")):
        answers = {
            stack.admin(method, f"/v1/sandboxes/{ident}{path}", credential=orchestrator).body
            for ident in (victim, nobody)
        }
        assert len(answers) == 1


@pytest.mark.parametrize(
    "ident", ["%00", "%ff", "a" * 3000, "..%2fpolicy", "%2e%2e", "'%20OR%201=1--", "%0d%0a", "*"]
)
def test_odd_ids_are_not_found(stack: Stack, orchestrator: str, ident: str) -> None:
    """An id that no store can hold, a path or SQL in place of one: all of it is 404."""
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/launch")):
        answer = stack.admin(method, f"/v1/sandboxes/{ident}{path}", credential=orchestrator)
        assert answer.status == 404


ADMIN_ONLY: list[tuple[str, str, object]] = [
    ("GET", "/v1/policy", None),
    ("PUT", "/v1/policy", {"tenants": {}}),
    ("GET", "/v1/credentials", None),
    ("POST", "/v1/credentials", {"role": "admin"}),
    ("POST", "/v1/credentials", {"role": "orchestrator", "orchestrator": "globex-ci"}),
    ("DELETE", "/v1/credentials/crd_aaaaaaaaaaaaaaaaaaaaaaaaaa", None),
    ("POST", "/v1/revocations", {"scope": "global"}),
    ("POST", "/v1/revocations", {"scope": "kid", "ident": "x"}),
]


@pytest.mark.parametrize(("method", "path", "body"), ADMIN_ONLY)
def test_row_46_an_orchestrator_is_no_admin(
    stack: Stack, orchestrator: str, method: str, path: str, body: object
) -> None:
    """Row 46: what is for admins is 403 to an orchestrator, and counted."""
    assert stack.admin(method, path, body, credential=orchestrator).status == 403
    subject = f"crd_{orchestrator.split('_')[1]}"
    eventually(lambda: stack.incidents(subject).get("admin_refused:forbidden", 0) > 0)


def test_a_revoked_sandbox_cannot_be_brought_back_by_its_tenant(
    stack: Stack, orchestrator: str
) -> None:
    """Restoring is for admins, and a new launch credential does not undo a revocation."""
    sandbox = stack.sandbox()
    stack.admin("POST", "/v1/revocations", {"scope": "sandbox", "ident": sandbox["id"]})
    one = f"/v1/sandboxes/{sandbox['id']}"
    assert stack.admin("POST", f"{one}/restore", credential=orchestrator).status == 403
    assert stack.admin("POST", f"{one}/launch", credential=orchestrator).status == 409
    assert stack.exchange(sandbox).status == 400


BEYOND: list[dict[str, Any]] = [
    {"state": "active"},
    {"id": "sbx_mine"},
    {"created_by": "system"},
    {"spent_usd": "-100"},
    {"profile": "coding", "profiles": ["coding"]},
    {"profile": "admin"},
    {"budget_usd": "1000.000000001"},
    {"budget_usd": "-1"},
    {"budget_usd": 1e3},
    {"budget_usd": True},
    {"lifetime_seconds": 86401},
    {"lifetime_seconds": -1},
    {"token_ttl_seconds": 601},
    {"token_ttl_seconds": 1},
    {"launch": "forever"},
    {"count": 101},
    {"count": 0},
    {"labels": {"x" * 64: "y"}},
]
DETAIL = {
    "type": "llm_inference",
    "provider": "anthropic",
    "endpoints": ["messages"],
    "models": ["claude-*"],
}
WIDER: list[dict[str, Any]] = [
    {"models": ["*"]},
    {"models": ["claude*"]},
    {"models": ["claude-*", "gpt-4"]},
    {"features": ["web_search"]},
    {"allowed_domains": ["example.com"]},
    {"endpoints": ["messages", "files"]},
    {"provider": "openai"},
    {"source": "any"},
]


@pytest.mark.parametrize(
    "body", [*BEYOND, *({"authorization_details": [DETAIL | change]} for change in WIDER)]
)
def test_row_46_a_sandbox_request_cannot_take_more_than_its_profile(
    stack: Stack, orchestrator: str, body: dict[str, Any]
) -> None:
    """Row 46: unknown fields, and more than the profile gives, are refused naming the field."""
    count = stack.rows("SELECT count(*) AS n FROM sandbox")
    answer = stack.admin("POST", "/v1/sandboxes", body, credential=orchestrator)
    assert answer.status in (400, 403)
    assert answer.json()["field"]
    assert stack.rows("SELECT count(*) AS n FROM sandbox") == count


def test_idempotency_keys_belong_to_one_credential(stack: Stack, orchestrator: str) -> None:
    """The same key of another tenant's orchestrator makes its own sandbox and shows no other."""
    other = stack.new_credential("orchestrator", "--orchestrator", "globex-ci")
    key = {"idempotency_key": "the-same-key"}
    mine = stack.admin("POST", "/v1/sandboxes", {}, orchestrator, **key).json()
    theirs = stack.admin("POST", "/v1/sandboxes", {}, other, **key).json()
    assert (mine["tenant"], theirs["tenant"]) == ("acme", "globex")
    again = stack.admin("POST", "/v1/sandboxes", {}, orchestrator, **key)
    assert (again.status, again.json()["id"]) == (201, mine["id"])
    assert stack.admin("POST", "/v1/sandboxes", {"count": 2}, orchestrator, **key).status == 422


def test_one_idempotency_key_at_once_makes_one_sandbox(stack: Stack, orchestrator: str) -> None:
    """Eight requests with one key at the same moment make one sandbox."""

    def create(_: int) -> str:
        answer = stack.admin("POST", "/v1/sandboxes", {}, orchestrator, idempotency_key="at-once")
        return str(answer.json()["id"])

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(create, range(8)))) == 1


def test_rows_42_43_a_wrong_credential_learns_nothing(stack: Stack, orchestrator: str) -> None:
    """Rows 42 and 43: unknown id, wrong secret, other role, other form: one and the same 401."""
    prefix, ident, secret = orchestrator.split("_")
    flipped = secret[:-1] + ("a" if secret[-1] != "a" else "b")
    wrong = [
        f"{prefix}_{ident}_{flipped}",
        f"{prefix}_{ident}_{'a' * 32}",
        f"{prefix}_{'a' * 26}_{secret}",
        f"dpa_{ident}_{secret}",
        f"{prefix}_{ident}_{secret}a",
        f"{prefix}_{ident}_{secret[:-1]}",
        orchestrator.upper(),
        f"{prefix}_{secret}_{ident}",
        stack.access_token(stack.sandbox()),
        stack.sandbox()["launch"]["credential"],
        "-",
    ]
    answers = {said(stack.admin("GET", "/v1/sandboxes", credential=text)) for text in wrong}
    assert len(answers) == 1
    assert next(iter(answers))[0] == 401


def said(answer: Answer) -> tuple[int, bytes, str]:
    """What a refusal tells, without what differs by itself."""
    headers = {k: v for k, v in answer.headers.items() if k not in ("date", "request-id")}
    return answer.status, answer.body, json.dumps(headers, sort_keys=True)


def test_two_credentials_are_nobody(stack: Stack, orchestrator: str) -> None:
    """Of two Authorization headers at the admin listener neither is believed."""
    connection = http.client.HTTPConnection("127.0.0.1", stack.admin_port, timeout=10)
    connection.putrequest("GET", "/v1/sandboxes")
    connection.putheader("authorization", f"Bearer {orchestrator}")
    connection.putheader("authorization", f"Bearer {stack.admin_credential}")
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


def test_each_tenant_calls_with_its_own_key(stack: Stack, upstream: StubUpstream) -> None:
    """The key follows the tenant of the token, whatever the request says about tenants."""
    for tenant, other in (("acme", "globex"), ("globex", "acme")):
        upstream.reset()
        token = stack.access_token(stack.sandbox(tenant))
        headers = {
            "authorization": f"Bearer {token}",
            "content-type": "application/json",
            "anthropic-organization-id": other,
            "anthropic-workspace-id": other,
            "anthropic-user-profile-id": other,
            "x-tenant": other,
        }
        body = {"model": "claude-sonnet-4-5", "max_tokens": 8, "messages": []}
        answer = call(stack.proxy_url, "POST", "/v1/messages", json.dumps(body).encode(), headers)
        assert answer.status == 200
        (seen,) = upstream.requests
        assert seen.header("x-api-key") == [f"sk-ant-{CANARY}-{tenant}"]
        assert other.encode() not in seen.raw


def test_the_admin_listener_is_not_at_the_proxy(stack: Stack) -> None:
    """Row 46: the proxy passes nothing of the broker along but the token endpoint."""
    headers = {"authorization": f"Bearer {stack.admin_credential}"}
    for path in ("/v1/sandboxes", "/v1/policy", "/v1/credentials", "/.well-known/jwks.json"):
        assert call(stack.proxy_url, "GET", path, headers=headers).status == 404
    assert call(stack.proxy_url, "GET", "/v1/self", headers=headers).status == 401
    for path in ("/v1/oauth/token", "/.well-known/jwks.json", "/v1/messages"):
        assert stack.admin("POST", path, {}).status == 404
