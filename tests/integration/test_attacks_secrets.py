"""Row 41, B58: whatever fails, no key, token, credential or prompt is told, logged or stored."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.canary import CANARY, forms
from tests.servers.client import RawStream
from tests.servers.stack import Answer, Stack, call
from tests.servers.stub import Close, Reset, Script, Send, StubUpstream, chunk
from tests.servers.wire import event, head, json_answer, message_start, sse_answer
from tests.support import eventually

MODEL = "claude-sonnet-4-5"
PROMPT = "PROMPTfe51c0d2b7"
KEY = f"sk-ant-{CANARY}-acme"
JSON_TYPE = "application/json"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


@dataclass
class World:
    """One installation, the secrets in it, and every answer that came back."""

    stack: Stack
    upstream: StubUpstream
    sandbox: dict[str, Any]
    token: str
    orchestrator: str
    told: list[bytes] = field(default_factory=list)

    @property
    def launch(self) -> str:
        """The launch credential."""
        return str(self.sandbox["launch"]["credential"])

    @property
    def secrets(self) -> dict[str, tuple[bytes, ...]]:
        """What must be nowhere, by its name. Of tokens it is the signature that makes them."""
        named = {
            "provider key": forms(),
            "prompt": (PROMPT.encode(),),
            "access token": (self.token.split(".")[2].encode(),),
            "launch credential": (self.launch.split(".")[2].encode(),),
            "orchestrator credential": (self.orchestrator.split("_")[2].encode(),),
            "admin credential": (self.stack.admin_credential.split("_")[2].encode(),),
        }
        return {name: tuple(found) for name, found in named.items()}

    def keep(self, answer: Answer) -> Answer:
        """Remember an answer for the search."""
        self.told.append(answer.body + repr(answer.headers).encode())
        return answer

    def ask(self, method: str, path: str, data: bytes = b"", /, **headers: str) -> Answer:
        """One request to the proxy; `_` in names of headers stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.keep(call(self.stack.proxy_url, method, path, data or None, named))

    def message(self, token: str | None = None, **fields: object) -> Answer:
        """One call with the prompt in it."""
        spoken = {"messages": [{"role": "user", "content": PROMPT}]} | fields
        return self.keep(self.stack.message(token or self.token, **spoken))

    def oauth(self, **parameters: object) -> Answer:
        """One request to the token endpoint whose answer must not be a token."""
        answer = self.ask(
            "POST", "/v1/oauth/token", json.dumps(parameters).encode(), content_type=JSON_TYPE
        )
        assert answer.status in (400, 503)
        return answer


@pytest.fixture(scope="module")
def world(module_stack: Stack, module_stub: StubUpstream) -> World:
    """The stack of this module (it logs at debug level) and its secrets."""
    sandbox = module_stack.sandbox()
    token = module_stack.access_token(sandbox)
    orchestrator = module_stack.new_credential("orchestrator", "--orchestrator", "acme-ci")
    module_stub.reset()
    return World(module_stack, module_stub, sandbox, token, orchestrator)


def places(stack: Stack) -> dict[str, bytes]:
    """Everything the installation has written, but for its key files."""
    skipped = (stack.folder / "keys", stack.proxy_socket, stack.broker_socket)
    return {
        str(path.relative_to(stack.folder)): path.read_bytes()
        for path in stack.folder.rglob("*")
        if path.is_file() and not any(path.is_relative_to(one) for one in skipped)
    }


def leaks(world: World) -> list[str]:
    """Every place that holds a secret, and which."""
    found = [
        f"{name} in {place}"
        for place, data in places(world.stack).items()
        for name, texts in world.secrets.items()
        if any(text in data for text in texts)
    ]
    return found + [
        f"{name} in an answer: {told[:300]!r}"
        for told in world.told
        for name, texts in world.secrets.items()
        if any(text in told for text in texts)
    ]


