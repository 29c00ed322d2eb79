"""The token endpoint's two dialects, and what is refused before anything is looked at."""

import asyncio
import json
from urllib.parse import urlencode

import pytest

from daypass_broker import issue, oauth, token_request
from daypass_broker.oauth import OAuthError, TokenAnswer
from daypass_broker.purchase import Purchase
from daypass_broker.token_request import Presented, TokenRequest
from tests.support import AUDIENCE, ISSUER
from tests.unit.broker.rig import Rig

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
BEARER = {"grant_type": oauth.JWT_BEARER, "assertion": "a.b.c"}
EXCHANGE = {
    "grant_type": oauth.TOKEN_EXCHANGE,
    "subject_token": "a.b.c",
    "subject_token_type": oauth.TYPE_JWT,
}
REFRESH = {"grant_type": oauth.REFRESH_TOKEN, "refresh_token": "a.b.c"}
BUY = EXCHANGE | {"subject_token_type": oauth.TYPE_ACCESS_TOKEN}


def parse(parameters: object, content_type: str = JSON) -> TokenRequest:
    """Parse parameters, or a body given as bytes."""
    body = parameters if isinstance(parameters, bytes) else json.dumps(parameters).encode()
    return token_request.parse(content_type, body, audience=AUDIENCE)


def refusal(parameters: object, content_type: str = JSON) -> OAuthError:
    """The error these parameters are refused with."""
    with pytest.raises(OAuthError) as caught:
        parse(parameters, content_type)
    assert caught.value.status == 400
    return caught.value


def test_the_stock_sdks_request_is_read() -> None:
    """The official SDKs' JSON body becomes an assertion with its rule and organization."""
    asked = parse(BEARER | {"federation_rule_id": "fdrl_x", "organization_id": "acme"})
    assert asked.presented is Presented.ASSERTION
    assert asked.unverified_credential == "a.b.c"
    assert (asked.federation_rule_id, asked.organization_id) == ("fdrl_x", "acme")


@pytest.mark.parametrize("dialect", [JSON, FORM, f"{FORM}; charset=utf-8", "Application/JSON"])
def test_both_dialects_say_the_same(dialect: str) -> None:
    """JSON and form bodies with the same parameters are the same request."""
    form = "form" in dialect
    body = urlencode(EXCHANGE).encode() if form else json.dumps(EXCHANGE).encode()
    assert parse(body, dialect) == parse(EXCHANGE)


def test_a_renewal_is_told_by_its_type() -> None:
    """The subject token type tells a renewal generation from a launch credential."""
    assert parse(EXCHANGE).presented is Presented.ASSERTION
    renewal = EXCHANGE | {"subject_token_type": oauth.TYPE_REFRESH_TOKEN}
    assert parse(renewal).presented is Presented.RENEWAL


def test_empty_parameters_count_as_absent() -> None:
    """RFC 6749 §3.2: a parameter without a value is treated as if it were not there."""
    more = {"scope": "", "service_account_id": None, "audience": "", "organization_id": ""}
    assert parse(EXCHANGE | more) == parse(EXCHANGE)
    form = urlencode(EXCHANGE | {"scope": "", "resource": ""}).encode()
    assert parse(form, FORM) == parse(EXCHANGE)


def test_unknown_parameters_are_ignored() -> None:
    """RFC 6749 §3.2: parameters nobody knows change nothing."""
    assert parse(BEARER | {"client_id": "x", "zebra": "y"}) == parse(BEARER)


@pytest.mark.parametrize(
    "grant_type", ["password", "client_credentials", "authorization_code", "x"]
)
def test_unknown_grant_types(grant_type: str) -> None:
    """Any other grant type is unsupported_grant_type and names those there are."""
    error = refusal({"grant_type": grant_type})
    assert error.error == "unsupported_grant_type"
    assert all(known in error.description for known in oauth.GRANT_TYPES)


def test_a_refresh_token_is_a_renewal_generation() -> None:
    """RFC 6749 §6 as stock clients write it: a renewal, whose `client_id` says nothing."""
    refresh = {"grant_type": "refresh_token", "refresh_token": "a.b.c", "client_id": "daypass"}
    asked = parse(refresh)
    assert (asked.presented, asked.unverified_credential) == (Presented.RENEWAL, "a.b.c")
    assert parse(urlencode(refresh).encode(), FORM) == asked


