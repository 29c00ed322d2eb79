"""B50: every refusal of ours, in the provider's envelope, with nothing of our insides in it."""

import json
import re

import pytest

from daypass_core.problem import Code, Problem
from daypass_proxy.edge import respond
from daypass_proxy.providers.anthropic import Anthropic
from tests.fakes.asgi import make_exchange
from tests.fakes.proxy import Proxy

PROVIDER = Anthropic()
# Statuses and type names of the API; a stock client picks its exception by them.
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    422: "api_error",
    426: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "api_error",
    502: "api_error",
    503: "api_error",
    504: "api_error",
    529: "overloaded_error",
}
INSIDES = re.compile(
    r"traceback|\.py\b|exception|none\b|null|localhost|127\.0\.0\.1|unix:|\.sock|sqlite|postgres"
    r"|vault|openbao|aiohttp|uvicorn|httptools|anthropic|detail\b",
    re.IGNORECASE,
)
ADMIN_ONLY = {
    Code.INVALID_CREDENTIAL, Code.FORBIDDEN, Code.BEYOND_PROFILE, Code.CONFLICT,
    Code.IDEMPOTENCY_MISMATCH,
}  # fmt: skip


@pytest.mark.parametrize("code", list(Code))
def test_envelope(code: Code) -> None:
    """B50: status, type name, words and request id of every code, as JSON and nothing else."""
    problem = Problem.of(code)
    rendered = PROVIDER.render(problem, "req_one")
    body = json.loads(rendered.body)
    expected = "overloaded_error" if code is Code.OVERLOADED else TYPES[problem.status]
    assert rendered.status == problem.status
    assert set(body) == {"type", "error", "request_id"}
    assert (body["type"], body["request_id"]) == ("error", "req_one")
    assert body["error"]["type"] == expected
    assert body["error"]["message"] == problem.title
    assert set(body["error"]) <= {"type", "message", "details"}
    headers = dict(rendered.headers)
    assert len(headers) == len(rendered.headers)
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"request-id"] == b"req_one"


@pytest.mark.parametrize("code", list(Code))
def test_words(code: Code) -> None:
    """B50: the words of every code are for a stranger: no insides, no null, no full stop."""
    title = Problem.of(code).title
    assert title[0].islower()
    assert not title.endswith(".")
    assert not INSIDES.search(title), title


@pytest.mark.parametrize("code", list(Code))
def test_headers_that_steer_clients(code: Code) -> None:
    """B50: only a wait of seconds is ever asked for; what cannot change says not to retry."""
    problem = Problem.of(code)
    headers = dict(PROVIDER.render(problem, "req_one").headers)
    after = headers.get(b"retry-after")
    assert after is None or 1 <= int(after) <= 10
    assert not (after and problem.should_retry is False)
    if problem.status in (429, 503, 529):
        assert after is not None
    if problem.status in (400, 402, 403) and code not in ADMIN_ONLY:
        assert headers[b"x-should-retry"] == b"false"
    assert (b"www-authenticate" in headers) == (
        problem.status == 401 or code is Code.INSUFFICIENT_SCOPE
    )


@pytest.mark.parametrize("code", list(Code))
def test_in_a_stream(code: Code) -> None:
    """B50: after a 200 the same object is an event of one data line."""
    problem = Problem.of(code, "a line\nbreak and \u2028 \x1b[0m")
    said = PROVIDER.stream_error(problem, "req_one")
    name, data, blank, end = said.split(b"\n")
    assert (name, blank, end) == (b"event: error", b"", b"")
    assert json.loads(data.removeprefix(b"data: ")) == json.loads(
        PROVIDER.render(problem, "req_one").body
    )
    assert said.isascii()
    assert b"\x1b" not in said


def test_hint_follows_the_title() -> None:
    """A hint stands after the title, in the same sentence."""
    problem = Problem.of(Code.NOT_FOUND, hint="do this")
    body = json.loads(PROVIDER.render(problem, "req_one").body)
    assert body["error"]["message"] == "no such endpoint; do this"


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/chat/completions",
        b"/chat/completions",
        b"/v1/completions",
        b"/v1/responses",
        b"/responses",
        b"/v1/embeddings",
        b"/openai/deployments/x/chat/completions",
    ],
)
async def test_another_api(path: bytes) -> None:
    """B91: an OpenAI-style call is 404 in an envelope its client reads, and names the base URL."""
    exchange, wire = make_exchange("POST", path, headers=[(b"host", b"proxy.test")])
    await respond(exchange, Proxy().services)
    assert wire.status == 404
    error = wire.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].endswith("https://proxy.test/openai/v1")
