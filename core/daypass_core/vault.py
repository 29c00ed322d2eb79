"""Vault or OpenBao, logged in: reads secrets (KV version 2), and asks what others ask through it.

Synchronous, so users call it in a thread. Every failure is one of the errors of `vault_errors`.
`vault_session` says when to log in, `vault_login` what with; the only file of core that reveals a
secret, and with `vault_errors` the only one that knows hvac.
"""

import time
from collections.abc import Callable, Mapping
from http.client import NO_CONTENT
from typing import Any

import hvac
import requests  # noqa: TID251  hvac's session and its answers; no request is made with it here

from daypass_core.log import event, get_logger, request_id
from daypass_core.secret import Secret
from daypass_core.vault_errors import (
    VaultBusy,
    VaultError,
    VaultMissing,
    VaultRefused,
    VaultUnavailable,
    body_of,
    translated,
)
from daypass_core.vault_gate import Gate
from daypass_core.vault_login import Login, Stamp
from daypass_core.vault_session import Granted, Session
from daypass_core.vault_settings import VaultSettings

__all__ = [
    "REQUEST_ID_HEADER", "TIMEOUT", "Vault", "VaultBusy", "VaultError", "VaultMissing",
    "VaultRefused", "VaultUnavailable",
]  # fmt: skip

log = get_logger(__name__)

TIMEOUT = 2
"""Seconds for one request: a frozen Vault must not hold a thread for hvac's 30."""
REQUEST_ID_HEADER = "X-Daypass-Request-Id"
"""Names the request that made us ask; an audit device shows it where it is told to."""