def test_the_search_finds_what_is_there(world: World, tmp_path: Path) -> None:
    """The search that follows would find each secret in an answer and in a file."""
    for name, texts in world.secrets.items():
        world.told.append(b"x" + texts[0] + b"x")
        assert any(found.startswith(name) for found in leaks(world))
        world.told.pop()
    planted = world.stack.folder / "planted.log"
    planted.write_text(world.token)
    assert leaks(world) == ["access token in planted.log"]
    planted.unlink()


def test_row_41_b58_tokens_in_wrong_places(world: World) -> None:
    """B58: a token in the query, path, cookie, another header or the body is not told further."""
    for secret in (world.token, world.launch, world.orchestrator, KEY):
        bad = {"authorization": f"Bearer {secret}x"}
        for path in (
            f"/v1/messages?token={secret}",
            f"/v1/messages?key={secret}",
            f"/v1/{secret}",
            f"/{secret}/v1/messages",
            f"/v1/models/{secret}",
        ):
            assert world.ask("POST", path, b"{}", **bad).status in (400, 401, 404, 405)
            assert world.ask("GET", path, **bad).status in (400, 401, 404, 405)
        assert world.ask("GET", "/v1/self", cookie=f"token={secret}").status == 401
        assert world.ask("GET", "/v1/self", authorization=f"Basic {secret}").status == 401
        assert world.ask("GET", "/v1/self", authorization=f"Bearer {secret}.x").status == 401
        assert world.ask("GET", "/v1/self", host=f"{secret}.example").status in (400, 401)
        good = {"authorization": f"Bearer {world.token}", "content_type": JSON_TYPE}
        assert world.ask("GET", f"/v1/models/{secret}", **good).status == 404
        assert world.ask("GET", f"/v1/models?after_id={secret}", **good).status == 200
        assert world.ask("POST", "/v1/messages", secret.encode(), **good).status == 400
    raw = RawStream.send(world.stack.proxy_url, f"{world.token} /v1/self HTTP/1.1\r\n\r\n".encode())
    world.told.append(raw.rest())
    assert leaks(world) == []


def test_row_41_b58_tokens_in_fields_are_not_echoed(world: World) -> None:
    """B58: an error that names a field or kind does not repeat a token that was put there."""
    for secret in (world.token, world.launch):
        for fields in (
            {"model": secret},
            {secret: {"a": 1}},
            {secret: [1]},
            {"max_tokens": secret},
            {"stream": secret},
            {"thread": {"id": secret}},
            {"service_tier": secret},
            {"speed": secret},
            {"tools": [{"type": secret}]},
            {"tools": [{"type": "web_search_20250305", "allowed_domains": [secret]}]},
            {"tools": [{"type": secret + "_20250305"}]},
            {"system": [{"type": secret}]},
            {"messages": [{"role": "user", "content": [{"type": secret}]}]},
            {"messages": [{"role": "user", "content": [image({"type": secret})]}]},
            {"messages": [{"role": "user", "content": [image({"type": "url", "url": secret})]}]},
            {"mcp_servers": [{"type": "url", "url": secret, "authorization_token": secret}]},
            {"fallbacks": [{"model": secret}]},
        ):
            assert world.message(**fields).status == 400, fields.keys()
        twice = f'{{"{secret}":1,"{secret}":2}}'.encode()
        headers = {"authorization": f"Bearer {world.token}", "content_type": JSON_TYPE}
        assert world.ask("POST", "/v1/messages", twice, **headers).status == 400
    assert leaks(world) == []


def image(source: dict[str, str]) -> dict[str, object]:
    """An image block."""
    return {"type": "image", "source": source}


