"""OpenAI's API: what goes up, what our answers look like, and the changes that a body undergoes."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_core.problem import Code, Problem, Refusal
from daypass_proxy.providers import openai_edit
from daypass_proxy.providers.openai import ENDPOINTS, OpenAI, routes
from daypass_proxy.providers.openai_edit import SLOW_MAX, amended, lower_output
from tests.fakes.openai import CHAT, EMBEDDINGS, RESPONSES, detail, read, refused

PROVIDER = OpenAI()
CODES = [code for code in Code if code not in (Code.CALL_REVOKED, Code.CALL_TOO_LONG)]


def rendered(problem: Problem, endpoint: str = CHAT) -> tuple[int, dict[bytes, bytes], Any]:
    """An answer as a client gets it: status, headers, and the error of its body."""
    answer = PROVIDER.render(problem, "req_1", endpoint)
    document = json.loads(answer.body)
    assert set(document) == {"error"}
    return answer.status, dict(answer.headers), document["error"]


# -- what goes up


def test_a_call() -> None:
    """A chat completion goes to its own path, and its body is the client's."""
    body = b'{"model": "gpt-4o",  "messages": [], "temperature": 1.0, "store": false}'
    call = read(CHAT, body=body)
    assert (call.provider, call.endpoint, call.upstream_path) == (
        "openai",
        CHAT,
        b"/chat/completions",
    )
    assert (call.body, call.query, call.billable, call.hides_usage) == (body, b"", True, False)


def test_headers_up() -> None:
    """Rows 1, 3, 4: no credential, organisation, project or hop-by-hop header goes up."""
    sent = (
        (b"authorization", b"Bearer t"),
        (b"api-key", b"k"),
        (b"x-api-key", b"k"),
        (b"openai-organization", b"org"),
        (b"openai-project", b"proj"),
        (b"anthropic-version", b"x"),
        (b"cookie", b"c"),
        (b"host", b"h"),
        (b"x-forwarded-for", b"1"),
        (b"connection", b"close, x-stainless-os"),
        (b"openai-beta", b"responses=v1"),
        (b"user-agent", b"OpenAI/Python"),
        (b"x-stainless-lang", b"python"),
        (b"x-stainless-os", b"Linux"),
    )
    up = read(CHAT, headers=sent).headers
    assert up == (
        (b"content-type", b"application/json"),
        (b"openai-beta", b"responses=v1"),
        (b"user-agent", b"OpenAI/Python"),
        (b"x-stainless-lang", b"python"),
    )


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("query", [b"model=o3", b"beta=true", b"x", b"api-version=1"])
def test_no_query(endpoint: str, query: bytes) -> None:
    """B10: a query could name another model than the body, so there is none."""
    assert refused(endpoint, query=query).code is Code.INVALID_REQUEST


def test_credential() -> None:
    """The key goes up as a bearer."""
    assert PROVIDER.credential("sk-real") == (b"authorization", b"Bearer sk-real")


def test_routes_are_below_the_name() -> None:
    """An upstream has its own prefix and the same endpoints."""
    assert [path for path, place in routes("my-own").items()] == [
        b"/my-own/v1/chat/completions",
        b"/my-own/v1/responses",
        b"/my-own/v1/embeddings",
    ]
    assert OpenAI("my-own").base == "/my-own/v1"


def test_usage_is_asked_for() -> None:
    """A stream whose client did not ask for its usage is changed so that it tells it, to us."""
    call = read(CHAT, {"stream": True})
    assert json.loads(call.body).get("stream_options") == {"include_usage": True}
    assert call.hides_usage
    for options in ({"include_usage": False}, {}, {"include_obfuscation": False}):
        call = read(CHAT, {"stream": True, "stream_options": options})
        assert json.loads(call.body)["stream_options"] == options | {"include_usage": True}
        assert call.hides_usage
    asked = (
        b'{"model":"gpt-4o","messages":[],"stream":true,"stream_options":{"include_usage":true},'
        b'"store":false}'
    )
    call = read(CHAT, body=asked)
    assert (call.body, call.hides_usage) == (asked, False)
    for changes in ({"stream": False}, {}):
        call = read(CHAT, changes)
        assert (b"stream_options" in call.body, call.hides_usage) == (False, False)
    assert b"stream_options" not in read(RESPONSES, {"stream": True}).body


