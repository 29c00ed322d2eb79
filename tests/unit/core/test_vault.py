"""Vault answers that a healthy server does not give."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from daypass_core.secret import Secret
from daypass_core.vault import (
    Vault,
    VaultError,
    VaultMissing,
    VaultRefused,
    VaultUnavailable,
)
from daypass_core.vault_settings import VaultSettings

GOOD = {"data": {"data": {"api_key": "sk-good"}}}


class Answers:
    """What the odd server says next, and what it was sent."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body: bytes = json.dumps(GOOD).encode()
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.address = ""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    """A server that answers every request as it is told, however long its thread takes."""
    monkeypatch.setattr("daypass_core.vault.TIMEOUT", 60)
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            answers.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
            self.send_response(answers.status)
            for name, value in answers.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answers.body)))
            self.end_headers()
            self.wfile.write(answers.body)

        do_GET = do_POST = answer

        def log_message(self, *_: Any) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        answers.address = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield answers
        http.shutdown()
        thread.join()


@pytest.fixture
def vault(server: Answers) -> Iterator[Vault]:
    """A reader with a token."""
    vault = Vault(VaultSettings(server.address, token=Secret("the-token"), namespace="team"))
    yield vault
    vault.close()


def test_request(server: Answers, vault: Vault) -> None:
    """A read asks for the path in the namespace with the token, and nothing else."""
    assert vault.read("secret", "llm/acme", "api_key") == Secret("sk-good")
    ((path, headers),) = server.requests
    assert path == "/v1/secret/data/llm/acme"
    assert headers["x-vault-token"] == "the-token"
    assert headers["x-vault-namespace"] == "team"


def test_redirects_are_not_followed(server: Answers, vault: Vault) -> None:
    """A redirect is not followed: the token would go along (row 14)."""
    server.status, server.body = 307, b""
    server.headers = {"location": f"{server.address}/elsewhere"}
    with pytest.raises(VaultUnavailable, match="redirected"):
        vault.read("secret", "llm/acme", "api_key")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, VaultRefused),
        (401, VaultRefused),
        (403, VaultRefused),
        (404, VaultMissing),
        (412, VaultUnavailable),
        (429, VaultUnavailable),
        (500, VaultUnavailable),
        (501, VaultUnavailable),
        (502, VaultUnavailable),
        (503, VaultUnavailable),
        (504, VaultUnavailable),
        (418, VaultUnavailable),
    ],
)
def test_statuses(server: Answers, vault: Vault, status: int, error: type[VaultError]) -> None:
    """Each status is one of our three errors, and the server's text is not repeated."""
    server.status, server.body = status, b'{"errors": ["sk-leak"], "data": "sk-leak"}'
    server.headers = {"content-type": "application/json"}
    with pytest.raises(error) as caught:
        vault.read("secret", "llm/acme", "api_key")
    assert "secret/llm/acme" in str(caught.value)
    assert "leak" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "body",
    [b"", b"<h1>default backend - 404</h1>", b"[]", b'"text"', b'{"message": "no route"}',
     b'{"errors": [{"code": 7003}]}'],
)  # fmt: skip
def test_a_404_of_something_before_vault(server: Answers, vault: Vault, body: bytes) -> None:
    """A proxy before Vault that knows no way to it does not say that a secret is gone."""
    server.status, server.body = 404, body
    server.headers = {"content-type": "application/json" if body[:1] in b'[{"' else "text/html"}
    with pytest.raises(VaultUnavailable, match="secret/llm/acme"):
        vault.read("secret", "llm/acme", "api_key")


@pytest.mark.parametrize("body", [b"[]", b'"text"', b'{"errors": [{"a": 1}]}', b'{"errors": 5}'])
@pytest.mark.parametrize("status", [403, 502])
def test_errors_in_another_form(server: Answers, vault: Vault, status: int, body: bytes) -> None:
    """JSON of something before Vault, which hvac does not foresee, is unavailable and no crash."""
    server.status, server.body = status, body
    server.headers = {"content-type": "application/json"}
    for ask in (vault.reach, lambda: vault.read("secret", "llm/acme", "api_key")):
        with pytest.raises(VaultUnavailable):
            ask()


def test_a_deleted_version(server: Answers, vault: Vault) -> None:
    """Vault's own 404 of a deleted version has no errors, but metadata: it is missing."""
    body = {"data": {"data": None, "metadata": {"version": 2, "deletion_time": "2026-12-01"}}}
    server.status, server.body = 404, json.dumps(body).encode()
    server.headers = {"content-type": "application/json"}
    with pytest.raises(VaultMissing):
        vault.read("secret", "llm/acme", "api_key")


