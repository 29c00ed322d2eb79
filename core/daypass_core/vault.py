"""Vault or OpenBao, logged in: reads secrets (KV version 2), and asks what others ask through it.

The only file that knows hvac's errors and logins.

Synchronous, so users call it in a thread. Every failure becomes one of three errors, and the
difference matters to callers: `VaultUnavailable` passes (keep the last good value), `VaultRefused`
needs an operator, `VaultMissing` means there is nothing to read. Their messages name mount, path
and field, never values.
"""

import threading
import time
from collections.abc import Callable
from http.client import NO_CONTENT
from typing import Any, NoReturn, TypeVar

import hvac
import hvac.exceptions as vault_errors
import requests  # noqa: TID251  hvac lets its exceptions through; no request is made with it here

from daypass_core.secret import Secret, SecretUnreadable, read_secret_file
from daypass_core.vault_settings import VaultSettings

TIMEOUT = 2
"""Seconds for one request: a frozen Vault must not hold a thread for hvac's 30."""
_SPARE = 0.2  # an AppRole token is replaced when this share of its lease is left
_T = TypeVar("_T")
# Vault answers 403 to a bad token, an expired one and a missing policy alike.
_REFUSED = (
    vault_errors.Forbidden,
    vault_errors.Unauthorized,
    vault_errors.InvalidRequest,
    vault_errors.UnsupportedOperation,
    vault_errors.ParamValidationError,
)


class VaultError(Exception):
    """Base of the three."""


class VaultUnavailable(VaultError):
    """Vault cannot answer now: down, sealed, too slow, over its rate limit, redirecting."""


class VaultRefused(VaultError):
    """Vault answered no: credentials or policy."""


class VaultMissing(VaultError):
    """The path, its latest version, or the field does not exist or is empty."""


class Vault:
    """A logged-in client; may be used from several threads."""

    def __init__(
        self, settings: VaultSettings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._lock = threading.Lock()  # one login at a time
        self._login_due = 0.0  # monotonic second; infinity for tokens we are given
        self._logins = 0
        session = requests.Session()
        # Neither proxies nor .netrc nor CA variables of the environment decide where keys travel.
        session.trust_env = False
        session.verify = str(settings.ca_file) if settings.ca_file else True
        self._client = hvac.Client(
            url=settings.address,
            token="",  # never from VAULT_TOKEN or ~/.vault-token
            timeout=TIMEOUT,
            allow_redirects=False,  # the token header would follow
            session=session,
            namespace=settings.namespace,
        )

    def read(self, mount: str, path: str, field: str) -> Secret:
        """Return the field of the latest version of a KV v2 secret.

        Raises VaultUnavailable, VaultRefused or VaultMissing.
        """
        where = f"{mount}/{path}"
        body = self.ask(
            f"read of {where}",
            lambda client: client.secrets.kv.v2.read_secret_version(
                path=path, mount_point=mount, raise_on_deleted_version=True
            ),
        )
        data = body.get("data")
        values = data.get("data") if isinstance(data, dict) else None
        if not isinstance(values, dict):  # null data: a deleted version, or a KV v1 mount
            raise VaultMissing(f"vault {where} has no current version")
        value = values.get(field)
        if not isinstance(value, str) or not value:
            raise VaultMissing(f"vault {where} has no text in field {field}")
        return Secret(value)

    def ask(self, what: str, request: Callable[[Any], object]) -> dict[str, Any]:
        """Make one request with the logged-in `hvac.Client`; return the answer's JSON object.

        `what` names it in errors; an answer without content is an empty object. Raises
        VaultUnavailable, VaultRefused or VaultMissing. A 403 is answered with one new login and one
        more try: the token may have ended before its lease did.
        """
        logins = self._login_if_due()
        try:
            return self._ask_once(f"vault {what}", request)
        except VaultRefused:
            if self._settings.token is not None:
                raise
            self._login_again(logins)
            return self._ask_once(f"vault {what}", request)

    def close(self) -> None:
        """Close the connections."""
        self._client.adapter.close()

    def _ask_once(self, what: str, request: Callable[[Any], object]) -> dict[str, Any]:
        answer = _translated(lambda: request(self._client), what)
        if isinstance(answer, requests.Response) and answer.status_code == NO_CONTENT:
            return {}
        return _body(answer, what)

    def _login_if_due(self) -> int:
        """Log in when the token is absent or near its end; return the count of logins so far."""
        with self._lock:
            if self._monotonic() >= self._login_due:
                self._login()
            return self._logins

    def _login_again(self, seen: int) -> None:
        """Log in after a refusal, unless another thread has done so since `seen`."""
        with self._lock:
            if self._logins == seen:
                self._login()

    def _login(self) -> None:
        settings = self._settings
        if settings.token_file is not None:
            try:
                self._client.token = read_secret_file(settings.token_file).reveal()
            except SecretUnreadable as error:
                raise VaultRefused(f"vault token file: {error}") from None
            lease = 0.0
        elif settings.token is not None:
            self._client.token = settings.token.reveal()
            lease = 0.0
        else:
            lease = self._login_approle()
        # A fresh login instead of renewals: those shorten silently near the maximum life.
        self._login_due = self._monotonic() + lease * (1 - _SPARE) if lease else float("inf")
        self._logins += 1

    def _login_approle(self) -> float:
        """Exchange role and secret id for a token; return its lease in seconds, 0 for no end."""
        settings = self._settings
        role_id, secret_id = settings.role_id, settings.secret_id
        assert role_id is not None  # VaultSettings saw to both
        assert secret_id is not None
        answer = _translated(
            lambda: self._client.auth.approle.login(
                role_id=role_id, secret_id=secret_id.reveal(), use_token=False
            ),
            "vault AppRole login",
        )
        auth = _body(answer, "vault AppRole login").get("auth")
        if not isinstance(auth, dict) or not isinstance(auth.get("client_token"), str):
            raise VaultUnavailable("vault AppRole login answered without a token")
        self._client.token = auth["client_token"]
        return float(auth.get("lease_duration") or 0)


def _translated(request: Callable[[], _T], what: str) -> _T:
    """Run one hvac request and turn every foreign exception into one of ours."""
    try:
        return request()
    except vault_errors.InvalidPath:
        raise VaultMissing(f"{what}: no such path or its latest version is deleted") from None
    except _REFUSED:
        raise VaultRefused(f"{what} was refused; check token, policy and path") from None
    except vault_errors.VaultDown:
        raise VaultUnavailable(f"{what} failed: sealed or in standby") from None
    except (vault_errors.VaultError, requests.RequestException, ValueError) as error:
        _unavailable(what, error)


def _unavailable(what: str, error: Exception) -> NoReturn:
    # The class only: texts of requests hold whole URLs, texts of Vault may hold anything.
    raise VaultUnavailable(f"{what} failed: {type(error).__name__}") from None


def _body(answer: object, what: str) -> dict[str, Any]:
    """Return the decoded body; hvac hands out the raw response for whatever is not 200."""
    if not isinstance(answer, dict):
        raise VaultUnavailable(f"{what} was redirected; set the address of the active node")
    return answer