def test_a_large_body_without_usage_is_put_in_front(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a large body has not is put in front; what it has otherwise is not searched for."""
    monkeypatch.setattr(openai_edit, "SLOW_MAX", 10)
    call = read(CHAT, {"stream": True})
    assert call.body.startswith(b'{"stream_options":{"include_usage":true},"store":false,"model"')
    problem = refused(CHAT, {"stream": True, "stream_options": {"include_usage": False}})
    assert "set stream_options in it" in problem.title


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text('a"\\\u20ac\U0001f600 ', max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["store", "max_tokens", "x"]), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from(["a", "b", "tools", "é"]), _VALUES, max_size=4),
    st.booleans(),
    st.sampled_from([None, 0, 2]),
)
@settings(max_examples=200, deadline=None)
def test_nothing_else_of_a_body_changes(
    others: dict[str, Any], escaped: bool, indent: int | None
) -> None:
    """Whatever stands beside it, a change is one of its own member alone."""
    document = {"model": "gpt-4o", "input": "hi", **others}
    body = json.dumps(document, ensure_ascii=escaped, indent=indent).encode()
    asked = read(RESPONSES, {}, detail())
    assert json.loads(amended(body, asked)) == document | {"store": False}
    lowered = lower_output(body, 7, (), "max_output_tokens")
    assert json.loads(lowered) == document | {"max_output_tokens": 7}
    again = lower_output(lowered, 5, ("max_output_tokens",), "max_output_tokens")
    assert json.loads(again) == document | {"max_output_tokens": 5}


@pytest.mark.parametrize(
    ("given", "most", "result"),
    [
        ({"max_tokens": 100}, 7, {"max_tokens": 7}),
        ({"max_tokens": 5}, 7, {"max_tokens": 5}),
        ({"max_tokens": None}, 7, {"max_tokens": None, "max_completion_tokens": 7}),
        (
            {"max_tokens": 100, "max_completion_tokens": 3},
            7,
            {"max_tokens": 7, "max_completion_tokens": 3},
        ),
        ({}, 7, {"max_completion_tokens": 7}),
    ],
)
def test_lower_output(given: dict[str, Any], most: int, result: dict[str, Any]) -> None:
    """No limit stays above what is held; a body without any gets one."""
    call = PROVIDER.lower_output(read(CHAT, given), most)
    kept = {key: value for key, value in json.loads(call.body).items() if key.startswith("max_")}
    assert kept == result
    assert call.max_output_tokens == most


def test_lower_output_of_several_answers() -> None:
    """What is held is shared by all answers, and each needs a token at least."""
    call = PROVIDER.lower_output(read(CHAT, {"n": 3, "max_tokens": 100}), 10)
    assert json.loads(call.body)["max_tokens"] == 3
    with pytest.raises(ValueError, match="not a token"):
        PROVIDER.lower_output(read(CHAT, {"n": 3}), 2)


def test_lower_output_of_ones_own_servers() -> None:
    """Servers of one's own are told by the name that all of them know."""
    own = detail(provider="own", cap=100)
    call = read(CHAT, None, own, provider="own")
    lowered = OpenAI("own").lower_output(call, 7)
    assert json.loads(lowered.body)["max_tokens"] == 7
    for changes in ({"max_completion_tokens": 50}, {"max_completion_tokens": 50, "max_tokens": 9}):
        call = read(CHAT, changes, own, provider="own")
        assert json.loads(OpenAI("own").lower_output(call, 7).body)["max_tokens"] == 7


def test_a_name_in_escapes_is_found() -> None:
    """Row 31: a limit whose name is spelled with escapes is lowered like any other."""
    body = b'{"model":"gpt-4o","messages":[],"store":false,"max_\\u0074okens":100}'
    call = PROVIDER.lower_output(read(CHAT, body=body), 7)
    assert json.loads(call.body)["max_tokens"] == 7
    assert SLOW_MAX == 4 * 1024 * 1024


# -- what comes down


def test_response_headers() -> None:
    """Limits, organisation and project are the platform's; one of each header remains."""
    came = [
        (b"Content-Type", b"application/json"),
        (b"x-request-id", b"req_a"),
        (b"X-Request-Id", b"req_b"),
        (b"openai-processing-ms", b"12"),
        (b"openai-version", b"2020-10-01"),
        (b"retry-after-ms", b"5"),
        (b"x-should-retry", b"true"),
        (b"openai-organization", b"acme"),
        (b"openai-project", b"proj"),
        (b"x-ratelimit-remaining-tokens", b"1"),
        (b"set-cookie", b"a"),
        (b"cf-ray", b"1"),
        (b"server", b"x"),
        (b"content-length", b"3"),
    ]
    assert PROVIDER.response_headers(came) == (
        (b"content-type", b"application/json"),
        (b"x-request-id", b"req_a"),
        (b"openai-processing-ms", b"12"),
        (b"openai-version", b"2020-10-01"),
        (b"retry-after-ms", b"5"),
        (b"x-should-retry", b"true"),
    )


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("endpoint", ["", *ENDPOINTS])
def test_b50_every_refusal_has_the_shape_of_the_api(code: Code, endpoint: str) -> None:
    """B50: whatever is refused, a client of the API reads it as an error of the API."""
    problem = Problem.of(code, "what\u2028happened", hint="what to do", field="model")
    status, headers, error = rendered(problem, endpoint)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] == "what\u2028happened; what to do"
    assert all(isinstance(error[name], str) for name in ("message", "type", "code"))
    assert error["param"] == "model"
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"x-request-id"] == b"req_1"
    assert status == (503 if problem.status == 529 else problem.status) or endpoint == RESPONSES
    assert PROVIDER.render(problem, "req_1").body.isascii()