def test_row_41_b58_the_token_endpoint_repeats_nothing(world: World) -> None:
    """B58: refused token requests, whole or torn, in whatever parameter, keep the credential."""
    launch, token = world.launch, world.token
    for parameters in (
        {"grant_type": JWT_BEARER, "assertion": launch + "x"},
        {"grant_type": JWT_BEARER, "assertion": token},
        {"grant_type": JWT_BEARER, "assertion": launch, "organization_id": "globex"},
        {"grant_type": JWT_BEARER, "assertion": launch, "federation_rule_id": launch},
        {"grant_type": JWT_BEARER, "assertion": launch, "organization_id": launch},
        {"grant_type": JWT_BEARER, "assertion": launch, "scope": launch},
        {"grant_type": JWT_BEARER, "assertion": launch, "workspace_id": launch},
        {"grant_type": JWT_BEARER, "assertion": [launch]},
        {"grant_type": launch, "assertion": launch},
        {"grant_type": EXCHANGE, "subject_token": launch, "subject_token_type": launch},
        {
            "grant_type": EXCHANGE,
            "subject_token": token,
            "subject_token_type": "urn:ietf:params:oauth:token-type:refresh_token",
        },
        {launch: launch},
    ):
        world.oauth(**parameters)
    body = json.dumps({"grant_type": JWT_BEARER, "assertion": launch}).encode()
    for data, kind in (
        (body[:-1], JSON_TYPE),
        (body, "text/plain"),
        (body, "application/x-www-form-urlencoded"),
        (body + b" " * 30_000, JSON_TYPE),
        (f"assertion={launch}&assertion={launch}".encode(), "application/x-www-form-urlencoded"),
    ):
        assert world.ask("POST", "/v1/oauth/token", data, content_type=kind).status == 400
    path = f"/v1/oauth/token?assertion={launch}"
    assert world.ask("POST", path, body, content_type=JSON_TYPE).status == 400
    assert leaks(world) == []


ECHO = {"type": "error", "error": {"type": "api_error", "message": f"bad key {KEY}"}}
START = message_start(MODEL, {"input_tokens": 25, "output_tokens": 1})
UPSTREAM: dict[str, Script] = {
    "500 with the key": [Send(json_answer(500, ECHO))],
    "400 with the key": [Send(json_answer(400, ECHO))],
    "401": [Send(json_answer(401, ECHO))],
    "403 with the key": [Send(json_answer(403, ECHO))],
    "key in a header": [Send(json_answer(429, {}, [("anthropic-debug", KEY), ("x-key", KEY)]))],
    "key in a header of a 200": [Send(json_answer(200, {}, [("anthropic-debug", KEY)]))],
    "key in a redirect": [Send(head(307, [("location", f"http://127.0.0.1/?k={KEY}")]))],
    "no HTTP": [Send(f"{KEY}\r\n\r\n".encode()), Close()],
    "reset": [Reset()],
    "closed": [Close()],
    "torn stream": [Send(sse_answer()), chunk(START), Reset()],
    "torn answer": [
        Send(head(200, [("content-type", JSON_TYPE), ("content-length", "99")]) + b"{")
    ],
    "other media": [Send(head(200, [("content-type", f"text/{KEY}")])), Close()],
    "error event": [Send(sse_answer()), chunk(event("error", {"type": "error"})), Close()],
}


@pytest.mark.parametrize("kind", UPSTREAM)
@pytest.mark.parametrize("stream", [True, False])
def test_row_41_b58_upstream_failures(world: World, kind: str, stream: bool) -> None:
    """B58: whatever the provider does, neither its key nor the prompt comes back or is logged."""
    world.upstream.next(UPSTREAM[kind])
    try:
        world.message(stream=stream)
    except OSError:
        assert "torn" in kind or kind == "error event"
    world.upstream.reset()
    assert leaks(world) == []