def test_an_access_token_is_presented_to_buy_with() -> None:
    """Only an access token as subject makes a purchase of the request."""
    bought = parse(EXCHANGE | {"subject_token_type": oauth.TYPE_ACCESS_TOKEN})
    assert (bought.presented, bought.purchase) == (Presented.ACCESS, Purchase())
    assert parse(EXCHANGE).purchase is None


@pytest.mark.parametrize(
    "name",
    [
        "scope",
        "service_account_id",
        "actor_token",
        "actor_token_type",
        "authorization_details",
        "daypass_limits",
        "daypass_lifetime_seconds",
        "client_secret",
        "client_assertion",
        "client_assertion_type",
    ],
)
@pytest.mark.parametrize("asked", [BEARER, EXCHANGE, REFRESH])
def test_what_cannot_be_carried_over_is_refused(asked: dict[str, str], name: str) -> None:
    """A parameter that would narrow the token, or prove more, is refused, not dropped."""
    error = refusal(asked | {name: "1"})
    assert (error.error, name in error.description) == ("invalid_request", True)


@pytest.mark.parametrize("asked", ["REFRESH", "BUY"])
def test_a_rule_is_for_assertions_only(asked: str) -> None:
    """`federation_rule_id` beside a credential of ours other than a launch one is refused."""
    request = {"REFRESH": REFRESH, "BUY": BUY}[asked] | {"federation_rule_id": "fdrl_x"}
    assert "federation_rule_id" in refusal(request).description


def test_workspace_may_be_the_default_one_only() -> None:
    """`workspace_id` is refused unless it is empty or the literal `default`."""
    assert parse(BEARER | {"workspace_id": "default"}) == parse(BEARER)
    assert refusal(BEARER | {"workspace_id": "wrkspc_1"}).error == "invalid_request"


@pytest.mark.parametrize("name", ["audience", "resource"])
def test_the_only_target_is_our_audience(name: str) -> None:
    """RFC 8693, RFC 8707: another audience or resource is invalid_target, in every dialect."""
    for asked in (BEARER, EXCHANGE, REFRESH):
        assert parse(asked | {name: AUDIENCE}) == parse(asked)
        assert refusal(asked | {name: "https://other.test"}).error == "invalid_target"


def test_only_access_tokens_are_issued() -> None:
    """RFC 8693: another requested or subject token type is invalid_request."""
    assert parse(EXCHANGE | {"requested_token_type": oauth.TYPE_ACCESS_TOKEN}) == parse(EXCHANGE)
    for more in (
        {"requested_token_type": oauth.TYPE_REFRESH_TOKEN},
        {"subject_token_type": "urn:ietf:params:oauth:token-type:saml2"},
    ):
        assert refusal(EXCHANGE | more).error == "invalid_request"


@pytest.mark.parametrize(
    ("parameters", "missing"),
    [
        ({}, "grant_type"),
        ({"grant_type": oauth.JWT_BEARER}, "assertion"),
        ({"grant_type": oauth.REFRESH_TOKEN}, "refresh_token"),
        ({"grant_type": oauth.TOKEN_EXCHANGE}, "subject_token"),
        ({k: v for k, v in EXCHANGE.items() if k != "subject_token_type"}, "subject_token_type"),
    ],
)
def test_missing_parameters_are_named(parameters: dict[str, str], missing: str) -> None:
    """A request without a needed parameter is told which."""
    error = refusal(parameters)
    assert (error.error, error.description) == ("invalid_request", f"{missing} is missing")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b'{"grant_type":"a","grant_type":"b"}',
        b'{"grant_type":1}',
        b'{"grant_type":["a"]}',
        b'{"grant_type":{"a":"b"}}',
        b'{"assertion":true}',
        b'{"x":NaN}',
        b"[" * 24_000,
        b'{"a":' * 4_000,
        json.dumps({f"p{n}": "x" for n in range(33)}).encode(),
    ],
)
def test_ill_formed_json(body: bytes) -> None:
    """Broken, nested, duplicate or non-string JSON is invalid_request, whatever it is."""
    assert refusal(body).error == "invalid_request"


@pytest.mark.parametrize(
    "body",
    [
        b"grant_type=a&grant_type=b",
        b"grant_type",
        b"grant_type=%ff",
        b"grant_type=\xc3\xa9",
        b"&".join(b"p%d=x" % n for n in range(33)),
    ],
)
def test_ill_formed_forms(body: bytes) -> None:
    """Broken, duplicate or undecodable form fields are invalid_request."""
    assert refusal(body, FORM).error == "invalid_request"


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "multipart/form-data", "application/xml", "application/jso"]
)
def test_other_content_types(content_type: str) -> None:
    """A body of another type is refused unread."""
    assert "content-type" in refusal(json.dumps(BEARER).encode(), content_type).description


