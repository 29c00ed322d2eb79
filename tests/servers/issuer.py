"""An issuer of workload assertions over TLS: discovery, key set, signed tokens of any kind.

`Issuer.token` signs what an honest issuer signs; `sign` whatever a test thinks of. The server
counts what it is asked, and `behave` makes it fail in its own ways.
"""

import base64
import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import jwt.algorithms
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tests.servers.ca import Authority

AUDIENCE = "https://daypass.test"
Handler = http.server.BaseHTTPRequestHandler


def encode(data: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class SigningPair:
    """A key pair of one algorithm, its JWK, and its signatures."""

    def __init__(self, algorithm: str, kid: str) -> None:
        self.algorithm, self.kid = algorithm, kid
        self.private: Any
        if algorithm in ("RS256", "PS256"):
            self.private = rsa.generate_private_key(65537, 2048)
            made = jwt.algorithms.RSAAlgorithm.to_jwk(self.private.public_key())
        elif algorithm in ("ES256", "ES384"):
            curve = ec.SECP256R1() if algorithm == "ES256" else ec.SECP384R1()
            self.private = ec.generate_private_key(curve)
            made = jwt.algorithms.ECAlgorithm.to_jwk(self.private.public_key())
        else:
            self.private = ed25519.Ed25519PrivateKey.generate()
            made = jwt.algorithms.OKPAlgorithm.to_jwk(self.private.public_key())
        self.jwk: dict[str, Any] = {**json.loads(made), "kid": kid, "use": "sig"}
        self.jwk.pop("key_ops", None)

    def sign(self, message: bytes) -> bytes:
        """Sign as JWS does."""
        if self.algorithm == "RS256":
            return bytes(self.private.sign(message, padding.PKCS1v15(), hashes.SHA256()))
        if self.algorithm == "PS256":
            pss = padding.PSS(padding.MGF1(hashes.SHA256()), 32)
            return bytes(self.private.sign(message, pss, hashes.SHA256()))
        if self.algorithm == "EdDSA":
            return bytes(self.private.sign(message))
        size, digest = (32, hashes.SHA256()) if self.algorithm == "ES256" else (48, hashes.SHA384())
        r, s = decode_dss_signature(self.private.sign(message, ec.ECDSA(digest)))
        return r.to_bytes(size, "big") + s.to_bytes(size, "big")


def sign(pair: SigningPair, header: Mapping[str, object], payload: object) -> str:
    """Sign any header over any payload: an object becomes JSON, bytes go as they are."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    message = f"{encode(json.dumps(header).encode())}.{encode(body)}"
    return f"{message}.{encode(pair.sign(message.encode()))}"


class TlsServer:
    """Answers on a loopback port with a certificate of the test's authority."""

    def __init__(self, authority: Authority) -> None:
        self.requests: list[tuple[str, str, bytes]] = []
        self.behave: Callable[[Handler], bool] | None = None
        outer = self

        class Answering(Handler):
            def do_GET(self) -> None:
                outer._take(self, b"")

            def do_POST(self) -> None:
                outer._take(self, self.rfile.read(int(self.headers.get("content-length", "0"))))

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                pass  # clients hang up on purpose

        self._server = Server(("127.0.0.1", 0), Answering)
        self._server.daemon_threads = True
        context = authority.server("127.0.0.1", "localhost")
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        assert isinstance(context, ssl.SSLContext)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, object]:
        """Status and JSON for a request."""
        raise NotImplementedError

    def _take(self, request: Handler, body: bytes) -> None:
        self.requests.append((request.command, request.path, body))
        if self.behave is not None and self.behave(request):
            return
        status, document = self.answer(request.path, body, dict(request.headers))
        reply(request, status, json.dumps(document).encode())


def reply(request: Handler, status: int, body: bytes, **headers: str) -> None:
    """Answer a request."""
    request.send_response(status)
    request.send_header("content-length", str(len(body)))
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)


class Issuer(TlsServer):
    """An issuer with one key of each algorithm; `keys` is what its key set has."""

    def __init__(self, authority: Authority) -> None:
        super().__init__(authority)
        self.pairs = {
            name: SigningPair(name, f"key-{name.lower()}")
            for name in ("RS256", "PS256", "ES256", "ES384", "EdDSA")
        }
        self.keys: list[dict[str, Any]] = [pair.jwk for pair in self.pairs.values()]
        self.named = self.url  # what discovery says the issuer is

    def answer(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, object]:
        """Discovery and the key set."""
        if path == "/.well-known/openid-configuration":
            return 200, {"issuer": self.named, "jwks_uri": f"{self.url}/keys"}
        return (200, {"keys": self.keys}) if path == "/keys" else (404, {})

    @property
    def asked(self) -> list[str]:
        """The paths that were asked for."""
        return [path for _, path, _ in self.requests]

    def claims(self, now: float | None = None, **claims: object) -> dict[str, object]:
        """The claims of an assertion of five minutes; None takes one away."""
        second = int(time.time() if now is None else now)
        usual: dict[str, object] = {"iss": self.url, "aud": AUDIENCE, "sub": "workload-1"}
        usual |= {"iat": second, "nbf": second, "exp": second + 300, "jti": f"jti-{second}"}
        return {name: value for name, value in (usual | claims).items() if value is not None}

    def token(self, *, algorithm: str = "ES256", now: float | None = None, **claims: object) -> str:
        """An assertion as an honest issuer signs it."""
        pair = self.pairs[algorithm]
        header = {"alg": algorithm, "kid": pair.kid, "typ": "JWT"}
        return sign(pair, header, self.claims(now, **claims))
