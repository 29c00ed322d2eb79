"""The broker's settings, read once from the environment and frozen.

All problems are reported together by name, never with values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import daypass_migrations
from daypass_core import database_url as location
from daypass_core.claims import MAX_ACCESS_LIFE, parse_trust_domain
from daypass_core.log import LEVELS
from daypass_core.server import DRAIN_SECONDS
from daypass_core.settings import Listen, Reader, environment
from daypass_core.source import read_networks
from daypass_core.vault_settings import VaultSettings, read_vault

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_VENDOR = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True, slots=True)
class KeySettings:
    """Where the broker's signing keys lie, and for how many days one signs (0: for ever).

    New ones are made in `store`; those of the other store go on as long as it can be reached.
    """

    store: str = "file"
    directory: Path | None = None
    vault: VaultSettings | None = None
    transit_mount: str = "transit"
    transit_key: str = "daypass"
    days: int = 0


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """How to ask the cluster about a token; both files are read again at every question."""

    url: str = "https://kubernetes.default.svc"
    ca_file: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
    token_file: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True, slots=True)
class FederationSettings:
    """How the issuers of federation rules are reached: at public addresses and `networks`."""

    networks: tuple[str, ...] = ()
    ca_file: Path | None = None
    kubernetes: KubernetesSettings = KubernetesSettings()


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the broker is told from outside; times in seconds."""

    issuer: str
    audience: str
    trust_domain: str
    database_url: str = field(repr=False)  # may carry a password
    log_level: str
    internal: Listen
    admin: Listen
    keys: KeySettings
    public_url: str  # the proxy as a sandbox sees it
    ca_file: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    min_token_ttl: int
    federation: FederationSettings = FederationSettings()
    webhooks: Mapping[str, Path] = field(default_factory=dict)  # files of secrets, by vendor
    metrics_listen: tuple[Listen, ...] = ()
    trusted_proxies: tuple[str, ...] = ()  # networks that may say whose token request it is
    not_ready_seconds: float = 0.0
    broker_drain_seconds: float = DRAIN_SECONDS
    database_url_file: Path | None = None  # read again for every connection

    @property
    def broker_audience(self) -> str:
        """The `aud` of launch credentials and renewal generations: the issuer (RFC 7523 §3)."""
        return self.issuer


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings of the broker from `environ` (default: the process's own).

    Raises daypass_core.settings.SettingsError naming every missing or unreadable variable.
    """
    read = Reader(environment() if environ is None else environ)
    settings = Settings(
        issuer=read.url("DAYPASS_ISSUER"),
        audience=read.text("DAYPASS_AUDIENCE", default="daypass-proxy"),
        trust_domain=read.parsed("DAYPASS_TRUST_DOMAIN", parse_trust_domain, "", "daypass.local"),
        database_url=database_url(read),
        log_level=read.choice("DAYPASS_LOG_LEVEL", LEVELS, default="info"),
        internal=read.listen("DAYPASS_BROKER_INTERNAL"),
        admin=read.listen("DAYPASS_BROKER_ADMIN", default=Listen("127.0.0.1", 8701)),
        keys=keys(read),
        public_url=read.url("DAYPASS_PUBLIC_URL"),
        ca_file=read.path("DAYPASS_CA_FILE", default=None),
        tls_cert=read.path("DAYPASS_BROKER_TLS_CERT", default=None),
        tls_key=read.path("DAYPASS_BROKER_TLS_KEY", default=None),
        min_token_ttl=min_token_ttl(read),
        federation=_federation(read),
        webhooks=read.parsed("DAYPASS_WEBHOOK_SECRETS", _webhooks, {}, {}),
        metrics_listen=read.listens("DAYPASS_BROKER_METRICS_LISTEN", ()),
        trusted_proxies=read.parsed("DAYPASS_TRUSTED_PROXIES", read_networks, (), ()),
        not_ready_seconds=read.seconds("DAYPASS_READY_SECONDS", 0.0, most=300.0),
        broker_drain_seconds=read.seconds(
            "DAYPASS_BROKER_DRAIN_SECONDS", DRAIN_SECONDS, least=0.1, most=3600.0
        ),
        database_url_file=location.file(read),
    )
    if (settings.tls_cert is None) != (settings.tls_key is None):
        read.problem("DAYPASS_BROKER_TLS_KEY", "set it together with DAYPASS_BROKER_TLS_CERT")
    read.done()
    return settings


def keys(read: Reader) -> KeySettings:
    """Read where signing keys lie."""
    store = read.choice("DAYPASS_SIGNING", ("file", "transit"), default="file")
    directory = read.path("DAYPASS_BROKER_KEYS_DIR", default=None)
    if store == "file" and directory is None:
        read.problem("DAYPASS_BROKER_KEYS_DIR", "is not set, but keys lie in files")
    needed_by = "DAYPASS_SIGNING is transit" if store == "transit" else None
    return KeySettings(
        store=store,
        directory=directory,
        vault=read_vault(read, needed_by),
        transit_mount=read.parsed("DAYPASS_TRANSIT_MOUNT", _name, "", "transit"),
        transit_key=read.parsed("DAYPASS_TRANSIT_KEY", _name, "", "daypass"),
        days=read.integer("DAYPASS_KEY_DAYS", default=30, least=0, most=3650),
    )


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("must be letters, digits, - and _")
    return value


def database_url(read: Reader) -> str:
    """Read where the database is; commands that work on it directly need no more than this."""
    return location.read(read, _database_url)


def _database_url(value: str) -> str:
    # Its ValueError repeats nothing of the URL, which may carry a password.
    daypass_migrations.parse_url(value)
    return value


def min_token_ttl(read: Reader) -> int:
    """Read the shortest life of an access token that may be asked for, in seconds."""
    return read.integer("DAYPASS_MIN_TOKEN_TTL", default=300, least=1, most=MAX_ACCESS_LIFE)


def _webhooks(value: str) -> dict[str, Path]:
    """Read `vendor=/file,vendor=/file`; the messages repeat nothing, for it may be a secret."""
    files: dict[str, Path] = {}
    for number, entry in enumerate(value.split(","), 1):
        vendor, equals, path = entry.strip().partition("=")
        if not equals or not _VENDOR.fullmatch(vendor) or not path.startswith("/"):
            raise ValueError(f"entry {number} must be vendor=/absolute/path")
        if vendor in files:
            raise ValueError(f"entry {number} repeats a vendor")
        files[vendor] = Path(path)
    return files


def _federation(read: Reader) -> FederationSettings:
    usual = KubernetesSettings()
    return FederationSettings(
        networks=read.parsed("DAYPASS_FEDERATION_NETWORKS", read_networks, (), ()),
        ca_file=read.path("DAYPASS_FEDERATION_CA_FILE", default=None),
        kubernetes=KubernetesSettings(
            url=read.url("DAYPASS_KUBERNETES_URL", default=usual.url, schemes=("https",)),
            ca_file=read.path("DAYPASS_KUBERNETES_CA_FILE", default=usual.ca_file),
            token_file=read.path("DAYPASS_KUBERNETES_TOKEN_FILE", default=usual.token_file),
        ),
    )
