"""The proxy's settings: read once from the environment, all problems reported together.

`__main__` calls `load`; the frozen record goes down from there. Values of env:// references are
taken here too, since this is the only file of the proxy that sees the environment.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from daypass_core.log import LEVELS
from daypass_core.secret import (
    BadReference,
    Reference,
    Secret,
    SecretUnreadable,
    parse_reference,
    read_secret_file,
)
from daypass_core.server import TlsFiles
from daypass_core.settings import Listen, Reader, environment
from daypass_core.vault import VaultSettings

_TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}|\*")
_KEYS = "DAYPASS_ANTHROPIC_KEYS"
_SQLITE = "sqlite:///"
_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class EgressProxy:
    """An HTTP proxy that leads to the provider; without a password it asks for none."""

    host: str
    port: int
    user: str = field(default="", repr=False)
    password: Secret | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the proxy is told. Times in seconds, sizes in bytes.

    `anthropic_keys` maps a tenant, or "*" for all others, to where its provider key lives;
    `env_secrets` holds the values of the env:// references among them, by variable name.
    """

    issuer: str
    audience: str
    database_url: str = field(repr=False)  # may carry a password
    log_level: str
    listen: tuple[Listen, ...]
    tls: TlsFiles | None
    broker_url: str
    anthropic_url: str
    upstream_ca_file: Path | None
    upstream_private: bool
    egress_proxy: EgressProxy | None
    anthropic_keys: Mapping[str, Reference]
    shared_keys: bool
    vault: VaultSettings | None
    prices: Path | None
    max_body_bytes: int
    body_workers: int
    connect_seconds: float
    first_byte_seconds: float
    idle_seconds: float
    call_seconds: float
    lease_seconds: float
    poll_seconds: float
    stale_seconds: float
    stale_stream_seconds: float
    header_seconds: float
    metrics_listen: tuple[Listen, ...]
    env_secrets: Mapping[str, Secret] = field(default_factory=dict, repr=False)

    @property
    def database_path(self) -> Path | None:
        """The SQLite file; None where the database is one of PostgreSQL."""
        if not self.database_url.startswith(_SQLITE):
            return None
        return Path(self.database_url.removeprefix(_SQLITE).partition("?")[0])


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from `environ`, or from the process; raises SettingsError."""
    environ = environment() if environ is None else environ
    reader = Reader(environ)
    keys: dict[str, Reference] = reader.parsed(_KEYS, parse_keys, dict[str, Reference]())
    database_url = _read_database_url(reader)
    settings = Settings(
        issuer=reader.url("DAYPASS_ISSUER"),
        audience=reader.text("DAYPASS_AUDIENCE", "daypass-proxy"),
        database_url=database_url,
        log_level=reader.choice("DAYPASS_LOG_LEVEL", LEVELS, "info"),
        listen=reader.listens("DAYPASS_PROXY_LISTEN", (Listen("127.0.0.1", 8700),)),
        tls=_tls(reader),
        broker_url=reader.parsed("DAYPASS_BROKER_URL", _broker_url, ""),
        anthropic_url=reader.parsed(
            "DAYPASS_ANTHROPIC_URL", _upstream_url, "", "https://api.anthropic.com"
        ),
        upstream_ca_file=reader.path("DAYPASS_UPSTREAM_CA_FILE", None),
        upstream_private=reader.flag("DAYPASS_UPSTREAM_PRIVATE"),
        egress_proxy=reader.parsed("DAYPASS_EGRESS_PROXY", parse_egress_proxy, None, None),
        anthropic_keys=MappingProxyType(keys),
        shared_keys=reader.flag("DAYPASS_SHARED_KEYS"),
        vault=_vault(reader, keys),
        prices=reader.path("DAYPASS_PRICES", None),
        max_body_bytes=reader.integer("DAYPASS_MAX_BODY_BYTES", 32 * 1024 * 1024, least=1024),
        body_workers=reader.integer("DAYPASS_BODY_WORKERS", 2, least=1, most=64),
        connect_seconds=reader.seconds("DAYPASS_CONNECT_SECONDS", 5.0, least=0.1),
        first_byte_seconds=reader.seconds("DAYPASS_FIRST_BYTE_SECONDS", 600.0, least=0.1),
        idle_seconds=reader.seconds("DAYPASS_IDLE_SECONDS", 300.0, least=0.1),
        call_seconds=reader.seconds("DAYPASS_CALL_SECONDS", 3600.0, least=0.1),
        lease_seconds=reader.seconds("DAYPASS_LEASE_SECONDS", 60.0, least=1.0),
        poll_seconds=reader.seconds(
            "DAYPASS_POLL_SECONDS", _poll_seconds(database_url), least=0.001, most=10.0
        ),
        stale_seconds=reader.seconds("DAYPASS_STALE_SECONDS", 31.0, least=0.1),
        stale_stream_seconds=reader.seconds("DAYPASS_STALE_STREAM_SECONDS", 61.0, least=0.1),
        header_seconds=reader.seconds("DAYPASS_HEADER_SECONDS", 10.0, least=0.1),
        metrics_listen=reader.listens("DAYPASS_PROXY_METRICS_LISTEN", ()),
        env_secrets=_env_secrets(reader, keys, environ),
    )
    if not settings.shared_keys and shared(keys):
        reader.problem(
            _KEYS, "gives several tenants one provider key; set DAYPASS_SHARED_KEYS=1 to allow it"
        )
    if _is_self(settings.anthropic_url, settings.listen):
        reader.problem("DAYPASS_ANTHROPIC_URL", "points at this proxy itself")
    if _is_self(settings.broker_url, settings.listen):
        reader.problem("DAYPASS_BROKER_URL", "points at this proxy itself")
    reader.done()
    return settings


def parse_keys(value: str) -> dict[str, Reference]:
    """Read `tenant=reference[,tenant=reference]`; raises ValueError that repeats no value."""
    keys: dict[str, Reference] = {}
    for number, entry in enumerate(value.split(","), 1):
        tenant, separator, text = entry.strip().partition("=")
        if not separator or not _TENANT.fullmatch(tenant):
            raise ValueError(f"entry {number} must be tenant=reference or *=reference")
        if tenant in keys:
            raise ValueError(f"entry {number} repeats a tenant")
        try:
            reference = parse_reference(text)
        except BadReference as error:
            raise ValueError(f"entry {number}: {error}") from None
        if tenant != "*" and reference.per_tenant:
            reference = reference.for_tenant(tenant)
        keys[tenant] = reference
    return keys


def parse_egress_proxy(value: str) -> EgressProxy:
    """Read `http://[user:password@]host:port`; raises ValueError that repeats nothing of it."""
    wrong = ValueError("must be http://host:port or http://user:password@host:port")
    if not re.fullmatch(r"[!-~]+", value):
        raise wrong
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme != "http" or not parts.hostname or not port or parts.path not in ("", "/"):
        raise wrong
    if parts.query or parts.fragment or ("@" in parts.netloc) != bool(parts.password):
        raise wrong
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if ":" in user or not (user + password).isprintable():
        raise wrong
    return EgressProxy(parts.hostname, port, user, Secret(password) if password else None)


def shared(keys: Mapping[str, Reference]) -> bool:
    """Say whether two tenants could end up with the same reference."""
    own = [reference for tenant, reference in keys.items() if tenant != "*"]
    if len(set(own)) < len(own):
        return True
    default = keys.get("*")
    if default is None:
        return False
    return not default.per_tenant or any(
        _names_another(default, tenant, reference)
        for tenant, reference in keys.items()
        if tenant != "*"
    )


def _names_another(default: Reference, tenant: str, reference: Reference) -> bool:
    """Say whether an entry of `tenant` is what the "*" template gives to another tenant."""
    if (default.kind, default.mount, default.field) != (
        reference.kind,
        reference.mount,
        reference.field,
    ):
        return False
    pattern = re.escape(default.path).replace(re.escape("{tenant}"), "([a-z0-9][a-z0-9-]{0,62})")
    match = re.fullmatch(pattern, reference.path)
    return match is not None and any(name != tenant for name in match.groups())


def _upstream_url(value: str) -> str:
    """Keep a prefix, drop what clients append themselves: a final "/" or "/v1" (case B46)."""
    url = _url(value, ("https", "http")).removesuffix("/v1").rstrip("/")
    if ".." in url or "%" in url or "//" in url.partition("://")[2]:
        raise ValueError("must be a plain URL without '..', '%' and '//'")
    return url


def _broker_url(value: str) -> str:
    if value.startswith("unix:"):
        return str(Listen.parse(value))
    return _url(value, ("http", "https"))


def load_database_url(environ: Mapping[str, str] | None = None) -> str:
    """Read where the database is: commands on it need no more. Raises SettingsError."""
    reader = Reader(environment() if environ is None else environ)
    url = _read_database_url(reader)
    reader.done()
    return url


def _read_database_url(reader: Reader) -> str:
    return reader.parsed("DAYPASS_DATABASE_URL", _database_url, "")


def _database_url(value: str) -> str:
    # Database URLs may carry passwords, so the messages must not repeat any of it.
    if value.startswith("sqlite:////"):
        return value
    if not value.startswith(("postgresql://", "postgresql+psycopg://")):
        raise ValueError("must be sqlite:////absolute/path or postgresql://…")
    if find_spec("psycopg") is None:
        raise ValueError(
            "names PostgreSQL, which needs a driver: pip install 'daypass-proxy[postgres]'"
        )
    from daypass_proxy import postgres  # an extra: not there in every installation

    postgres.parse(value)
    return value


def _poll_seconds(database_url: str) -> float:
    """Look at a local file often; at a server seldom, since that one tells when there is news."""
    return 0.05 if database_url.startswith(_SQLITE) else 0.5


def _url(value: str, schemes: tuple[str, ...]) -> str:
    """Check a URL with core's rules where a further rule follows."""
    reader = Reader({"url": value})
    url: str = reader.url("url", schemes=schemes)
    if not url:
        raise ValueError(
            f"must be a URL that starts with {' or '.join(f'{s}://' for s in schemes)},"
            " without user, query and fragment"
        )
    return url


