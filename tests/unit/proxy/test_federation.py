"""The exchange of an identity token: what is sent, and what is made of every answer."""

import asyncio
import json

import pytest

from daypass_core.secret import Federation, Secret
from daypass_proxy import federation
from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.federation import Exchanger, with_bearer_beta
from daypass_proxy.key_forms import Unusable
from daypass_proxy.transport import UpstreamBroken, UpstreamUnreachable
from tests.fakes.transport import JSON, FakeAnswer, FakeTransport

WHO = Federation("fdrl_1", "org-1")
ASSERTION = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"
GOOD: dict[str, object] = {"access_token": "sk-ant-oat01-x", "token_type": "Bearer",
                           "expires_in": 600}  # fmt: skip


def answer(document: object, status: int = 200, headers: HeaderPairs = JSON) -> FakeAnswer:
    """An answer of the token endpoint."""
    return FakeAnswer([json.dumps(document).encode()], status=status, headers=headers)


async def test_request() -> None:
    """The exchange goes to the origin of calls, with the grant of RFC 7523 and nothing of ours."""
    transport = FakeTransport(answer(GOOD), answer(GOOD))
    exchanger = Exchanger("https://api.example/prefix", transport)
    assert await exchanger.exchange(WHO, ASSERTION) == (Secret("sk-ant-oat01-x"), 600.0)
    await exchanger.exchange(Federation("fdrl_1", "org-1", "svac_1", "wrkspc_1"), ASSERTION)
    first, second = transport.requests
    assert (first.method, first.url) == ("POST", "https://api.example/prefix/v1/oauth/token")
    headers = dict(first.headers)
    assert headers[b"anthropic-beta"] == b"oauth-2025-04-20,oidc-federation-2026-04-01"
    assert headers[b"content-type"] == b"application/json"
    assert not {b"authorization", b"x-api-key"} & set(headers)
    asked = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": ASSERTION,
             "federation_rule_id": "fdrl_1", "organization_id": "org-1"}  # fmt: skip
    assert json.loads(first.body) == asked
    more = {"service_account_id": "svac_1", "workspace_id": "wrkspc_1"}
    assert json.loads(second.body) == asked | more
    assert b"assertion" not in repr(first).encode(), "a request can be shown"


@pytest.mark.parametrize(
    ("document", "status", "said"),
    [
        ({"error": "invalid_grant", "error_description": ASSERTION}, 400, "400 (invalid_grant"),
        ({"error": {"type": "rate_limit_error", "message": ASSERTION}}, 429, "(rate_limit_error"),
        ({"error": ASSERTION}, 401, "401 (no reason"),
        (["x"], 500, "500 (no reason"),
        (GOOD, 302, "302"),
        (GOOD, 201, "201"),
        (GOOD | {"token_type": "mac"}, 200, "no bearer"),
        (GOOD | {"access_token": ""}, 200, "without a token"),
        (GOOD | {"access_token": 7}, 200, "without a token"),
        (GOOD | {"expires_in": "soon"}, 200, "without a token"),
        (GOOD | {"expires_in": 0}, 200, "without a token"),
        (GOOD | {"expires_in": None}, 200, "without a token"),
        ("text", 200, "without a token"),
    ],
)
async def test_answers_that_give_nothing(document: object, status: int, said: str) -> None:
    """Whatever is not a bearer with an end is unusable, and nothing of the answer is repeated."""
    transport = FakeTransport(given := answer(document, status))
    with pytest.raises(Unusable) as caught:
        await Exchanger("https://api.example", transport).exchange(WHO, ASSERTION)
    assert said in str(caught.value)
    assert ASSERTION not in str(caught.value)
    assert given.closed


@pytest.mark.parametrize("error", [UpstreamUnreachable("refused"), UpstreamBroken("reset")])
async def test_endpoint_that_is_away(error: Exception) -> None:
    """An endpoint that cannot be reached is one more reason."""
    with pytest.raises(Unusable, match="token endpoint: re"):
        await Exchanger("https://api.example", FakeTransport(error)).exchange(WHO, ASSERTION)


async def test_endpoint_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange has a time limit of its own, far below that of a call."""
    monkeypatch.setattr(federation, "EXCHANGE_SECONDS", 0.01)
    transport = FakeTransport(answer(GOOD))
    transport.gate.clear()
    with pytest.raises(Unusable, match="in time"):
        await Exchanger("https://api.example", transport).exchange(WHO, ASSERTION)


async def test_answer_without_end() -> None:
    """An answer that does not end is not kept in memory."""
    transport = FakeTransport(FakeAnswer([b"x" * 40_000] * 9, headers=JSON))
    with pytest.raises(Unusable, match="too much"):
        await Exchanger("https://api.example", transport).exchange(WHO, ASSERTION)


@pytest.mark.parametrize(
    "text", ["", "no jwt", "a.b", "-----BEGIN KEY-----", "a.b." + "c" * 17_000]
)
async def test_file_that_holds_no_identity(text: str) -> None:
    """A file with something else in it, such as a private key, is not sent anywhere."""
    transport = FakeTransport(answer(GOOD))
    with pytest.raises(Unusable, match="no JWT"):
        await Exchanger("https://api.example", transport).exchange(WHO, text)
    assert transport.requests == []


@pytest.mark.parametrize(
    ("sent", "gone_up"),
    [
        ([], [b"oauth-2025-04-20"]),
        ([b"a-1"], [b"a-1,oauth-2025-04-20"]),
        ([b"a-1, b-2"], [b"a-1, b-2,oauth-2025-04-20"]),
        ([b"a-1,"], [b"a-1,oauth-2025-04-20"]),
        ([b"a-1", b"b-2"], [b"a-1", b"b-2,oauth-2025-04-20"]),
    ],
)
def test_flag_of_a_bearer(sent: list[bytes], gone_up: list[bytes]) -> None:
    """B37: the flag comes behind the client's list, of which every byte stays."""
    headers = ((b"anthropic-version", b"2023-06-01"),
               *((b"anthropic-beta", value) for value in sent), (b"x-app", b"cli"))  # fmt: skip
    found = with_bearer_beta(headers)
    assert [value for name, value in found if name == b"anthropic-beta"] == gone_up
    assert [one for one in found if one[0] != b"anthropic-beta"] == [headers[0], headers[-1]]


async def test_cancelled() -> None:
    """Who gives up waiting ends the exchange."""
    transport = FakeTransport(answer(GOOD))
    transport.gate.clear()
    task = asyncio.create_task(Exchanger("https://a.example", transport).exchange(WHO, ASSERTION))
    await transport.arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