def test_row_41_b58_admin_failures(world: World) -> None:
    """B58: refused admin requests keep credentials, whichever field or header they stood in."""
    admin, orchestrator = world.stack.admin_credential, world.orchestrator
    for credential in (admin + "x", orchestrator[:-1], world.token, world.launch, KEY):
        assert (
            world.keep(world.stack.admin("GET", "/v1/policy", credential=credential)).status == 401
        )
    for secret in (world.launch, world.token):
        for method, path, body in (
            ("POST", "/v1/sandboxes", {secret: 1}),
            ("POST", "/v1/sandboxes", {"tenant": secret}),
            ("POST", "/v1/sandboxes", {"profile": secret, "budget_usd": secret}),
            ("POST", "/v1/sandboxes", {"labels": {secret: "x"}}),
            ("POST", "/v1/revocations", {"scope": secret}),
            ("POST", "/v1/revocations", {"scope": "jti", "ident": secret[-200:]}),
            ("POST", "/v1/credentials", {"role": secret}),
            ("POST", "/v1/credentials", {"role": "orchestrator", "orchestrator": secret}),
            ("PUT", "/v1/policy", {"tenants": {secret: {"profiles": [secret]}}}),
            ("PUT", "/v1/policy", {secret: {}}),
            ("GET", f"/v1/sandboxes/{secret}", None),
            ("GET", f"/v1/audit?token={secret}", None),
            ("GET", f"/v1/usage?after={secret[-200:]}", None),
            ("GET", f"/{secret}", None),
        ):
            assert world.keep(world.stack.admin(method, path, body)).status in (400, 404), path
    assert leaks(world) == []


def test_row_41_good_days_tell_nothing_either(world: World) -> None:
    """Row 41: after good calls, streams and exchanges at debug level there is no secret to find."""
    assert world.message().status == 200
    assert world.message(stream=True).status == 200
    assert world.stack.exchange(world.sandbox).status == 200
    for path in ("/v1/self", "/v1/models", "/readyz"):
        assert world.ask("GET", path, authorization=f"Bearer {world.token}").status == 200
    for path in ("/v1/sandboxes", "/v1/usage", "/v1/audit", "/v1/credentials", "/v1/policy"):
        assert world.keep(world.stack.admin("GET", path)).status == 200
    assert leaks(world) == []


def test_row_41_b58_a_key_that_cannot_be_read(
    make_stack: Callable[..., Stack], tmp_path: Path
) -> None:
    """B58: a tenant whose key is missing or unusable gets 503, and the log names the place only."""
    (tmp_path / "acme.secret").write_text(f"{KEY} with a blank")
    stack = make_stack(keys=f"*=file://{tmp_path}/{{tenant}}.secret")
    for tenant in ("acme", "globex"):
        answer = stack.message(stack.access_token(stack.sandbox(tenant)))
        assert (answer.status, answer.json()["error"]["type"]) == (503, "api_error")
    eventually(lambda: "key_read_failed" in stack.log("proxy"))
    assert not [text for text in forms() if text in stack.log("proxy").encode()]


def test_row_45_nobody_writes_lines_of_the_log(world: World) -> None:
    """Row 45: line breaks, escapes and quotes of a client stay inside one JSON object a line."""
    inject = "%0d%0a{%22event%22:%22forged%22}%1b[2J"
    for path in (f"/v1/{inject}", f"/v1/models/{inject}", '/"},"event":"forged","x":{"'):
        world.ask("GET", path, authorization=f"Bearer {inject}", user_agent='"\x1b[2J\u00e9')
    reason = {"scope": "jti", "ident": "x", "reason": '\n{"event":"forged"}\u001b[2J'}
    world.stack.admin("POST", "/v1/revocations", reason)
    for name in ("proxy", "broker"):
        for line in world.stack.log(name).splitlines():
            assert json.loads(line)["event"] != "forged"
            assert line.isascii()
            assert line.isprintable()


def test_calls_at_once_mix_nothing_up(world: World) -> None:
    """Row 25: answers of 24 calls at once each hold what their own caller said."""
    world.upstream.reset()

    def one(number: int) -> bool:
        model = f"{MODEL}-{number:04d}"
        return str(world.stack.message(world.token, model=model).json()["model"]) == model

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(one, range(24)))
