"""Where Vault or OpenBao is and how to log in: the settings that broker and proxy share.

Without hvac, so that a service that needs no Vault does not load it; `vault_login` says what each
way to log in sends, `vault` does the talking.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from daypass_core.secret import Secret, SecretUnreadable, read_secret_file
from daypass_core.settings import Reader

_ADDRESS = "DAYPASS_VAULT_ADDR"
_AUTH = "DAYPASS_VAULT_AUTH"
_TOKEN_FILE = "DAYPASS_VAULT_TOKEN_FILE"  # noqa: S105 - a name
_ROLE_ID = "DAYPASS_VAULT_ROLE_ID"
_SECRET_ID_FILE = "DAYPASS_VAULT_SECRET_ID_FILE"  # noqa: S105 - a name
_ROLE = "DAYPASS_VAULT_ROLE"
_JWT_FILE = "DAYPASS_VAULT_JWT_FILE"
_MOUNT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""Where Kubernetes mounts a pod's own token."""


class Auth(StrEnum):
    """The ways to log in; but for `TOKEN` each is named as its auth method is."""

    TOKEN = "token"  # noqa: S105 - a name
    APPROLE = "approle"
    KUBERNETES = "kubernetes"
    JWT = "jwt"


@dataclass(frozen=True, slots=True)
class VaultSettings:
    """How to reach Vault, and exactly one way to log in.

    `token` or `token_file`; `role_id` with `secret_id` or `secret_id_file`; `role` with `jwt_file`.
    Of the last, `auth` says whether a cluster reviews the token (kubernetes) or its signature is
    checked (jwt): without it jwt where there is a `jwt_file`, else kubernetes. `mount` is that of
    the auth method, by default its name. Files are read again at each login.
    """

    address: str
    token: Secret | None = None
    token_file: Path | None = None
    role_id: str | None = None
    secret_id: Secret | None = None
    secret_id_file: Path | None = None
    ca_file: Path | None = None
    namespace: str | None = None
    auth: Auth | None = None
    role: str | None = None
    jwt_file: Path | None = None
    mount: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError, in the words of the settings, unless one way to log in is given."""
        given = self._given()
        if len(given) != 1:
            raise ValueError(
                f"vault needs exactly one way to log in: {_TOKEN_FILE}, or {_ROLE_ID} with"
                f" {_SECRET_ID_FILE}, or {_ROLE} (kubernetes), or {_ROLE} with {_JWT_FILE} (jwt)"
            )
        if self.auth is not None and self.auth not in given[0]:
            raise ValueError(f"{_AUTH} is {self.auth}, but another way to log in is set for vault")
        secret_ids = (self.secret_id is not None) + (self.secret_id_file is not None)
        if (self.role_id is not None) != (secret_ids == 1) or secret_ids > 1:
            raise ValueError(f"vault AppRole login needs both {_ROLE_ID} and {_SECRET_ID_FILE}")
        if self.method is Auth.JWT and self.jwt_file is None:
            raise ValueError(f"vault JWT login needs both {_ROLE} and {_JWT_FILE}")
        if self.jwt_file is not None and self.role is None:
            raise ValueError(f"vault login with {_JWT_FILE} needs {_ROLE} as well")

    @property
    def method(self) -> Auth:
        """The way to log in that is set."""
        if self.auth is not None:
            return self.auth
        if self.role_id is not None:
            return Auth.APPROLE
        if self.role is not None or self.jwt_file is not None:
            return Auth.JWT if self.jwt_file is not None else Auth.KUBERNETES
        return Auth.TOKEN

    @property
    def auth_mount(self) -> str:
        """Where the auth method is mounted, below `auth/`."""
        return self.mount or str(self.method)

    def _given(self) -> list[tuple[Auth, ...]]:
        """Return what each way that something is set for may be."""
        ways: list[tuple[bool, tuple[Auth, ...]]] = [
            (self.token is not None, (Auth.TOKEN,)),
            (self.token_file is not None, (Auth.TOKEN,)),
            (
                any(
                    each is not None for each in (self.role_id, self.secret_id, self.secret_id_file)
                ),
                (Auth.APPROLE,),
            ),
            (self.role is not None or self.jwt_file is not None, (Auth.KUBERNETES, Auth.JWT)),
        ]
        return [names for there, names in ways if there]


def read_vault(reader: Reader, needed_by: str | None) -> VaultSettings | None:
    """Read the settings about Vault; None without an address.

    `needed_by` says what makes an address necessary, None that nothing does.
    """
    address = reader.url(_ADDRESS, None)
    if address is None:
        if needed_by is not None:
            reader.problem(_ADDRESS, f"is not set, but {needed_by}")
        return None
    auth = reader.choice(_AUTH, tuple(Auth), None)
    secret_id_file = reader.path(_SECRET_ID_FILE, None)
    if secret_id_file is not None:
        _check_readable(reader, _SECRET_ID_FILE, secret_id_file)
    token_file, jwt_file = reader.path(_TOKEN_FILE, None), reader.path(_JWT_FILE, None)
    role_id, role = reader.text(_ROLE_ID, None), reader.text(_ROLE, None)
    mount = reader.parsed("DAYPASS_VAULT_MOUNT", _mount, None, None)
    ca_file = reader.path("DAYPASS_VAULT_CA_FILE", None)
    namespace = reader.text("DAYPASS_VAULT_NAMESPACE", None)
    try:
        return VaultSettings(
            address=address,
            token_file=token_file,
            role_id=role_id,
            secret_id_file=secret_id_file,
            ca_file=ca_file,
            namespace=namespace,
            auth=None if auth is None else Auth(auth),
            role=role,
            jwt_file=jwt_file,
            mount=mount,
        )
    except ValueError as error:
        reader.problem(_ADDRESS, str(error))
        return None


def _check_readable(reader: Reader, name: str, path: Path) -> None:
    """Say at the start what is wrong with a file that is read at each login."""
    try:
        read_secret_file(path)
    except SecretUnreadable as error:
        reader.problem(name, str(error))


def _mount(value: str) -> str | None:
    value = value.strip("/").removeprefix("auth/")
    if not _MOUNT.fullmatch(value):
        raise ValueError("must be the mount of an auth method, as in kubernetes or team/jwt")
    return value
