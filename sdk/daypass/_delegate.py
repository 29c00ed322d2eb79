"""Delegation: a narrower access token for a sub-agent, bought with the one at hand.

The broker decides; here only what is asked for is put into its words. A scope is asked for by what
it is to be less of, so the buyer's own is read first (`GET /v1/self`) and cut down.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from daypass import _exchange
from daypass import _settings as settings
from daypass._errors import Refused, SettingsError
from daypass._http import Origin, refusal
from daypass._token import SELF_PATH, TokenProvider

# What gives access, or leads to something that does, beside the one token of a sub-agent.
_OTHER_ACCESS = (
    *settings.LAUNCHES,
    *settings.FEDERATION,
    *settings.SHADOWING,
    *settings.ADMIN_ONLY,
    "ANTHROPIC_CONFIG_DIR",
    "DAYPASS_TOKEN_CACHE",
    "DAYPASS_TOKEN_FILE",
)


@dataclass(frozen=True)
class Child:
    """A token that was bought, and where it is good; `expires_at` in wall-clock epoch seconds.

    It cannot be renewed. Its holder may buy narrower ones with it in turn.
    """

    token: str = field(repr=False)
    base_url: str
    expires_at: float

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment for a sub-agent's process: `env` (default: ours) with this token alone.

        Whatever else would give access is removed. A process that runs as the same user can read
        our files all the same: to hold it to this token, run it as another one.
        """
        own = dict(settings.environment() if env is None else env)
        for name in _OTHER_ACCESS:
            own.pop(name, None)
        return {
            **own,
            "ANTHROPIC_BASE_URL": self.base_url,
            "ANTHROPIC_AUTH_TOKEN": self.token,
            "OPENAI_BASE_URL": f"{self.base_url}/openai/v1",
            "OPENAI_API_KEY": self.token,
        }


def delegate(
    *,
    models: Sequence[str] | None = None,
    endpoints: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    domains: Sequence[str] | None = None,
    max_output_tokens: int | None = None,
    body: str | None = None,
    budget_usd: str | Decimal | int | None = None,
    limits: Mapping[str, object] | None = None,
    lifetime: int | None = None,
    provider: TokenProvider | None = None,
    token: str | None = None,
    base_url: str | None = None,
) -> Child:
    """Buy a narrower token; what is left out is as the buyer's.

    `body` is how much of a request may be unknown to the proxy: `strict` nothing, `compat` options,
    `open` kinds; a buyer's own that is narrower stays.
    `budget_usd` is set aside in the buyer's budget until the child is over, `limits` are those of
    the policy document (`requests_per_minute`, …), `lifetime` is in seconds and ends with the
    buyer's token at the latest. The buyer is `provider`, or the holder of `token`, or whom the
    environment names: the sandbox, or a sub-agent with one token. Raises `SettingsError` for what
    no buyer has, `Refused` for what this one may not sell, `Revoked` when it may sell nothing more,
    `Unavailable` or `Unreachable`.
    """
    for name, names in (
        ("models", models),
        ("endpoints", endpoints),
        ("features", features),
        ("domains", domains),
    ):
        if isinstance(names, str):  # its letters would be taken for names
            raise SettingsError(f"{name} is one text", hint=f"write {name}=[{names!r}]")
    if body is not None and body not in _BODIES:
        raise SettingsError(f"body is not one of {', '.join(_BODIES)}", hint='write body="strict"')
    wanted = dict(limits or {})
    if budget_usd is not None:
        wanted["budget_usd"] = _usd(budget_usd)
    url, held = _buyer(provider, token, base_url, lifetime)
    origin = Origin(url)
    cut = {
        "models": models,
        "endpoints": endpoints,
        "features": features,
        "allowed_domains": domains,
        "max_output_tokens": max_output_tokens,
        "body": body,
    }
    given = {name: value for name, value in cut.items() if value is not None}
    details = _narrowed(_own_details(origin, held), given) if given else None
    bought = _exchange.buy(origin, held, details=details, limits=wanted, lifetime=lifetime)
    return Child(bought.access_token, url, time.time() + bought.lifetime)


def command(options: Namespace) -> int:
    """Buy a narrower token and print it, as `daypass delegate`."""
    from daypass._render import show_json
    from daypass._sandboxes import limits_given

    child = delegate(
        models=options.model,
        endpoints=options.endpoint,
        features=options.feature,
        domains=options.domain,
        max_output_tokens=options.max_output_tokens,
        body=options.body,
        limits=limits_given(options),
        lifetime=options.lifetime,
        base_url=options.base_url,
    )
    if options.json:
        found = {"access_token": child.token, "expires_at": int(child.expires_at)}
        show_json({**found, "base_url": child.base_url})
    else:
        print(child.token)
    return 0