def test_too_large_bodies() -> None:
    """A body of 24 KiB is read, one byte more is refused."""
    empty = len(json.dumps(BEARER | {"x": ""}))
    fitting = "a" * (oauth.MAX_BODY_BYTES - empty)
    assert parse(BEARER | {"x": fitting}) == parse(BEARER)
    assert "body is larger" in refusal(BEARER | {"x": fitting + "a"}).description


def test_too_large_credentials() -> None:
    """A credential of 16 KiB is read, as stock clients may send it; one byte more is refused."""
    fitting = "a" * token_request.MAX_CREDENTIAL_BYTES
    assert parse(BEARER | {"assertion": fitting}).unverified_credential == fitting
    assert "credential is larger" in refusal(BEARER | {"assertion": fitting + "a"}).description


async def test_a_body_without_end_is_not_read_to_its_end(rig: Rig) -> None:
    """Reading stops at the limit: the answer comes although more is announced."""
    reply = await rig.exchange(b"x" * (oauth.MAX_BODY_BYTES + 1))
    assert (reply.status, reply.error) == (400, "invalid_request")


async def test_a_body_that_never_arrives(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that does not come in time is invalid_request; nobody can hold the endpoint open."""
    monkeypatch.setattr(issue, "BODY_SECONDS", 0.0)

    async def never() -> dict[str, object]:
        await asyncio.Event().wait()
        return {}

    reply = await rig.exchange(b"", receive=never)
    assert (reply.status, reply.error) == (400, "invalid_request")


async def test_a_client_that_hangs_up(rig: Rig) -> None:
    """A client that goes away in its body is no error of ours."""

    async def gone() -> dict[str, object]:
        return {"type": "http.disconnect"}

    assert (await rig.exchange(b"", receive=gone)).error == "invalid_request"


async def test_ill_formed_requests_over_http(rig: Rig) -> None:
    """RFC 6749 §5.2: an ill-formed request is answered 400 in JSON, not to be stored."""
    reply = await rig.exchange(b"grant_type=password", FORM)
    assert (reply.status, reply.error) == (400, "unsupported_grant_type")
    assert reply.headers["content-type"] == JSON
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["request-id"].startswith("req_")


def test_descriptions_keep_to_the_charset_of_rfc_6749() -> None:
    """Quotes, backslashes, control and non-ASCII characters never reach error_description."""
    rendered = oauth.render_error(OAuthError("invalid_request", 'a "b" \\ é \n c'))
    assert json.loads(rendered.body)["error_description"] == "a 'b' ' ' ' c"


def test_an_error_without_help_has_no_description() -> None:
    """The answer to a stranger is the error word and nothing else."""
    assert json.loads(oauth.render_error(OAuthError("invalid_grant")).body) == {
        "error": "invalid_grant"
    }


def test_answers_fit_the_dialect() -> None:
    """Only an exchange names the issued type, only a single-use sandbox gets a refresh token."""
    plain = json.loads(oauth.render(TokenAnswer("t", 600)).body)
    assert plain == {"access_token": "t", "token_type": "Bearer", "expires_in": 600}
    full = json.loads(oauth.render(TokenAnswer("t", 600, "r", exchanged=True)).body)
    assert full == plain | {
        "refresh_token": "r",
        "issued_token_type": oauth.TYPE_ACCESS_TOKEN,
    }


def test_nothing_prints_a_credential() -> None:
    """The repr of a request and of an answer shows no token."""
    assert "a.b.c" not in repr(parse(BEARER))
    assert "secret" not in repr(TokenAnswer("secret-a", 600, "secret-r"))


def test_metadata_of_rfc_8414() -> None:
    """The metadata names the issuer string-equal and the endpoints below it."""
    found = oauth.metadata(ISSUER)
    assert found["issuer"] == ISSUER
    assert found["token_endpoint"] == f"{ISSUER}/v1/oauth/token"
    assert found["jwks_uri"] == f"{ISSUER}/.well-known/jwks.json"
    assert found["grant_types_supported"] == [
        oauth.JWT_BEARER,
        "refresh_token",
        oauth.TOKEN_EXCHANGE,
    ]
    assert found["token_endpoint_auth_methods_supported"] == ["none"]
