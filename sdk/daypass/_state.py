"""The state directory of `daypass up`, and how its settings reach the two services.

    daypass.db   keys/   run/{broker,proxy}.sock   logs/{broker,proxy}.log   tls/
    admin.credential   config.json

Everything in it is private (umask 077). One `daypass up` owns it at a time, by a file lock that
ends with the process.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from daypass import _settings as settings
from daypass._errors import SettingsError
from daypass._files import private_dir, write_private

# A Unix socket's path has to fit into 108 bytes with its NUL (104 on other systems).
_LONGEST_SOCKET_PATH = 103
_LARGEST_LOG_BYTES = 10 * 1024 * 1024
# What any Python process may need; nothing here is secret.
_BASIC = [
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE",
    "LD_LIBRARY_PATH",
]
_COMMON = ["DAYPASS_LOG_LEVEL", "DAYPASS_AUDIENCE"]
_BROKER = re.compile(
    r"DAYPASS_(TRUST_DOMAIN|MIN_TOKEN_TTL|FEDERATION_\w+|KUBERNETES_\w+|SIGNING|TRANSIT_\w+|KEY_DAYS"
    r"|WEBHOOK_SECRETS|BROKER_(DRAIN_SECONDS|METRICS_LISTEN))"
)
_VAULT = re.compile(r"DAYPASS_VAULT_\w+")
_PROXY = re.compile(
    r"DAYPASS_(?!BROKER_)(\w+_SECONDS|MAX_BODY_BYTES|BODY_WORKERS|SHARED_KEYS|ANTHROPIC_URL|OPENAI_KEYS"
    r"|OPENAI_URL|UPSTREAMS|UPSTREAM_\w+|PRICES|PROXY_(METRICS_LISTEN|WORKERS)|EGRESS_PROXY"
    r"|TRUSTED_PROXIES|MAX_(CONNECTIONS|CALLS)|SANDBOX_CONNECTIONS)"
    r"|SSL_CERT_(FILE|DIR)"
)
_FILES = ("DAYPASS_UPSTREAMS", "DAYPASS_PRICES")
_OTHERS = ("DAYPASS_OPENAI_KEYS", "DAYPASS_UPSTREAMS")
_ENV_KEY = re.compile(r"=env://([A-Za-z_][A-Za-z0-9_]*)")
_KEY = re.compile(r"(?:([a-z0-9*][a-z0-9-]*)=)?((env|file|vault|federation)://.+)")


@dataclass(frozen=True)
class UpOptions:
    """What `daypass up` was asked."""

    directory: Path
    port: int = 8700
    admin_port: int = 8701
    tls: bool = False
    anthropic_keys: Sequence[str] = ()
    shared_key: bool = False
    anthropic_url: str | None = None
    policy: Path | None = None
    prices: Path | None = None
    vault_addr: str | None = None
    vault_token_file: Path | None = None
    as_json: bool = False


class State:
    """The directory; `claimed` makes it and takes the lock."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.database = directory / "daypass.db"
        self.keys = directory / "keys"
        self.logs = directory / "logs"
        self.tls = directory / "tls"
        self.broker_socket = directory / "run" / "broker.sock"
        # Alone in its folder, which is what a sandbox gets mounted: see the broker's handout.
        self.proxy_socket = directory / "run" / "proxy" / "proxy.sock"
        # Not in that folder: a sandbox has no business with figures about the others.
        self.metrics_socket = directory / "run" / "metrics.sock"
        self.credential_file = directory / "admin.credential"
        self.config_file = directory / "config.json"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Own the directory: made, locked, and cleared of the sockets of a run that was killed.

        Raises `SettingsError` when another `daypass up` owns it or its path is too long for a
        socket.
        """
        import fcntl

        if len(os.fsencode(self.proxy_socket)) > _LONGEST_SOCKET_PATH:
            raise SettingsError(
                f"the path of {self.directory} is too long for a socket in it",
                hint="choose a shorter one with --dir",
            )
        private_dir(self.directory)
        for folder in (self.keys, self.logs, self.broker_socket.parent, self.proxy_socket.parent):
            private_dir(folder)
        with open(self.directory / "up.lock", "a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise SettingsError(
                    f"daypass is already up in {self.directory}",
                    hint="use it, stop it, or choose another directory with --dir",
                ) from None
            for path in (self.broker_socket, self.proxy_socket, self.metrics_socket):
                path.unlink(missing_ok=True)
            yield

    def log_file(self, service: str) -> Path:
        """Where a service logs; one that has grown large is put aside first."""
        path = self.logs / f"{service}.log"
        if path.exists() and path.stat().st_size > _LARGEST_LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        return path

    def write_config(self, urls: Mapping[str, str]) -> None:
        """Leave `config.json`, by which the other commands find the services."""
        content = {
            **urls,
            "proxy_socket": str(self.proxy_socket),
            "credential_file": str(self.credential_file),
        }
        write_private(self.config_file, json.dumps(content, indent=2).encode() + b"\n")


@dataclass(frozen=True)
class Plan:
    """Addresses and environments of both services, fixed before anything starts."""

    proxy_url: str
    admin_url: str
    ca_file: Path | None
    broker: dict[str, str]
    proxy: dict[str, str]
    policy: bytes | None  # to be applied, None for the default one


def make_plan(options: UpOptions, state: State, env: Mapping[str, str] | None = None) -> Plan:
    """Work out all settings.

    Raises `SettingsError` for a taken port, a bad key reference or an unreadable policy.
    """
    env = settings.environment() if env is None else env
    if options.port == options.admin_port != 0:
        raise SettingsError(
            f"proxy and admin cannot share port {options.port}",
            hint="change --port or --admin-port",
        )
    port, admin_port = (
        free_port(options.port, "--port"),
        free_port(options.admin_port, "--admin-port"),
    )
    # Over TLS the name must be in the certificate; without, the address needs no resolver.
    proxy_url = f"https://localhost:{port}" if options.tls else f"http://127.0.0.1:{port}"
    ca_file = state.tls / "ca.pem" if options.tls else None
    common = {
        **_given(env, *_BASIC, *_COMMON),
        "PYTHONSAFEPATH": "1",
        "DAYPASS_ISSUER": proxy_url,
        "DAYPASS_DATABASE_URL": f"sqlite:///{state.database}",
    }
    vault = {**_matching(env, _VAULT), **_vault_options(options)}
    broker = {
        **common,
        **_matching(env, _BROKER),
        # The broker signs with a vault, or has keys there from before, only where this is said.
        **(vault if env.get("DAYPASS_SIGNING") else {}),
        "DAYPASS_BROKER_INTERNAL": f"unix:{state.broker_socket}",
        "DAYPASS_BROKER_ADMIN": f"127.0.0.1:{admin_port}",
        "DAYPASS_BROKER_KEYS_DIR": str(state.keys),
        "DAYPASS_PUBLIC_URL": proxy_url,
        **({"DAYPASS_CA_FILE": str(ca_file)} if ca_file else {}),
    }
    proxy = {
        **common,
        "DAYPASS_PROXY_METRICS_LISTEN": f"unix:{state.metrics_socket}",
        **_matching(env, _PROXY),
        **vault,
        "DAYPASS_PROXY_LISTEN": f"127.0.0.1:{port},unix:{state.proxy_socket}",
        "DAYPASS_BROKER_URL": f"unix:{state.broker_socket}",
        **_proxy_options(options, state),
        **_provider_keys(options, env),
    }
    admin_url = f"http://127.0.0.1:{admin_port}"
    return Plan(proxy_url, admin_url, ca_file, broker, proxy, _policy(options.policy))


def _proxy_options(options: UpOptions, state: State) -> dict[str, str]:
    found = {
        "DAYPASS_ANTHROPIC_URL": options.anthropic_url,
        "DAYPASS_PRICES": options.prices and options.prices.absolute(),
        "DAYPASS_PROXY_TLS_CERT": state.tls / "server.pem" if options.tls else None,
        "DAYPASS_PROXY_TLS_KEY": state.tls / "server.key" if options.tls else None,
    }
    return {name: str(value) for name, value in found.items() if value}


def _vault_options(options: UpOptions) -> dict[str, str]:
    found = {
        "DAYPASS_VAULT_ADDR": options.vault_addr,
        "DAYPASS_VAULT_TOKEN_FILE": options.vault_token_file
        and options.vault_token_file.absolute(),
    }
    return {name: str(value) for name, value in found.items() if value}


def _provider_keys(options: UpOptions, env: Mapping[str, str]) -> dict[str, str]:
    """The key references, and the variables that env:// references name: for the proxy alone.

    Anthropic's key may be left out where another provider's are set.
    """
    entries, passed = [], _named_elsewhere(env)
    wanted: Sequence[str] = options.anthropic_keys
    if not wanted and (env.get("ANTHROPIC_API_KEY") or not any(env.get(n) for n in _OTHERS)):
        wanted = ("env://ANTHROPIC_API_KEY",)
    for given in wanted:
        match = _KEY.fullmatch(given)
        if match is None:
            raise SettingsError(
                f"{_harmless(given)} is not a key reference",
                hint="write [TENANT=]env://NAME, file:///PATH or vault://MOUNT/PATH#FIELD",
            )
        tenant, reference, kind = match.groups()
        if kind == "env":
            name = reference[len("env://") :]
            if not env.get(name):
                raise SettingsError(
                    f"{name} is not set, so there is no provider key",
                    hint=f"run `export {name}=…`, or pass --anthropic-key file:///… or vault://…",
                )
            passed[name] = env[name]
        if kind == "vault" and not (options.vault_addr or env.get("DAYPASS_VAULT_ADDR")):
            raise SettingsError("no Vault address for a vault:// key", hint="pass --vault-addr")
        everyone = options.shared_key or "{tenant}" in reference
        entries.append(f"{tenant or ('*' if everyone else 'default')}={reference}")
    found = {**passed, **({"DAYPASS_ANTHROPIC_KEYS": ",".join(entries)} if entries else {})}
    return {**found, "DAYPASS_SHARED_KEYS": "1"} if options.shared_key else found


def _named_elsewhere(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that the keys of other providers name; the proxy says what is wrong there."""
    texts = [env.get("DAYPASS_OPENAI_KEYS", "")]
    with suppress(OSError, UnicodeDecodeError):
        if env.get("DAYPASS_UPSTREAMS"):
            texts.append(Path(env["DAYPASS_UPSTREAMS"]).read_text(encoding="utf-8"))
    return _given(env, *(name for text in texts for name in _ENV_KEY.findall(text)))