def _buyer(
    provider: TokenProvider | None, token: str | None, base_url: str | None, lifetime: int | None
) -> tuple[str, str]:
    """Return where to buy, and with which token."""
    env = settings.environment()
    if provider is None and token is None:
        held = settings.sandbox_settings(env)
        if held.launch is None and held.launch_file is None:
            token = _given_token(env)
    if token is not None:
        url = base_url or settings.sandbox_settings(env).base_url
        if url is None:
            raise SettingsError("no proxy address", hint="set ANTHROPIC_BASE_URL")
        return settings.bare_origin(url), token
    provider = provider or TokenProvider(base_url)
    held_token = provider.get()
    if lifetime is not None and held_token.expires_at < time.time() + lifetime:
        # A child ends with the token it was bought with: with a fresh one it has all its life.
        held_token = provider.get(rejected=held_token.value)
    return provider.base_url, held_token.value


def _given_token(env: Mapping[str, str]) -> str | None:
    """The token that `daypass run` keeps fresh for us, else the one that a sub-agent was given."""
    file = env.get("DAYPASS_TOKEN_FILE")
    if file:
        return Path(file).read_text(encoding="ascii").strip()
    return env.get("ANTHROPIC_AUTH_TOKEN") or None


def _own_details(origin: Origin, token: str) -> list[dict[str, Any]]:
    answer = origin.call("GET", SELF_PATH, headers={"authorization": f"Bearer {token}"})
    if answer.status != 200:
        raise refusal(answer)
    found = answer.json()
    details = found.get("authorization_details") if isinstance(found, dict) else None
    if not isinstance(details, list) or not all(isinstance(one, dict) for one in details):
        raise Refused(
            "the proxy does not say what this token may call",
            hint="check that the base URL is a daypass proxy",
            status=answer.status,
        )
    return details


def _narrowed(own: list[dict[str, Any]], wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Cut every provider's part of a scope down to what is wanted of it.

    A provider of which no model or no endpoint is left is left out. What none of them has is an
    error here already: cut down to nothing it would look like what was asked for.
    """
    left = [dict(detail) for detail in own]
    for name, covers in _COVERS.items():
        if name not in wanted:
            continue
        for item in wanted[name]:
            if not any(covers(detail.get(name, ()), item) for detail in own):
                raise SettingsError(
                    f"{name}: {item} is not within the buyer's scope", hint="see GET /v1/self"
                )
        for detail in left:
            has = detail.get(name, ())
            detail[name] = [item for item in wanted[name] if covers(has, item)]
    if "max_output_tokens" in wanted:
        for detail in left:
            most = detail.get("max_output_tokens", wanted["max_output_tokens"])
            detail["max_output_tokens"] = min(most, wanted["max_output_tokens"])
    if "body" in wanted:
        for detail in left:
            own_body = detail.get("body", _USUAL_BODY)
            detail["body"] = min(own_body, wanted["body"], key=_BODIES.index)
    kept = [detail for detail in left if detail["models"] and detail["endpoints"]]
    if not kept:
        raise SettingsError(
            "no provider within the buyer's scope has these models and endpoints together",
            hint="see GET /v1/self",
        )
    return kept


def _has(own: Sequence[str], item: str) -> bool:
    return item in own


def _names(own: Sequence[str], model: str) -> bool:
    return any(model.startswith(one[:-1]) if one.endswith("*") else model == one for one in own)


def _reaches(own: Sequence[str], domain: str) -> bool:
    return any(f".{domain}".endswith(f".{one}") for one in own)


_BODIES = ("strict", "compat", "open")
_USUAL_BODY = "compat"
_COVERS: dict[str, Callable[[Sequence[str], str], bool]] = {
    "models": _names,
    "endpoints": _has,
    "features": _has,
    "allowed_domains": _reaches,
}


def _usd(amount: str | Decimal | int) -> str:
    if isinstance(amount, bool) or not isinstance(amount, (str, Decimal, int)):
        raise SettingsError(
            "budget_usd must not be a float", hint='write "0.50" or Decimal("0.50")'
        )
    return f"{amount:f}" if isinstance(amount, Decimal) else str(amount)
