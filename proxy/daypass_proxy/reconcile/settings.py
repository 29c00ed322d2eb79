"""The one setting of its own: where the Admin API key is; all others are the proxy's.

The proxy itself never reads it, so a serving process holds no admin key.
"""

from __future__ import annotations

from collections.abc import Mapping

from daypass_core.secret import Reference, Secret, parse_reference
from daypass_core.settings import Reader, environment
from daypass_proxy.settings import Settings

_ADMIN_KEY = "DAYPASS_ANTHROPIC_ADMIN_KEY"


def read_admin_key(
    settings: Settings, environ: Mapping[str, str] | None = None
) -> tuple[Reference, Mapping[str, Secret]]:
    """Return where the admin key is, and its value where that is a variable.

    Raises SettingsError, which repeats no value.
    """
    environ = environment() if environ is None else environ
    reader = Reader(environ)
    nowhere = Reference("file", "")
    reference = reader.parsed(_ADMIN_KEY, parse_reference, nowhere)
    secrets: dict[str, Secret] = {}
    if reference.per_tenant:
        reader.problem(_ADMIN_KEY, "has no tenant: it is one key for the whole organisation")
    if reference.kind == "federation":
        reader.problem(_ADMIN_KEY, "names federation://, which gives no Admin API key")
    if reference.kind == "vault" and settings.vault is None:
        reader.problem("DAYPASS_VAULT_ADDR", f"is not set, but {_ADMIN_KEY} names vault://")
    if reference.kind == "env":
        value = environ.get(reference.path, "").strip()
        if value:
            secrets[reference.path] = Secret(value)
        else:
            reader.problem(
                reference.path, f"is not set, but {_ADMIN_KEY} names env://{reference.path}"
            )
    reader.done()
    return reference, secrets