def _policy(path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path else None
    except OSError as error:
        raise SettingsError(
            f"cannot read the policy {path}: {error.strerror}", hint="check the path"
        ) from None


def _harmless(text: str) -> str:
    """A wrong --anthropic-key may well be the key itself, so it is not repeated."""
    return repr(text) if "://" in text else "the given text"


def free_port(port: int, flag: str) -> int:
    """`port` if it is free, or any free one for 0; raises `SettingsError` naming the flag."""
    if not 0 <= port <= 65_535:
        raise SettingsError(f"{flag} {port} is not a port", hint="0 to 65535, 0 for any")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise SettingsError(
                f"cannot listen on 127.0.0.1:{port}: {(error.strerror or '').lower()}",
                hint=f"stop what listens there, or choose another with {flag}",
            ) from None
        found: int = probe.getsockname()[1]
        return found


def _given(env: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: env[name] for name in names if env.get(name)}


def _matching(env: Mapping[str, str], names: re.Pattern[str]) -> dict[str, str]:
    """What is set of `names`; files are named in full, for the services run elsewhere."""
    found = {name: value for name, value in env.items() if value and names.fullmatch(name)}
    files = (name for name in found if name.endswith("_FILE") or name in _FILES)
    return {**found, **{name: str(Path(found[name]).absolute()) for name in files}}
