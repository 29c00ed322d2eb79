"""What each way to log in to Vault or OpenBao sends: read from its files anew at every login.

Place in the flow: `vault` sends the request and reveals what is secret in it; `vault_session` says
when. Files are never remembered: a kubelet replaces projected tokens by swapping a symlink (case
B23), an agent replaces the file of its token, an operator that of a secret id.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from daypass_core.secret import Secret, SecretUnreadable, read_secret_file
from daypass_core.vault_errors import VaultRefused
from daypass_core.vault_settings import SERVICE_ACCOUNT, Auth, VaultSettings

Stamp = tuple[int, int, int, int] | None
"""What tells one content of a file from the next without reading it; None without a file."""
WORDS = {
    Auth.TOKEN: "token",
    Auth.APPROLE: "AppRole login",
    Auth.KUBERNETES: "Kubernetes login",
    Auth.JWT: "JWT login",
}


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """A POST of `public` and `secret` fields, as one JSON object, to `path`."""

    path: str
    public: dict[str, str]
    secret: dict[str, Secret] = field(repr=False)


class Login:
    """One way to log in; holds no secret but those that settings were made with."""

    def __init__(self, settings: VaultSettings) -> None:
        self._settings = settings

    @property
    def words(self) -> str:
        """Name it for a person, as in "AppRole login at auth/approle"."""
        words = WORDS[self._settings.method]
        if self._settings.method is not Auth.TOKEN:
            return f"{words} at auth/{self._settings.auth_mount}"
        file = self._settings.token_file
        return words if file is None else f"{words} of {file}"

    def token(self) -> Secret | None:
        """Return the token that is given as such; None where one has to be asked for.

        Raises VaultRefused for a file that cannot be read.
        """
        if self._settings.method is not Auth.TOKEN:
            return None
        if self._settings.token_file is None:
            return self._settings.token
        return _read(self._settings.token_file, "token file")

    def request(self) -> LoginRequest:
        """Return what to ask a token with; raises VaultRefused for a file that cannot be read."""
        settings = self._settings
        path = f"/v1/auth/{settings.auth_mount}/login"
        if settings.method is Auth.APPROLE:
            secret_id = settings.secret_id
            if secret_id is None:
                assert settings.secret_id_file is not None  # VaultSettings saw to one of them
                secret_id = _read(settings.secret_id_file, "secret id file")
            return LoginRequest(path, {"role_id": settings.role_id or ""}, {"secret_id": secret_id})
        jwt = _read(settings.jwt_file or SERVICE_ACCOUNT, "JWT file")
        return LoginRequest(path, {"role": settings.role or ""}, {"jwt": jwt})

    def stamp(self) -> Stamp:
        """Return what changes when the file of a token that is given as such is replaced."""
        file = self._settings.token_file
        if file is None:
            return None
        try:
            found = os.stat(file)
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: Path, what: str) -> Secret:
    try:
        return read_secret_file(path)
    except SecretUnreadable as error:
        raise VaultRefused(f"vault {what}: {error}") from None
