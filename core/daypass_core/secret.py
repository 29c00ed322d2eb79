"""Secrets as a type, and references that say where a secret lives.

A provider key, Vault token or private key exists in the program only as a `Secret`: whatever
prints, formats, logs or pickles it gets `***` or an error. `.reveal()` is the one way out and is
called in one file per distribution. References are plain settings and may be shown.
"""

import hmac
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn
from urllib.parse import parse_qsl

_HIDDEN = "***"
_MAX_FILE_BYTES = 64 * 1024
_TENANT = "{tenant}"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_FEDERATION = ("rule", "organization", "service_account", "workspace")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# One segment of a Vault path: no separators, no escapes, and no leading dot, so no "..".
_SEGMENT = re.compile(r"(?:[A-Za-z0-9_-]|\{tenant\})(?:[A-Za-z0-9_.-]|\{tenant\})*")


class Secret:
    """A string that knows it must not be shown."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Raise ValueError when empty: an empty secret is a missing one."""
        if not value:
            raise ValueError("secret is empty")
        self._value = value

    def reveal(self) -> str:
        """Return the value itself; every call site is reviewed."""
        return self._value

    def __repr__(self) -> str:
        return _HIDDEN

    def __str__(self) -> str:
        return _HIDDEN

    def __format__(self, spec: str) -> str:
        return _HIDDEN

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    # Unhashable: a set or dict of secrets would compare them in a time that depends on them.
    __hash__ = None  # type: ignore[assignment]

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, memo: object) -> "Secret":
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret cannot be pickled")


class SecretUnreadable(Exception):
    """A secret file is missing, unreadable, empty or not text; names the path only."""


def read_secret_file(path: str | Path) -> Secret:
    """Return the content of `path` without its final newline.

    Raises SecretUnreadable. Read at each use, so that a rotated file takes effect.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        text = data.decode("utf-8").rstrip("\r\n")
    except OSError as error:
        raise SecretUnreadable(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SecretUnreadable(f"{path} is not UTF-8 text") from None
    if len(data) > _MAX_FILE_BYTES:
        raise SecretUnreadable(f"{path} is larger than {_MAX_FILE_BYTES} bytes")
    if not text:
        raise SecretUnreadable(f"{path} is empty; put the secret into it")
    return Secret(text)


class BadReference(ValueError):
    """A reference that cannot be understood; the message says which form is expected."""


@dataclass(frozen=True, slots=True)
class Federation:
    """As whom an identity token is exchanged at the provider: names of its own, no secrets."""

    rule: str
    organization: str
    service_account: str | None = None
    workspace: str | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a secret lives; for `env`, `path` is the variable's name.

    For `federation` it lives nowhere: `path` is a file with an identity token, which the provider
    gives a short-lived credential for, and `field` says as whom (`federation`).
    """

    kind: Literal["vault", "env", "file", "federation"]
    path: str
    mount: str = ""
    field: str = ""

    @property
    def federation(self) -> Federation:
        """As whom the identity token is exchanged; raises ValueError for any other kind."""
        if self.kind != "federation":
            raise ValueError("reference is none of an identity token")
        return Federation(**dict(parse_qsl(self.field)))

    @property
    def per_tenant(self) -> bool:
        """Say whether the path holds the `{tenant}` template."""
        return _TENANT in self.path

    def for_tenant(self, tenant: str) -> "Reference":
        """Return the reference with `{tenant}` filled in; raises BadReference on a bad name."""
        if not _NAME.fullmatch(tenant):
            raise BadReference("tenant name must match [a-z0-9][a-z0-9-]{0,62}")
        return replace(self, path=self.path.replace(_TENANT, tenant))

    def __str__(self) -> str:
        if self.kind == "vault":
            return f"vault://{self.mount}/{self.path}#{self.field}"
        if self.kind == "federation":
            return f"federation://{self.path}?{self.field}"
        return f"{self.kind}://{self.path}"


def parse_reference(text: str) -> Reference:
    """Read `vault://mount/path#field`, `env://NAME`, `file:///path` or `federation:///path?…`.

    Raises BadReference, which never repeats the text: a key pasted by mistake must not be shown.
    """
    kind, _, rest = text.partition("://")
    if kind == "vault":
        return _vault_reference(rest)
    if kind == "env":
        if not _ENV_NAME.fullmatch(rest):
            raise BadReference("expected env://NAME with the name of an environment variable")
        return Reference("env", rest)
    if kind == "file":
        if not _is_path(rest):
            raise BadReference("expected file:///path with an absolute path without '..'")
        return Reference("file", rest)
    if kind == "federation":
        return _federation_reference(rest)
    raise BadReference(
        "expected vault://mount/path#field, env://NAME, file:///path or federation:///path?rule=…"
    )


def _is_path(text: str) -> bool:
    return text.startswith("/") and ".." not in text.split("/") and "\x00" not in text


def _federation_reference(rest: str) -> Reference:
    expected = BadReference(
        "expected federation:///path?rule=…&organization=… with the file of an identity token;"
        " service_account=… and workspace=… may follow"
    )
    path, _, query = rest.partition("?")
    pairs = [pair.partition("=") for pair in query.split("&")]
    names = [name for name, _, _ in pairs]
    if not _is_path(path) or not all(_ID.fullmatch(value) for _, _, value in pairs):
        raise expected
    # In one order, so that the same credential is always written alike, and named once.
    known = [name for name in _FEDERATION if name in names]
    if len(known) < len(names) or known[:2] != ["rule", "organization"]:
        raise expected
    values = {name: value for name, _, value in pairs}
    return Reference("federation", path, field="&".join(f"{one}={values[one]}" for one in known))


def _vault_reference(rest: str) -> Reference:
    location, _, field = rest.partition("#")
    mount, _, path = location.partition("/")
    segments = [mount, *path.split("/"), field]
    if not all(_SEGMENT.fullmatch(segment) for segment in segments):
        raise BadReference("expected vault://mount/path#field, as in vault://secret/llm/acme#key")
    if _TENANT in mount or _TENANT in field:
        raise BadReference("{tenant} may stand in the path only, not in mount or field")
    return Reference("vault", path, mount=mount, field=field)
