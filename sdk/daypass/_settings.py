"""Reading the environment: the only file of the SDK that does.

Two readers: what a sandbox was given (`SandboxSettings`, used by the token provider and
`daypass run`) and where a person or orchestrator finds the broker (`AdminSettings`). Both take
the environment as a mapping, so tests and callers can pass their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from daypass._errors import SettingsError

RULE = "fdrl_daypass_launch"
LAUNCH_FILE = "/run/daypass/launch.jwt"
# Every one of these would win over the day pass in an official client, or would hand the agent
# more than it should hold.
SHADOWING = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE")
ADMIN_ONLY = ("DAYPASS_CREDENTIAL", "DAYPASS_CREDENTIAL_FILE", "DAYPASS_ADMIN_URL")
LAUNCHES = (
    "DAYPASS_LAUNCH",
    "DAYPASS_LAUNCH_FILE",
    "ANTHROPIC_IDENTITY_TOKEN",
    "ANTHROPIC_IDENTITY_TOKEN_FILE",
)
FEDERATION = ("ANTHROPIC_FEDERATION_RULE_ID", "ANTHROPIC_ORGANIZATION_ID")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def environment() -> Mapping[str, str]:
    """The process environment, read live."""
    return os.environ  # noqa: TID251 - the one place of this distribution


def bare_origin(url: str) -> str:
    """`url` as official clients want it: no trailing slash, no `/v1` (they add their own).

    Raises `SettingsError` for anything but http(s), and for plain http beyond loopback, where a
    launch credential would cross the network in the clear.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise SettingsError(
            f"{url!r} is not a base URL", hint="write https://host[:port]"
        ) from None
    if parts.scheme == "unix":
        return url
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"{url!r} is not a base URL", hint="write https://host[:port]")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise SettingsError(
            f"{url!r} would carry credentials in the clear",
            hint="use https, or a Unix socket with `daypass run --socket`",
        )
    bare = url.rstrip("/")
    return bare[: -len("/v1")] if bare.endswith("/v1") else bare


@dataclass(frozen=True)
class SandboxSettings:
    """What a sandbox was given. `launch` never shows in a repr."""

    base_url: str | None
    launch: str | None = field(repr=False)
    launch_file: Path | None
    rule: str
    organization: str | None
    token_cache: Path | None
    cache_dir: Path
    proxy_socket: Path | None


def sandbox_settings(env: Mapping[str, str] | None = None) -> SandboxSettings:
    """Read a sandbox's variables; ours (`DAYPASS_…`) win over the official clients' own."""
    env = environment() if env is None else env

    def first(*names: str) -> str | None:
        return next((env[name] for name in names if env.get(name)), None)

    def path(*names: str) -> Path | None:
        value = first(*names)
        return Path(value) if value else None

    launch = first("DAYPASS_LAUNCH")
    launch_file = None if launch else path("DAYPASS_LAUNCH_FILE", "ANTHROPIC_IDENTITY_TOKEN_FILE")
    if launch is None and launch_file is None:
        launch = first("ANTHROPIC_IDENTITY_TOKEN")
    if launch is None and launch_file is None and os.path.exists(LAUNCH_FILE):
        launch_file = Path(LAUNCH_FILE)
    base_url = first("DAYPASS_BASE_URL", "ANTHROPIC_BASE_URL")
    return SandboxSettings(
        base_url=bare_origin(base_url) if base_url else None,
        launch=launch,
        launch_file=launch_file,
        rule=first("ANTHROPIC_FEDERATION_RULE_ID") or RULE,
        organization=first("ANTHROPIC_ORGANIZATION_ID"),
        token_cache=path("DAYPASS_TOKEN_CACHE"),
        cache_dir=_cache_dir(env),
        proxy_socket=path("DAYPASS_PROXY_SOCKET"),
    )


def runtime_dir(env: Mapping[str, str] | None = None) -> Path:
    """The per-user directory for short-lived files; its callers check that it is private."""
    env = environment() if env is None else env
    if env.get("XDG_RUNTIME_DIR") and os.path.isdir(env["XDG_RUNTIME_DIR"]):
        return Path(env["XDG_RUNTIME_DIR"], "daypass")
    uid = os.geteuid() if hasattr(os, "geteuid") else 0
    return Path(env.get("TMPDIR") or "/tmp", f"daypass-{uid}")  # noqa: S108 - checked by private_dir


