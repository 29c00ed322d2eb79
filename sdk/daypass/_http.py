"""A small HTTP caller: one request, one answer, no redirects, no third-party package.

`Origin` speaks to one server over http, https or a Unix socket. `refusal` turns the error
dialects a daypass service can answer in (RFC 9457 problems, RFC 6749 §5.2 errors, the Anthropic
error shape of the proxy and OpenAI's) into the SDK's own errors.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from daypass import __version__
from daypass._errors import (
    DaypassError,
    Refused,
    Revoked,
    SettingsError,
    Unavailable,
    Unreachable,
)
from daypass._settings import proxy_for

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
# The largest honest answer is a long usage listing.
MAX_ANSWER_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Answer:
    """What came back: status, headers with lower-case names, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> object:
        """The body as JSON; raises `Refused` when it is not."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise Refused(
                f"the answer (status {self.status}) is not JSON",
                hint="check that the address is a daypass service",
                status=self.status,
            ) from None


class Origin:
    """One server: `http://host[:port][/prefix]`, the same with https, or `unix:/path`."""

    def __init__(
        self,
        url: str,
        *,
        ca_file: Path | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url
        self._ca_file = ca_file
        self._connect_seconds = connect_seconds
        self._answer_seconds = answer_seconds
        self._env = env
        self._parts = urlsplit(url)

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request and read the whole answer, whatever its status.

        `body` is sent as JSON, `raw` as it is. Raises `Unreachable` when there is no answer.
        """
        sending = {"accept": "application/json", "user-agent": f"daypass/{__version__}"}
        data = raw
        if body is not None:
            data = json.dumps(body).encode()
            sending["content-type"] = "application/json"
        sending.update(headers or {})
        given = {key: value for key, value in (query or {}).items() if value is not None}
        target = f"{path}?{urlencode(given)}" if given else path
        connection = self.connection()
        try:
            try:
                connection.connect()
            except (OSError, http.client.HTTPException) as error:
                raise self.unreachable(error, sent=False) from None
            connection.sock.settimeout(self._answer_seconds)
            try:
                connection.request(method, self.target(target), body=data, headers=sending)
                return self._read(connection.getresponse())
            except (OSError, http.client.HTTPException) as error:
                raise self.unreachable(error, sent=True) from None
        finally:
            connection.close()

    def _read(self, response: http.client.HTTPResponse) -> Answer:
        body = response.read(MAX_ANSWER_BYTES + 1)
        if len(body) > MAX_ANSWER_BYTES:
            raise Refused(
                f"{self.url} answered more than {MAX_ANSWER_BYTES} bytes",
                hint="ask for less",
                status=response.status,
            )
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, body)

    def connection(self) -> http.client.HTTPConnection:
        """A connection that is still to be made, for who reads its answer piece by piece."""
        parts, timeout = self._parts, self._connect_seconds
        if parts.scheme == "unix":
            return _UnixConnection(parts.path, timeout)
        host = parts.hostname or ""
        if parts.scheme == "http":  # loopback, or `bare_origin` would have refused it
            return http.client.HTTPConnection(host, parts.port, timeout=timeout)
        proxy = proxy_for(parts.scheme, host, self._env)
        via = urlsplit("" if not proxy else proxy if "//" in proxy else f"//{proxy}")
        if proxy and via.scheme not in ("", "http"):
            raise SettingsError(
                f"cannot reach {host} through the {via.scheme or 'given'} proxy",
                hint="use an http proxy, or add the host to NO_PROXY",
            )
        near = (via.hostname or "", via.port) if proxy else (host, parts.port)
        connection = http.client.HTTPSConnection(
            near[0], near[1], timeout=timeout, context=self._trust()
        )
        if proxy:
            connection.set_tunnel(host, parts.port or 443)
        return connection

    def _trust(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=str(self._ca_file) if self._ca_file else None)
        except OSError as error:
            raise SettingsError(
                f"cannot read the CA file {self._ca_file}: {error.strerror or error}",
                hint="check the path",
            ) from None

    def target(self, path: str) -> str:
        """The request target for a path below the base URL."""
        if self._parts.scheme == "unix":
            return path
        return self._parts.path.rstrip("/") + path

    def unreachable(self, error: Exception, *, sent: bool) -> Unreachable:
        """What a failed connection means, in words."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return Unreachable(
                f"the certificate of {self.url} is not trusted: {error.verify_message}",
                hint="set SSL_CERT_FILE to the CA of the proxy; for the broker pass --ca-file",
                sent=sent,
            )
        if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
            return Unreachable(
                f"{self.url} does not speak https",
                hint="write http:// for a service on loopback without --tls",
                sent=sent,
            )
        if isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
            return Unreachable(f"nothing listens at {self.url}", sent=False)
        if isinstance(error, TimeoutError):
            return Unreachable(f"{self.url} did not answer in time", sent=sent)
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Unreachable(f"no answer from {self.url}: {text or type(error).__name__}", sent=sent)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def may_renew(status: int, retry: str | None, challenge: str | None) -> bool:
    """Whether an answer says that a new token would do: 401, and not for good.

    `retry` is its `x-should-retry`, `challenge` its `www-authenticate`. Stock clients with a token
    that they cannot renew are not to come again, so an expired one is told apart by RFC 6750's
    words; a revoked sandbox says nothing of the kind.
    """
    return status == 401 and (retry != "false" or "expired" in (challenge or ""))


def refusal(answer: Answer) -> DaypassError:
    """The error that an answer with a status of 300 or more stands for."""
    try:
        found = json.loads(answer.body)
    except ValueError:
        found = None
    found = found if isinstance(found, dict) else {}
    retry_after = _seconds(answer.headers.get("retry-after"))
    if isinstance(found.get("error"), str):  # RFC 6749 §5.2
        return _oauth(found, answer.status, retry_after)
    if isinstance(found.get("error"), dict):  # the shapes of Anthropic and OpenAI
        inner = found["error"]
        code = inner.get("code") or inner.get("type")
        found = {"title": inner.get("message"), "code": code, "field": inner.get("param")}
    text = str(found.get("detail") or found.get("title") or "")
    code = found.get("code")
    if answer.status in (429, 503, 529):  # the last one is Anthropic's
        return Unavailable(text or f"answered {answer.status}", retry_after=retry_after)
    hint = _HINTS.get(answer.status, "") if text else "check that the address is a daypass service"
    return Refused(
        text or f"answered {answer.status} without a reason",
        hint=hint,
        status=answer.status,
        code=str(code) if code else None,
        field=str(found["field"]) if found.get("field") else None,
    )


_HINTS = {401: "check the credential: it may be revoked or meant for another broker"}


def _oauth(found: dict[str, object], status: int, retry_after: float | None) -> DaypassError:
    code = str(found["error"])
    described = found.get("error_description")
    text = str(described or code)
    if code == "invalid_grant":
        # The broker's own words say what to do.
        return Revoked(text, hint="" if described else None, status=status, code=code)
    if code == "slow_down" or status in (429, 503):
        return Unavailable(text, retry_after=retry_after)
    hint = "" if described else "check the launch credential"
    return Refused(text, hint=hint, status=status, code=code)


def _seconds(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value else None
    except ValueError:
        return None
