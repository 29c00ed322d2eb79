"""The HTTP caller: addresses, trust, forward proxies, and what each kind of refusal becomes."""

import datetime
import http.server
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from daypass import DaypassError, Refused, Revoked, SettingsError, Unavailable, Unreachable
from daypass._http import Answer, Origin, refusal
from daypass._settings import bare_origin, proxy_for
from tests.unit.sdk.token_server import JWT_BEARER, LAUNCH, token_server


@contextmanager
def recording(tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[str]]]:
    """A server that answers `{}` and notes the request targets it saw."""
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(302 if self.path.endswith("/away") else 200)
            self.send_header("location", "http://127.0.0.1:1/")
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def do_CONNECT(self) -> None:
            seen.append(f"CONNECT {self.path}")
            self.send_error(403)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server context with a certificate of its own for 127.0.0.1, and that certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context, folder / "cert.pem"


def test_a_path_prefix_is_kept() -> None:
    """A base URL with a path puts it before ours."""
    with recording() as (address, seen):
        Origin(f"http://{address}/p/").call("GET", "/v1/x", query={"a": "b c", "none": None})
    assert seen == ["/p/v1/x?a=b+c"]


def test_unix_sockets_are_spoken_to(tmp_path: Path) -> None:
    """`unix:/path` is an address like any other."""
    with token_server(tmp_path / "s.sock") as server:
        body = {"grant_type": JWT_BEARER, "assertion": LAUNCH}
        assert Origin(server.url).call("POST", "/v1/oauth/token", body=body).status == 200
    with pytest.raises(Unreachable, match="nothing listens at unix:"):
        Origin(server.url).call("GET", "/")


def test_redirects_are_not_followed() -> None:
    """A redirect is an answer, so no credential goes where nobody sent it."""
    with recording() as (address, seen):
        assert Origin(f"http://{address}").call("GET", "/away").status == 302
    assert len(seen) == 1


def test_a_certificate_must_be_trusted(tmp_path: Path) -> None:
    """An unknown CA is refused with the variable that helps; a given CA file is trusted."""
    context, ca_file = certificate(tmp_path)
    with recording(context) as (address, _):
        with pytest.raises(Unreachable, match="SSL_CERT_FILE") as caught:
            Origin(f"https://{address}").call("GET", "/")
        assert not caught.value.sent
        assert Origin(f"https://{address}", ca_file=ca_file).call("GET", "/").status == 200
    with pytest.raises(SettingsError, match="cannot read the CA file"):
        Origin(f"https://{address}", ca_file=tmp_path / "none").call("GET", "/")


def test_a_forward_proxy_is_used_beyond_loopback_only() -> None:
    """HTTPS_PROXY is honoured for other machines; plain http is loopback and never proxied."""
    with recording() as (address, seen), recording() as (direct, direct_seen):
        env = {"http_proxy": f"http://{address}", "HTTPS_PROXY": address}
        with pytest.raises(Unreachable):
            Origin("https://broker.internal", env=env).call("GET", "/v1/y")
        Origin(f"http://{direct}", env=env).call("GET", "/v1/z")
    assert seen == ["CONNECT broker.internal:443"]
    assert direct_seen == ["/v1/z"]


@pytest.mark.parametrize(
    ("host", "used"),
    [
        ("broker.example.com", True),
        ("broker.internal", False),
        ("internal", False),
        ("notinternal", True),
        ("10.0.0.7", False),
        ("localhost", False),
        ("127.0.0.9", False),
        ("::1", False),
    ],
)
def test_no_proxy_is_honoured(host: str, used: bool) -> None:
    """NO_PROXY names hosts, their subdomains and addresses, with or without a port."""
    env = {"https_proxy": "http://p:1", "NO_PROXY": "x.example, .internal,10.0.0.7:443"}
    assert (proxy_for("https", host, env) is not None) is used
    assert proxy_for("https", host, {**env, "NO_PROXY": "*"}) is None


@pytest.mark.parametrize(
    ("given", "bare"),
    [
        ("https://p/", "https://p"),
        ("https://p/v1", "https://p"),
        ("https://p/v1/", "https://p"),
        ("https://p/team/v1", "https://p/team"),
        ("http://127.0.0.1:8788", "http://127.0.0.1:8788"),
        ("unix:/run/p.sock", "unix:/run/p.sock"),
    ],
)
def test_base_urls_become_bare_origins(given: str, bare: str) -> None:
    """B46: official clients add `/v1` themselves, so it is taken off."""
    assert bare_origin(given) == bare


@pytest.mark.parametrize("given", ["proxy:8700", "ftp://p", "https://", "http://proxy"])
def test_a_base_url_that_cannot_work_is_refused(given: str) -> None:
    """No scheme, a foreign one, no host, or credentials in the clear: said at once."""
    with pytest.raises(SettingsError):
        bare_origin(given)


def answer(status: int, body: object, **headers: str) -> Answer:
    """An answer as it comes off the wire."""
    return Answer(status, headers, body if isinstance(body, bytes) else json.dumps(body).encode())


def test_https_to_a_plain_service_is_said() -> None:
    """The usual mistake on loopback, in words instead of those of the TLS library."""
    with recording() as (address, seen):
        origin = Origin(f"https://{address}")
        with pytest.raises(Unreachable, match="does not speak https; write http://"):
            origin.call("GET", "/")
    assert seen == []


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (answer(400, {"error": "invalid_grant"}), Revoked, "invalid_grant; ask whoever"),
        (answer(400, {"error": "invalid_request"}), Refused, "check the launch credential"),
        (answer(400, {"error": "slow_down"}), Unavailable, "slow_down"),
        (answer(503, b""), Unavailable, "answered 503"),
        (answer(403, {"title": "t", "detail": "models: no", "code": "c"}), Refused, "models: no"),
        (answer(401, {"title": "unknown credential"}), Refused, "meant for another broker"),
        (answer(404, {"type": "error", "error": {"message": "no route"}}), Refused, "no route"),
        (answer(502, b"<html>"), Refused, "check that the address is a daypass service"),
        (answer(200, {"error": 5}), Refused, "without a reason"),
    ],
)
def test_each_dialect_of_refusal_is_understood(
    given: Answer, kind: type[DaypassError], words: str
) -> None:
    """Problems, OAuth errors and the provider's shape become one of ours that says what to do."""
    error = refusal(given)
    assert type(error) is kind
    assert words in str(error)


def test_a_refusal_names_its_field() -> None:
    """The field of a problem document is kept, so that a program can use it."""
    error = refusal(answer(403, {"title": "no", "code": "beyond_profile", "field": "budget_usd"}))
    assert isinstance(error, Refused)
    assert (error.status, error.code, error.field) == (403, "beyond_profile", "budget_usd")


def test_retry_after_is_read() -> None:
    """Seconds are kept, anything else is no figure."""
    for text, seconds in (("2", 2.0), ("-1", 0.0), ("soon", None)):
        error = refusal(Answer(503, {"retry-after": text}, b""))
        assert isinstance(error, Unavailable)
        assert error.retry_after == seconds
