"""The broker's settings, read once from the environment and frozen.

All problems are reported together by name, never with values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import daypass_migrations
from daypass_core.claims import MAX_ACCESS_LIFE, parse_trust_domain
from daypass_core.log import LEVELS
from daypass_core.settings import Listen, Reader, environment


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
    keys_dir: Path
    public_url: str  # the proxy as a sandbox sees it
    ca_file: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    min_token_ttl: int

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
        keys_dir=read.path("DAYPASS_BROKER_KEYS_DIR"),
        public_url=read.url("DAYPASS_PUBLIC_URL"),
        ca_file=read.path("DAYPASS_CA_FILE", default=None),
        tls_cert=read.path("DAYPASS_BROKER_TLS_CERT", default=None),
        tls_key=read.path("DAYPASS_BROKER_TLS_KEY", default=None),
        min_token_ttl=min_token_ttl(read),
    )
    if (settings.tls_cert is None) != (settings.tls_key is None):
        read.problem("DAYPASS_BROKER_TLS_KEY", "set it together with DAYPASS_BROKER_TLS_CERT")
    read.done()
    return settings


def database_url(read: Reader) -> str:
    """Read where the database is; commands that work on it directly need no more than this."""
    return read.parsed("DAYPASS_DATABASE_URL", _database_url, "")


def _database_url(value: str) -> str:
    # Its ValueError repeats nothing of the URL, which may carry a password.
    daypass_migrations.parse_url(value)
    return value


def min_token_ttl(read: Reader) -> int:
    """Read the shortest life of an access token that may be asked for, in seconds."""
    return read.integer("DAYPASS_MIN_TOKEN_TTL", default=300, least=1, most=MAX_ACCESS_LIFE)
