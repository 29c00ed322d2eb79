"""Only tokens of our broker open the proxy, and no client credential goes upstream."""

import base64
import json

import pytest

from tests.servers.stack import Answer, Stack, call
from tests.servers.stub import StubUpstream
from tests.support import base64url, eventually, sign, signing_key

BODY = json.dumps(
    {"model": "claude-sonnet-4-5", "max_tokens": 8, "messages": [{"role": "user", "content": "x"}]}
).encode()


def post(stack: Stack, headers: dict[str, str], path: str = "/v1/messages") -> Answer:
    """One call with exactly these headers and a content type."""
    return call(stack.proxy_url, "POST", path, BODY, {"content-type": "application/json"} | headers)


@pytest.fixture
def token(stack: Stack) -> str:
    """An access token of a fresh sandbox."""
    return stack.access_token(stack.sandbox())


def foreign_token(token: str) -> str:
    """A token with the same header and claims, signed by somebody else under our key id."""
    header, payload, _ = (base64.urlsafe_b64decode(part + "==") for part in token.split("."))
    return sign(signing_key("foreign"), payload, header=header)


def unsigned(token: str) -> str:
    """The token with `alg: none` and no signature."""
    header = base64url(b'{"alg":"none","typ":"at+jwt"}')
    return f"{header}.{token.split('.')[1]}."


@pytest.mark.parametrize("kind", ["none", "made-up key", "empty bearer", "other key", "alg none"])
def test_b01_strangers_get_401_and_nothing_goes_up(
    stack: Stack, upstream: StubUpstream, token: str, kind: str
) -> None:
    """B01: without a token of ours the answer is 401 in the provider's shape; 0 requests go up."""
    headers = {
        "none": {},
        "made-up key": {"x-api-key": "fake"},
        "empty bearer": {"authorization": "Bearer "},
        "other key": {"authorization": f"Bearer {foreign_token(token)}"},
        "alg none": {"authorization": f"Bearer {unsigned(token)}"},
    }[kind]
    for method, path in (("POST", "/v1/messages"), ("GET", "/v1/models")):
        body = BODY if method == "POST" else None
        answer = call(
            stack.proxy_url, method, path, body, {"content-type": "application/json"} | headers
        )
        assert answer.status == 401
        assert answer.json()["error"]["type"] == "authentication_error"
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert upstream.requests == []


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "x-goog-api-key", "api-key"])
def test_b04_exactly_one_credential_goes_up(
    stack: Stack, upstream: StubUpstream, token: str, name: str
) -> None:
    """B04: whichever header carries the token, the provider sees its own key and none of ours."""
    value = f"Bearer {token}" if name == "authorization" else token
    extra = {
        "cookie": "a=b",
        "proxy-authorization": "Basic eA==",
        "x-forwarded-for": "203.0.113.9",
        "forwarded": "for=203.0.113.9",
    }
    assert post(stack, {name: value} | extra).status == 200
    (seen,) = upstream.requests
    assert len(seen.header("x-api-key")) == 1
    assert not any(seen.header(h) for h in ("authorization", "api-key", "x-goog-api-key", *extra))
    assert token.encode() not in seen.raw


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer {t}"},
        {"authorization": "bearer {t}"},
        {"AUTHORIZATION": "BEARER {t}"},
        {"x-api-key": "{t}"},
        {"authorization": "Bearer {t}", "x-api-key": "{t}"},
        {"authorization": "Bearer {t}", "x-api-key": "sk-ant-stale-key-of-the-image"},
    ],
)
def test_b38_either_header_is_taken(
    stack: Stack, upstream: StubUpstream, token: str, headers: dict[str, str]
) -> None:
    """B38: the token is accepted in either header; a different second credential is dropped."""
    answer = post(stack, {name: value.format(t=token) for name, value in headers.items()})
    assert answer.status == 200, answer.body
    assert b"sk-ant-stale" not in upstream.requests[0].raw


def test_row_1_two_tokens_or_one_header_twice_are_refused(
    stack: Stack, upstream: StubUpstream, token: str
) -> None:
    """Row 1: a second, different JWT or a repeated credential header is 400, unread."""
    answer = post(stack, {"authorization": f"Bearer {token}", "x-api-key": foreign_token(token)})
    assert answer.status == 400
    assert upstream.requests == []


def test_row_2_foreign_provider_key_is_refused_and_counted(
    stack: Stack, upstream: StubUpstream, token: str
) -> None:
    """Row 2: a client's own provider key alone is 401; beside a token it is dropped and counted."""
    own = "sk-ant-api03-own-key-of-the-client"
    assert post(stack, {"x-api-key": own}).status == 401
    assert upstream.requests == []
    assert post(stack, {"authorization": f"Bearer {token}", "x-api-key": own}).status == 200
    assert own.encode() not in upstream.requests[0].raw
    sandbox = stack.rows("SELECT sandbox FROM usage ORDER BY started_at DESC LIMIT 1")[0]["sandbox"]
    eventually(lambda: any("foreign" in kind for kind in stack.incidents(sandbox)))


def test_row_21_launch_credential_is_no_access_token(stack: Stack, upstream: StubUpstream) -> None:
    """Row 21: the launch credential opens no route of the proxy but the token endpoint."""
    sandbox = stack.sandbox()
    credential = sandbox["launch"]["credential"]
    assert post(stack, {"authorization": f"Bearer {credential}"}).status == 401
    assert upstream.requests == []


def test_row_21_access_token_buys_no_token(stack: Stack) -> None:
    """Row 21: an access token cannot be exchanged for another one."""
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    body = {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": token,
        "organization_id": "acme",
    }
    answer = call(
        stack.proxy_url,
        "POST",
        "/v1/oauth/token",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    assert (answer.status, answer.json()["error"]) == (400, "invalid_grant")


def test_row_42_refusals_say_nothing_about_the_reason(stack: Stack, token: str) -> None:
    """Row 42: strangers get one constant text, whatever was wrong with their token."""
    broken = [token[:-4] + "AAAA", foreign_token(token), unsigned(token), "x.y.z", "fake"]
    texts = {
        post(stack, {"authorization": f"Bearer {t}"}).json()["error"]["message"] for t in broken
    }
    assert len(texts) == 1