def test_an_authority_that_is_not_there(tmp_path: Path) -> None:
    """B23: while the CA file is being replaced Vault is unavailable, and nothing else is raised."""
    settings = VaultSettings("https://127.0.0.1:1", token=Secret("t"), ca_file=tmp_path / "absent")
    vault = Vault(settings)
    for ask in (vault.reach, lambda: vault.read("secret", "llm/acme", "api_key")):
        with pytest.raises(VaultUnavailable, match="OSError"):
            ask()
    vault.close()


def test_a_login_that_is_not_found(server: Answers) -> None:
    """A 404 of the login is a refusal: it does not say that the secret is gone."""
    server.status, server.body = 404, b'{"errors": ["no handler for route"]}'
    vault = Vault(VaultSettings(server.address, role_id="role", secret_id=Secret("id")))
    with pytest.raises(VaultRefused, match="AppRole login at auth/approle"):
        vault.read("secret", "llm/acme", "api_key")
    vault.close()


def test_variables_of_other_programs(server: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client certificate that is meant for another program is not looked for."""
    monkeypatch.setattr("hvac.v1.VAULT_CLIENT_CERT", "/absent.pem")
    vault = Vault(VaultSettings(server.address, token=Secret("the-token")))
    assert vault.read("secret", "llm/acme", "api_key") == Secret("sk-good")
    vault.close()


def test_a_final_line_break(server: Answers, vault: Vault) -> None:
    """A key that was written with a line break behind it is read without it, as from a file."""
    server.body = json.dumps({"data": {"data": {"api_key": "sk-good\r\n"}}}).encode()
    assert vault.read("secret", "llm/acme", "api_key") == Secret("sk-good")
    server.body = json.dumps({"data": {"data": {"api_key": "\n"}}}).encode()
    with pytest.raises(VaultMissing):
        vault.read("secret", "llm/acme", "api_key")


@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b'"text"', b"\xff"])
def test_bodies_that_are_no_answer(server: Answers, vault: Vault, body: bytes) -> None:
    """A 200 without a JSON object is unavailable, not a crash."""
    server.body = body
    with pytest.raises(VaultUnavailable):
        vault.read("secret", "llm/acme", "api_key")


@pytest.mark.parametrize("body", [{}, {"data": None}, {"data": {"data": None}}, {"data": []}])
def test_bodies_without_data(server: Answers, vault: Vault, body: object) -> None:
    """Null data, which deleted versions have, is missing and never the word None."""
    server.body = json.dumps(body).encode()
    with pytest.raises(VaultMissing):
        vault.read("secret", "llm/acme", "api_key")


@pytest.mark.parametrize("body", [{}, {"auth": None}, {"auth": {"client_token": None}}])
def test_login_without_a_token(server: Answers, body: object) -> None:
    """A login that answers without a token is unavailable."""
    server.body = json.dumps(body).encode()
    vault = Vault(VaultSettings(server.address, role_id="role", secret_id=Secret("id")))
    with pytest.raises(VaultUnavailable, match="without a token"):
        vault.read("secret", "llm/acme", "api_key")
    vault.close()


def test_token_that_cannot_be_sent(server: Answers) -> None:
    """A token that is no header value is an error of ours that does not repeat it."""
    vault = Vault(VaultSettings(server.address, token=Secret("to\u20acken\nx")))
    with pytest.raises(VaultUnavailable) as caught:
        vault.read("secret", "llm/acme", "api_key")
    assert "ken" not in str(caught.value)
    vault.close()


def test_settings(tmp_path: Path) -> None:
    """Exactly one way to log in must be given."""
    token = Secret("t")
    wrong: list[dict[str, Any]] = [
        {},
        {"token": token, "token_file": tmp_path},
        {"role_id": "r"},
        {"secret_id": token},
        {"token": token, "role_id": "r", "secret_id": token},
    ]
    for ways in wrong:
        with pytest.raises(ValueError, match="vault"):
            VaultSettings("http://127.0.0.1:8200", **ways)


def test_nothing_secret_is_shown(tmp_path: Path) -> None:
    """Settings can be logged."""
    shown = repr(VaultSettings("http://a", role_id="r", secret_id=Secret("hunter2")))
    assert "hunter2" not in shown
