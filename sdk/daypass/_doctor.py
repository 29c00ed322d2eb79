"""`daypass doctor`: is this a place where an agent can work with a day pass, and with nothing else?

Asked inside a sandbox, by whoever built it. Each check is one line that says what was found, and
what to do about a problem; a check whose ground another one lacks is left out. The launch
credential is exchanged as `daypass token` does it.
"""

from __future__ import annotations

import http.client
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from daypass import _settings as settings
from daypass._errors import DaypassError, Refused
from daypass._http import Answer, Origin
from daypass._render import show_json, text
from daypass._token import SELF_PATH, AccessToken, TokenProvider

# Where the keys are good that a sandbox must not have, nor need.
VENDORS = ("api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com")
VENDOR_SECONDS = 3.0
# Certificates and the ends of tokens are read by the clock here; the services allow as much.
MOST_SKEW_SECONDS = 30.0


@dataclass(frozen=True)
class Check:
    """One finding: what was looked at, whether it is well, and a sentence."""

    name: str
    ok: bool
    text: str


Reaches = Callable[[str], bool]


def examine(provider: TokenProvider, reaches: Reaches | None = None) -> Iterator[Check]:
    """Look at everything, in the order in which a call needs it.

    `reaches` says whether a vendor's host can be reached. Raises `SettingsError` for what is wrong
    with a setting itself.
    """
    yield _variables()
    proxy = _proxy(Origin(provider.base_url))
    yield proxy
    if proxy.ok:
        yield from _pass(provider)
    yield _vendors(reaches or can_reach)


def _variables(env: Mapping[str, str] | None = None) -> Check:
    env = settings.environment() if env is None else env
    names = [name for name in settings.SHADOWING if env.get(name)]
    if names:
        return Check(
            "variables",
            False,
            f"{', '.join(names)} set: official clients would use that instead of the day pass;"
            " unset it, or start the agent with `daypass run`",
        )
    return Check("variables", True, "no key or token of another kind is set")


def _proxy(origin: Origin) -> Check:
    """Whether the proxy answers, is ready, and over TLS has a certificate that is trusted."""
    try:
        answer = origin.call("GET", "/readyz")
    except DaypassError as error:
        return Check("proxy", False, str(error))
    if answer.status != 200:
        return Check("proxy", False, f"{origin.url} is not ready: {_said(answer)}; try again")
    kind = {"https": "over TLS, its certificate is trusted", "unix": "on a Unix socket"}
    how = kind.get(urlsplit(origin.url).scheme, "in plain text, on loopback")
    return Check("proxy", True, f"{origin.url} is ready, {how}")


def _said(answer: Answer) -> str:
    """The start of an answer that is no JSON of ours, fit for a line."""
    return text(" ".join(answer.body[:200].decode(errors="replace").split())) or str(answer.status)


def _pass(provider: TokenProvider) -> Iterator[Check]:
    """The day pass itself: that there is one, what it is for, and what its times say of ours."""
    try:
        held = provider.verified()
        found = _self(provider, held)
    except DaypassError as error:
        yield Check("token", False, str(error))
        return
    who = f"{found['token_id']} of {found['sandbox']}, tenant {found['tenant']}"
    yield Check("token", True, text(who))
    yield _clock(held.expires_at - float(found["expires_at"]))
    for detail in found["authorization_details"]:
        models = ", ".join(detail["models"])
        what = f"{detail['provider']}: {', '.join(detail['endpoints'])} with {models}"
        yield Check("may call", True, text(what))
    left = (found["budget"] or {}).get("remaining_usd")
    yield Check("budget", True, "without a limit" if left is None else text(f"{left} USD left"))


def _self(provider: TokenProvider, held: AccessToken) -> Mapping[str, Any]:
    headers = {"authorization": f"Bearer {held.value}"}
    answer = Origin(provider.base_url).call("GET", SELF_PATH, headers=headers)
    found = answer.json() if answer.status == 200 else None
    if not isinstance(found, dict):
        raise Refused(
            f"{SELF_PATH} answered {answer.status}",
            hint="check that the base URL is a daypass proxy",
            status=answer.status,
        )
    return found


def _clock(ahead: float) -> Check:
    """Judge our clock by the end of one token as it is here and there."""
    if abs(ahead) <= MOST_SKEW_SECONDS:
        return Check("clock", True, f"within {MOST_SKEW_SECONDS:.0f} s of the broker's")
    which = "ahead of" if ahead > 0 else "behind"
    return Check("clock", False, f"{abs(ahead):.0f} s {which} the broker's; set the clock here")


def _vendors(reaches: Reaches) -> Check:
    """Whether code in here could go round the proxy, with a key of its own."""
    reached = [host for host in VENDORS if reaches(host)]
    if reached:
        told = f"{', '.join(reached)} can be reached: code in here could use a key of its own there"
        return Check("network", False, f"{told}; let this sandbox out to the proxy only")
    return Check("network", True, f"{', '.join(VENDORS)} cannot be reached")


def can_reach(host: str) -> bool:
    """Whether a connection to port 443 of a host can be made, as clients would make it."""
    proxy = urlsplit(settings.proxy_for("https", host) or "")
    connection = http.client.HTTPConnection(
        proxy.hostname or host, (proxy.port or 80) if proxy.hostname else 443, VENDOR_SECONDS
    )
    if proxy.hostname:
        connection.set_tunnel(host, 443)
    try:
        connection.connect()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def doctor(options: Namespace) -> int:
    """Examine this sandbox; 1 when something is wrong."""
    launch = None if options.launch is None else Path(options.launch)
    checks = list(examine(TokenProvider(options.base_url, launch_file=launch)))
    if options.json:
        show_json({"ok": all(check.ok for check in checks), "checks": list(map(asdict, checks))})
    else:
        for check in checks:
            print(f"{'ok' if check.ok else 'PROBLEM':8} {check.name:10} {check.text}")
    return 0 if all(check.ok for check in checks) else 1