def _cache_dir(env: Mapping[str, str]) -> Path:
    given = env.get("DAYPASS_CACHE_DIR")
    return Path(given) if given else runtime_dir(env)


@dataclass(frozen=True)
class AdminSettings:
    """Where the broker's admin listener is and who we are to it."""

    url: str
    credential: str = field(repr=False)
    ca_file: Path | None = None


def state_dir(flag: str | None = None, env: Mapping[str, str] | None = None) -> Path:
    """The state directory of `daypass up`: flag, else DAYPASS_DIR, else ~/.daypass."""
    env = environment() if env is None else env
    return Path(flag or env.get("DAYPASS_DIR") or "~/.daypass").expanduser().absolute()


def check_credential(text: str, source: str) -> str:
    """Return a credential of one line; raises `SettingsError`, which never repeats the text."""
    if not (text.isascii() and text.isprintable()) or not text or " " in text:
        raise SettingsError(
            f"what {source} holds is not a credential", hint="it must be one line, dpa_… or dpo_…"
        )
    return text


def admin_settings(
    *,
    url: str | None = None,
    credential: str | None = None,
    credential_file: str | None = None,
    ca_file: str | None = None,
    directory: str | None = None,
    env: Mapping[str, str] | None = None,
) -> AdminSettings:
    """Find the broker: arguments first, then the environment, then `config.json` of `daypass up`.

    Raises `SettingsError` naming everything that is missing.
    """
    env = environment() if env is None else env
    config = _config(state_dir(directory, env))
    url = url or env.get("DAYPASS_ADMIN_URL") or config.get("admin_url")
    if not credential and not credential_file:
        credential = env.get("DAYPASS_CREDENTIAL")
        credential_file = env.get("DAYPASS_CREDENTIAL_FILE") or config.get("credential_file")
    if not credential and credential_file:
        credential = _read_secret(credential_file)
    if not url:
        raise SettingsError(
            "no broker address", hint="run `daypass up`, set DAYPASS_ADMIN_URL or pass --admin-url"
        )
    if not credential:
        raise SettingsError(
            "no credential for the broker",
            hint="set DAYPASS_CREDENTIAL_FILE or pass --credential-file",
        )
    check_credential(credential, str(credential_file or "DAYPASS_CREDENTIAL"))
    ca = ca_file or env.get("DAYPASS_CA_FILE") or config.get("ca_file")
    return AdminSettings(bare_origin(url), credential, Path(ca) if ca else None)


def _config(directory: Path) -> dict[str, str]:
    """The `config.json` that `daypass up` leaves; empty when there is none."""
    import json

    path = directory / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"cannot read {path}: {error}", hint="run `daypass up` again or delete the file"
        ) from None
    if not isinstance(found, dict):
        raise SettingsError(f"{path} is not a JSON object", hint="delete the file")
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _read_secret(path: str) -> str:
    try:
        value = Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingsError(
            f"cannot read the credential file {path}: {why}", hint="check path and permissions"
        ) from None
    if not value:
        raise SettingsError(f"the credential file {path} is empty", hint="create a new credential")
    return value


def child_environment(
    remove: tuple[str, ...], add: Mapping[str, str], env: Mapping[str, str] | None = None
) -> tuple[dict[str, str], list[str]]:
    """A copy of the environment without `remove`, with `add`; also says what was really there."""
    child = dict(environment() if env is None else env)
    gone = [name for name in remove if child.pop(name, None)]
    return {**child, **add}, gone


def proxy_for(scheme: str, host: str, env: Mapping[str, str] | None = None) -> str | None:
    """The forward proxy to use for `host`, or None. Loopback is never proxied."""
    env = environment() if env is None else env
    if host in _LOOPBACK or host.startswith("127."):
        return None
    proxies = {
        k.lower()[: -len("_proxy")]: v for k, v in env.items() if k.lower().endswith("_proxy")
    }
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy:
        return None
    # NO_PROXY as urllib reads it (names and their subdomains, `*`), without importing all of it.
    exempt = (part.strip().lstrip(".") for part in proxies.get("no", "").split(","))
    names = [part.rsplit(":", 1)[0] if part.count(":") == 1 else part for part in exempt if part]
    bypass = any(name in ("*", host) or host.endswith(f".{name}") for name in names)
    return None if bypass else proxy