@pytest.mark.parametrize(
    ("code", "status", "name"),
    [
        (Code.TOKEN_EXPIRED, 401, "invalid_api_key"),
        (Code.INVALID_TOKEN, 401, "invalid_api_key"),
        (Code.MODEL_NOT_ALLOWED, 400, "model_not_found"),
        (Code.INSUFFICIENT_SCOPE, 403, "insufficient_scope"),
        (Code.BUDGET_HELD, 429, "rate_limit_exceeded"),
        (Code.RATE_LIMITED, 429, "rate_limit_exceeded"),
        (Code.UPSTREAM_UNREACHABLE, 503, "upstream_unreachable"),
        (Code.UPSTREAM_REFUSED_KEY, 502, "upstream_refused_key"),
        (Code.BUDGET_EXHAUSTED, 402, "insufficient_quota"),
    ],
)
def test_statuses_and_codes(code: Code, status: int, name: str) -> None:
    """B49: clients stop, renew or wait by these."""
    told, headers, error = rendered(Problem.of(code))
    assert (told, error["code"]) == (status, name)
    if code in (Code.BUDGET_HELD, Code.RATE_LIMITED):
        assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (b"2", b"2000")
    if code in (Code.BUDGET_EXHAUSTED, Code.INSUFFICIENT_SCOPE, Code.MODEL_NOT_ALLOWED):
        assert headers[b"x-should-retry"] == b"false"
        assert b"retry-after" not in headers


@pytest.mark.parametrize("code", [Code.INSUFFICIENT_SCOPE, Code.MODEL_NOT_ALLOWED])
def test_what_is_not_allowed_is_an_invalid_request(code: Code) -> None:
    """B49: litellm, and aider with it, tries again for a minute at any other type of a 403."""
    assert rendered(Problem.of(code))[2]["type"] == "invalid_request_error"


def test_a_spent_budget_of_responses() -> None:
    """B49: codex takes 402 for a fault that passes, and stops at this one alone."""
    status, headers, error = rendered(Problem.of(Code.BUDGET_EXHAUSTED), RESPONSES)
    assert (status, error["code"]) == (429, "insufficient_quota")
    assert headers[b"x-should-retry"] == b"false"
    assert b"retry-after" not in headers
    assert rendered(Problem.of(Code.BUDGET_EXHAUSTED), EMBEDDINGS)[0] == 402


def test_stream_errors() -> None:
    """The last event of a torn stream is an error of its kind, and never `[DONE]`."""
    problem = Problem.of(Code.UPSTREAM_BROKEN, "line\nbreak")
    chat = PROVIDER.stream_error(problem, "req_1", CHAT)
    assert chat.startswith(b"data: {")
    assert chat.count(b"\n") == 2
    assert chat.endswith(b"\n\n")
    assert json.loads(chat[6:])["error"]["message"] == "line\nbreak"
    response = PROVIDER.stream_error(problem, "req_1", RESPONSES)
    name, data = response.rstrip(b"\n").split(b"\n")
    assert name == b"event: error"
    assert json.loads(data[6:]) == {
        "type": "error",
        "code": "upstream_broken",
        "message": "line\nbreak",
        "param": None,
    }


def test_bodies_must_be_declared_as_json() -> None:
    """What is compressed or no JSON is refused as on every route."""
    with pytest.raises(Refusal):
        read(CHAT, headers=((b"content-encoding", b"gzip"),))
