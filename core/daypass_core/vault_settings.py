"""Where Vault or OpenBao is and how to log in: the settings that broker and proxy share.

Without hvac, so that a service that needs no Vault does not load it; `vault` does the talking.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from daypass_core.secret import Secret, SecretUnreadable, read_secret_file
from daypass_core.settings import Reader

_ADDRESS = "DAYPASS_VAULT_ADDR"
_SECRET_ID_FILE = "DAYPASS_VAULT_SECRET_ID_FILE"  # noqa: S105 - a name


@dataclass(frozen=True, slots=True)
class VaultSettings:
    """How to reach Vault, and exactly one way to log in: token, token_file or AppRole."""

    address: str
    token: Secret | None = None
    token_file: Path | None = None
    role_id: str | None = None
    secret_id: Secret | None = None
    ca_file: Path | None = None
    namespace: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless exactly one way to log in is given."""
        if (self.role_id is None) != (self.secret_id is None):
            raise ValueError("vault AppRole login needs both role_id and secret_id")
        ways = (self.token, self.token_file, self.role_id)
        if sum(way is not None for way in ways) != 1:
            raise ValueError("vault needs exactly one of token, token_file or role_id")


def read_vault(reader: Reader, needed_by: str | None) -> VaultSettings | None:
    """Read the settings about Vault; None without an address.

    `needed_by` says what makes an address necessary, None that nothing does.
    """
    address = reader.url(_ADDRESS, None)
    if address is None:
        if needed_by is not None:
            reader.problem(_ADDRESS, f"is not set, but {needed_by}")
        return None
    token_file = reader.path("DAYPASS_VAULT_TOKEN_FILE", None)
    role_id = reader.text("DAYPASS_VAULT_ROLE_ID", None)
    secret_id = _secret_id(reader)
    ca_file = reader.path("DAYPASS_VAULT_CA_FILE", None)
    namespace = reader.text("DAYPASS_VAULT_NAMESPACE", None)
    try:
        return VaultSettings(
            address=address,
            token_file=token_file,
            role_id=role_id,
            secret_id=secret_id,
            ca_file=ca_file,
            namespace=namespace,
        )
    except ValueError:
        reader.problem(
            _ADDRESS,
            "needs one way to log in: DAYPASS_VAULT_TOKEN_FILE, or DAYPASS_VAULT_ROLE_ID with"
            " DAYPASS_VAULT_SECRET_ID_FILE",
        )
        return None


def _secret_id(reader: Reader) -> Secret | None:
    path = reader.path(_SECRET_ID_FILE, None)
    if path is None:
        return None
    try:
        return read_secret_file(path)
    except SecretUnreadable as error:
        reader.problem(_SECRET_ID_FILE, str(error))
        return None
