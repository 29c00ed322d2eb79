"""The proxy's settings: read once from the environment, all problems reported together.

`__main__` calls `load`; the frozen record goes down from there. Values of env:// references are
taken here too, since this is the only file of the proxy that sees the environment.
"""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from daypass_core import database_url as location
from daypass_core.log import LEVELS
from daypass_core.secret import Secret
from daypass_core.server import TlsFiles
from daypass_core.settings import REQUIRED, Listen, Reader, environment
from daypass_core.source import read_networks
from daypass_core.vault_settings import VaultSettings, read_vault
from daypass_proxy.key_references import KeySource, parse_keys, references, shared
from daypass_proxy.server_settings import ServerSettings, read_server
from daypass_proxy.upstreams import Upstream, read_upstreams

_KEYS = "DAYPASS_ANTHROPIC_KEYS"
_OPENAI_KEYS = "DAYPASS_OPENAI_KEYS"
_UPSTREAMS = "DAYPASS_UPSTREAMS"
_BROKER = "DAYPASS_BROKER_URL"
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

    `anthropic_keys` and `openai_keys` map a tenant, or "*" for all others, to where its provider
    key lives; `env_secrets` holds the values of the env:// references among them, by variable name.
    `openai_url` is what a client would have as its base URL; `upstreams` are by name.
    """

    issuer: str
    audience: str
    database_url: str = field(repr=False)  # may carry a password
    log_level: str
    listen: tuple[Listen, ...]
    tls: TlsFiles | None
    broker_url: str
    anthropic_url: str
    openai_url: str
    upstreams: Mapping[str, Upstream]
    upstream_ca_file: Path | None
    upstream_private: bool
    egress_proxy: EgressProxy | None
    anthropic_keys: Mapping[str, KeySource]
    openai_keys: Mapping[str, KeySource]
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
    server: ServerSettings
    env_secrets: Mapping[str, Secret] = field(default_factory=dict, repr=False)
    trusted_proxies: tuple[str, ...] = ()
    database_url_file: Path | None = None

    def origin(self, provider: str) -> str:
        """Return the URL of a provider, to which a call adds its path."""
        if provider == "anthropic":
            return self.anthropic_url
        return self.openai_url if provider == "openai" else self.upstreams[provider].url

    @property
    def keys(self) -> dict[str, Mapping[str, KeySource]]:
        """Where keys live, by provider and tenant; of those upstreams that ask for one."""
        others = {name: each.keys for name, each in self.upstreams.items() if each.keys}
        return {"anthropic": self.anthropic_keys, "openai": self.openai_keys, **others}

    @property
    def database_path(self) -> Path | None:
        """The SQLite file; None where the database is one of PostgreSQL."""
        if not self.database_url.startswith(_SQLITE):
            return None
        return Path(self.database_url.removeprefix(_SQLITE).partition("?")[0])

    @property
    def database(self) -> str | Path:
        """The URL for every connection, or the file that holds it at that time."""
        return self.database_url_file or self.database_url


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from `environ`, or from the process; raises SettingsError."""
    environ = environment() if environ is None else environ
    reader = Reader(environ)
    upstreams: dict[str, Upstream] = reader.parsed(_UPSTREAMS, _upstreams, {}, {})
    keys = _keys(reader, upstreams)
    database_url = _read_database_url(reader)
    settings = Settings(
        issuer=reader.url("DAYPASS_ISSUER"),
        audience=reader.text("DAYPASS_AUDIENCE", "daypass-proxy"),
        database_url=database_url,
        log_level=reader.choice("DAYPASS_LOG_LEVEL", LEVELS, "info"),
        listen=reader.listens("DAYPASS_PROXY_LISTEN", (Listen("127.0.0.1", 8700),)),
        tls=_tls(reader),
        broker_url=reader.parsed(_BROKER, _broker_url, ""),
        anthropic_url=reader.parsed(
            "DAYPASS_ANTHROPIC_URL", _upstream_url, "", "https://api.anthropic.com"
        ),
        openai_url=reader.parsed("DAYPASS_OPENAI_URL", _base_url, "", "https://api.openai.com/v1"),
        upstreams=MappingProxyType(upstreams),
        upstream_ca_file=reader.path("DAYPASS_UPSTREAM_CA_FILE", None),
        upstream_private=reader.flag("DAYPASS_UPSTREAM_PRIVATE"),
        egress_proxy=reader.parsed("DAYPASS_EGRESS_PROXY", parse_egress_proxy, None, None),
        anthropic_keys=MappingProxyType(keys[_KEYS]),
        openai_keys=MappingProxyType(keys[_OPENAI_KEYS]),
        shared_keys=reader.flag("DAYPASS_SHARED_KEYS"),
        vault=read_vault(reader, _needs_vault(keys)),
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
        server=read_server(reader),
        env_secrets=_env_secrets(reader, keys, environ),
        trusted_proxies=reader.parsed("DAYPASS_TRUSTED_PROXIES", read_networks, (), ()),
        database_url_file=location.file(reader),
    )
    _check_keys(reader, settings, keys)
    _check_targets(reader, settings)
    reader.done()
    return settings