def _tls(reader: Reader) -> TlsFiles | None:
    cert = reader.path("DAYPASS_PROXY_TLS_CERT", None)
    key = reader.path("DAYPASS_PROXY_TLS_KEY", None)
    if (cert is None) != (key is None):
        reader.problem(
            "DAYPASS_PROXY_TLS_CERT, DAYPASS_PROXY_TLS_KEY", "must be set together or not at all"
        )
    return None if cert is None or key is None else TlsFiles(cert, key)


def _vault(reader: Reader, keys: Mapping[str, Reference]) -> VaultSettings | None:
    address = reader.url("DAYPASS_VAULT_ADDR", None)
    needed = any(reference.kind == "vault" for reference in keys.values())
    if address is None:
        if needed:
            reader.problem("DAYPASS_VAULT_ADDR", f"is not set, but {_KEYS} names vault://")
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
            "DAYPASS_VAULT_ADDR",
            "needs one way to log in: DAYPASS_VAULT_TOKEN_FILE, or DAYPASS_VAULT_ROLE_ID with"
            " DAYPASS_VAULT_SECRET_ID_FILE",
        )
        return None


def _secret_id(reader: Reader) -> Secret | None:
    path = reader.path("DAYPASS_VAULT_SECRET_ID_FILE", None)
    if path is None:
        return None
    try:
        return read_secret_file(path)
    except SecretUnreadable as error:
        reader.problem("DAYPASS_VAULT_SECRET_ID_FILE", str(error))
        return None


def _env_secrets(
    reader: Reader, keys: Mapping[str, Reference], environ: Mapping[str, str]
) -> Mapping[str, Secret]:
    secrets: dict[str, Secret] = {}
    for reference in keys.values():
        if reference.kind != "env":
            continue
        value = environ.get(reference.path, "").strip()
        if value:
            secrets[reference.path] = Secret(value)
        else:
            reader.problem(reference.path, f"is not set, but {_KEYS} names env://{reference.path}")
    return MappingProxyType(secrets)


def _is_self(url: str, listens: tuple[Listen, ...]) -> bool:
    """Say whether `url` is an address we listen on: it would feed itself until it falls over."""
    if not url:
        return False
    if url.startswith("unix:"):
        return any(listen.is_unix and str(listen) == url for listen in listens)
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = parts.hostname or ""
    for listen in listens:
        if listen.is_unix or listen.port != port:
            continue
        same = host == listen.host or (host in _LOOPBACK and listen.host in _LOOPBACK)
        if same or (listen.host in _ANYWHERE and host in (*_LOOPBACK, *_ANYWHERE)):
            return True
    return False