class Vault:
    """A logged-in client; may be used from several threads."""

    def __init__(
        self, settings: VaultSettings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self._http = requests.Session()
        # Neither proxies nor .netrc nor CA variables of the environment decide where keys travel.
        self._http.trust_env = False
        self._http.verify = str(settings.ca_file) if settings.ca_file else True
        self._http.auth = _with_request_id
        self._door = _Door(settings, self._connect)
        self._session = Session(self._door, monotonic)
        self._gate = Gate()

    @property
    def login(self) -> str:
        """The way to log in, for a person: no part of a token."""
        return self._door.words

    @property
    def logins(self) -> Mapping[str, int]:
        """How many logins were "ok" and "failed"."""
        return self._session.counts

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end of the token in use; None where there is none, or it is not known."""
        return self._session.seconds_left

    def reach(self) -> None:
        """Log in if that is due, and ask whether Vault serves; raises VaultError."""
        what = "vault health"
        with self._gate.passing(what):
            self._session.ensure()
            query = "standbyok=true&perfstandbyok=true"
            translated(lambda: self._door.plain.adapter.get(f"/v1/sys/health?{query}"), what)

    def read(self, mount: str, path: str, field: str) -> Secret:
        """Return the field of the latest version of a KV v2 secret.

        Raises VaultUnavailable, VaultRefused or VaultMissing.
        """
        where = f"{mount}/{path}"
        began = self._monotonic()
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
        # Without its last line break, as that of a file: `bao kv put … api_key=-` leaves one.
        value = value.rstrip("\r\n") if isinstance(value, str) else None
        if not value:
            raise VaultMissing(f"vault {where} has no text in field {field}")
        event(
            log,
            "vault_read",
            reference=f"vault://{where}#{field}",
            version=_version(data),
            ms=round((self._monotonic() - began) * 1000, 1),
        )
        return Secret(value)

    def ask(self, what: str, request: Callable[[Any], object]) -> dict[str, Any]:
        """Make one request with the logged-in `hvac.Client`; return the answer's JSON object.

        `what` names it in errors; an answer without content is an empty object. Raises
        VaultUnavailable, VaultRefused or VaultMissing. A 403 is answered with one new login and one
        more try, but not again and again: the token may have ended before its time, or the policy
        does not allow it, and Vault says the same to both.
        """
        what = f"vault {what}"
        with self._gate.passing(what):
            number = self._session.ensure()
            try:
                return self._ask_once(what, request)
            except VaultRefused:
                if not self._session.another(number):
                    raise
            try:
                answer = self._ask_once(what, request)
            except VaultMissing:
                self._session.helped()
                raise
            self._session.helped()
            return answer

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _ask_once(self, what: str, request: Callable[[Any], object]) -> dict[str, Any]:
        answer = translated(lambda: request(self._door.client), what)
        if isinstance(answer, requests.Response) and answer.status_code == NO_CONTENT:
            return {}
        return body_of(answer, what)

    def _connect(self, settings: VaultSettings, namespace: str | None) -> hvac.Client:
        return hvac.Client(
            url=settings.address,
            token="",  # never from VAULT_TOKEN or ~/.vault-token
            cert=("", ""),  # nor from VAULT_CLIENT_CERT
            timeout=TIMEOUT,
            allow_redirects=False,  # the token header would follow
            session=self._http,
            namespace=namespace,
        )


class _Door:
    """The `vault_session.Door`: logs in, and has the client that bears the token since."""

    def __init__(
        self,
        settings: VaultSettings,
        connect: Callable[[VaultSettings, str | None], hvac.Client],
    ) -> None:
        self._login = Login(settings)
        self.client = connect(settings, settings.namespace)
        # Without a token: an old one has no place in the request for the next.
        self._stranger = connect(settings, settings.namespace)
        self.plain = connect(settings, None)
        self.given = settings.token is not None or settings.token_file is not None
        self._of_a_file = settings.token_file is not None
        self._may_look = False

    @property
    def words(self) -> str:
        return self._login.words

    def stamp(self) -> Stamp:
        return self._login.stamp()

    def log_in(self) -> Granted:
        given = self._login.token()
        if given is not None:
            self.client.token = given.reveal()
            return Granted(self._life_of_given() if self._of_a_file else 0.0)
        asked, what = self._login.request(), f"vault {self.words}"
        fields = asked.public | {name: each.reveal() for name, each in asked.secret.items()}
        try:
            answer = translated(
                lambda: self._stranger.adapter.post(asked.path, json=fields),
                what,
                f"mount, role and {', '.join(asked.secret)}, and whether the method can be asked",
            )
        except VaultMissing:
            # It is said of the login: that a secret is gone nobody has said.
            raise VaultRefused(f"{what} was refused; there is no such mount") from None
        auth = body_of(answer, what).get("auth")
        if not isinstance(auth, dict) or not isinstance(auth.get("client_token"), str):
            raise VaultUnavailable(f"{what} answered without a token")
        self.client.token = auth["client_token"]
        return Granted(float(auth.get("lease_duration") or 0))

    def ended(self) -> bool:
        # A token that may not look at itself is refused as one that has ended: if it never could,
        # nobody knows.
        try:
            self._look_up()
        except VaultRefused:
            return self._may_look
        except VaultError:
            return False
        return False

    def _life_of_given(self) -> float:
        """Return how long a token from a file lives, 0 when its policy does not let it know."""
        try:
            return float(self._look_up().get("ttl") or 0)
        except (VaultRefused, VaultMissing, VaultBusy):
            return 0.0

    def _look_up(self) -> dict[str, Any]:
        """Return what Vault knows of the token in use; raises VaultError."""
        what = "vault token lookup"
        answer = translated(lambda: self.client.auth.token.lookup_self(), what)
        data = body_of(answer, what).get("data")
        self._may_look = isinstance(data, dict)
        return data if isinstance(data, dict) else {}


def _with_request_id(request: requests.PreparedRequest) -> requests.PreparedRequest:
    current = request_id.get()
    if current is not None:
        request.headers[REQUEST_ID_HEADER] = current
    return request


def _version(data: object) -> int | None:
    metadata = data.get("metadata") if isinstance(data, dict) else None
    version = metadata.get("version") if isinstance(metadata, dict) else None
    return version if isinstance(version, int) else None