def _check_keys(
    reader: Reader, settings: Settings, keys: Mapping[str, Mapping[str, KeySource]]
) -> None:
    """Tenants share a provider key by choice only, and one provider takes identity tokens."""
    for name, tenants in keys.items():
        federated = any(
            one.kind == "federation" for source in tenants.values() for one in references(source)
        )
        if federated and name != _KEYS:
            reader.problem(name, f"names federation://, which there is for {_KEYS} alone")
        if not settings.shared_keys and shared(tenants):
            reader.problem(
                name,
                "gives several tenants one provider key; set DAYPASS_SHARED_KEYS=1 to allow it",
            )


def _check_targets(reader: Reader, settings: Settings) -> None:
    """Nothing leads back to this proxy, and no provider key over a public network in the clear."""
    for name, url in _urls(settings):
        if _is_self(url, settings.listen):
            reader.problem(name, "points at this proxy itself")
        if name != _BROKER and not settings.upstream_private and _is_in_the_clear(url):
            reader.problem(
                name,
                "is http, so provider keys would pass over public networks in the clear; use https,"
                " or set DAYPASS_UPSTREAM_PRIVATE=1 if the name leads to a private address",
            )


def _keys(reader: Reader, upstreams: Mapping[str, Upstream]) -> dict[str, dict[str, KeySource]]:
    """Return where keys live, by the setting that says it; there must be a provider at least."""
    none: dict[str, KeySource] = {}
    openai = reader.parsed(_OPENAI_KEYS, parse_keys, none, none)
    enough = openai is not none or upstreams
    found = {
        _KEYS: reader.parsed(_KEYS, parse_keys, none, none if enough else REQUIRED),
        _OPENAI_KEYS: openai,
    }
    return found | {
        f"{_UPSTREAMS}, {name}": dict(each.keys) for name, each in upstreams.items() if each.keys
    }


def _urls(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield every place that requests go to, and the setting that names it."""
    yield "DAYPASS_ANTHROPIC_URL", settings.anthropic_url
    yield "DAYPASS_OPENAI_URL", settings.openai_url
    for name, each in settings.upstreams.items():
        yield f"{_UPSTREAMS}, {name}", each.url
    yield _BROKER, settings.broker_url


def _upstreams(value: str) -> dict[str, Upstream]:
    return read_upstreams(Path(value), _base_url)


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


def _upstream_url(value: str) -> str:
    """Keep a prefix, drop what clients append themselves: a final "/" or "/v1" (case B46)."""
    return _base_url(value).removesuffix("/v1").rstrip("/")


def _base_url(value: str) -> str:
    """Keep a prefix as OpenAI's clients have it, with /v1; drop a final "/"."""
    url = _url(value, ("https", "http")).rstrip("/")
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
    return location.read(reader, _database_url)


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


def _needs_vault(keys: Mapping[str, Mapping[str, KeySource]]) -> str | None:
    for name, tenants in keys.items():
        sources = tenants.values()
        if any(one.kind == "vault" for source in sources for one in references(source)):
            return f"{name} names vault://"
    return None


def _env_secrets(
    reader: Reader, keys: Mapping[str, Mapping[str, KeySource]], environ: Mapping[str, str]
) -> Mapping[str, Secret]:
    secrets: dict[str, Secret] = {}
    named = [
        (name, reference)
        for name, tenants in keys.items()
        for source in tenants.values()
        for reference in references(source)
        if reference.kind == "env"
    ]
    for name, reference in named:
        value = environ.get(reference.path, "").strip()
        if value:
            secrets[reference.path] = Secret(value)
        else:
            reader.problem(reference.path, f"is not set, but {name} names env://{reference.path}")
    return MappingProxyType(secrets)


def _is_in_the_clear(url: str) -> bool:
    """Say whether `url` is plain http to what is no address of the inside."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "http" or host == "localhost":
        return False
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return True


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
