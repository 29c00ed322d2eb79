"""The commands that end things and look after it: revoke, tenant, incidents, token inspect.

Revoking everything asks first. A revocation that is not confirmed has to be taken as not made, so
nothing but the broker's own confirmation is printed as one, and the exit code says the rest.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from daypass._commands import broker
from daypass._errors import Refused, SettingsError
from daypass._render import Column, note, sheet, show_json, table

_SCOPES = ("tenant", "sandbox", "grant", "kid", "jti")
_LAUNCH = "lch_"  # what the id of a launch credential begins with
_ENDED = (
    ("tenants", "tenant closed", "tenants closed"),
    ("sandboxes", "sandbox", "sandboxes"),
    ("grants", "grant", "grants"),
    ("tokens", "live access token", "live access tokens"),
)
_TENANTS: tuple[Column, ...] = (
    ("id", "TENANT"),
    ("state", "STATE"),
    ("active_sandboxes", "SANDBOXES"),
    ("profiles", "PROFILES"),
)
_INCIDENTS: tuple[Column, ...] = (
    ("minute", "MINUTE"),
    ("subject", "WHO"),
    ("tenant", "TENANT"),
    ("kind", "WHAT"),
    ("count", "COUNT"),
)


def revoke(options: Namespace) -> int:
    """Revoke one thing, or everything."""
    named = {scope: getattr(options, scope) for scope in _SCOPES if getattr(options, scope)}
    if len(named) + options.everything + (options.token is not None) != 1:
        raise SettingsError(
            "say exactly one thing to revoke",
            hint="--sandbox, --tenant, --grant, --token, --jti, --kid or --all",
        )
    if options.token is not None:
        return _revoke_token(options)
    if options.everything and not options.yes:
        _ask(options)
    scope, ident = next(iter(named.items()), ("global", None))
    before: str | int | None = options.before
    if isinstance(before, str) and before.isdigit():
        before = int(before)
    try:
        answer = broker(options).revoke(scope, ident, not_before=before, reason=options.reason)
    except Refused as error:
        raise _in_our_words(
            error, {"ident": f"--{scope} {ident}", "not_before": "--before"}
        ) from None
    if options.json:
        show_json(answer)
        return 0
    what = "everything" if ident is None else f"{scope} {ident}"
    if before is not None:
        what += f", only what was issued up to {options.before}"
    _show_effect(answer, what)
    if (answer.get("effect") or {}).get("tenants"):
        print(f"tenant {ident} is closed until: daypass tenant restore {ident}")
    return 0


def _in_our_words(error: Refused, flags: Mapping[str, str]) -> Refused:
    """The same refusal, about a flag of the command where the broker named a field."""
    flag = flags.get(error.field or "")
    if flag is None:
        return error
    text = error.message.removeprefix(f"{error.field}: ")
    return Refused(
        f"{flag}: {text}", hint=error.hint, status=error.status, code=error.code, field=error.field
    )


def _revoke_token(options: Namespace) -> int:
    if options.before is not None or options.reason is not None:
        raise SettingsError("a token ends alone and at once", hint="leave --before, --reason out")
    answer = broker(options).revoke_token(_token(options.token))
    if not answer:
        # RFC 7009 has the broker answer 200; whoever pasted the wrong text must hear of it.
        raise Refused(
            "nothing was revoked: that is no live token of this broker, or of another tenant",
            hint="check that all of it was given; `daypass revoke --sandbox ID` ends all of one",
            status=200,
        )
    if options.json:
        show_json(answer)
        return 0
    _show_effect(answer, f"{answer['scope']} {answer['ident']}")
    return 0


def _token(given: str) -> str:
    """Return the token itself; from standard input, others on this machine cannot see it.

    Raises `SettingsError` when there is none.
    """
    if given == "-" and sys.stdin.isatty():
        note("paste the token, then press Ctrl-D")
    text = (sys.stdin.read() if given == "-" else given).strip()
    if not text:
        raise SettingsError("no token was given", hint="write it to standard input")
    return text


def _ask(options: Namespace) -> None:
    """Have a person confirm the end of everything; raises SettingsError where nobody can."""
    tenants = broker(options).tenants()
    count = sum(row["active_sandboxes"] for row in tenants)
    told = (
        f"this ends every token and every active sandbox ({count}) of every tenant ({len(tenants)})"
    )
    if options.before is not None:
        told += f", as far as they were made up to {options.before}"
    if not sys.stdin.isatty():
        raise SettingsError(f"{told}; nobody is here to confirm it", hint="pass --yes")
    print(f"{told}. Type `all` to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != "all":
        raise SettingsError("nothing was revoked", hint="type `all`, or pass --yes")


def _show_effect(answer: dict[str, Any], what: str) -> None:
    """Say what has ended, and the version that says so in every proxy's metrics."""
    effect = answer.get("effect") or {}
    parts = [
        f"{effect[name]} {one if effect[name] == 1 else many}"
        for name, one, many in _ENDED
        if effect.get(name)
    ]
    if str(answer.get("ident")).startswith(_LAUNCH):
        print(f"revoked {what}, a launch credential: nobody gets a token with it any more")
        print("tokens that it brought go on; `daypass revoke --sandbox ID` ends these too")
    else:
        print(f"revoked {what}: running calls are being cut")
        print(f"ended: {', '.join(parts) or 'nothing that was still in use'}")
    if answer.get("version"):
        print(f"in force at every proxy from version {answer['version']} of the revocations on")


def inspect_token(options: Namespace) -> int:
    """Say what a token says and that it is good; ends with 1 when it is not."""
    answer = broker(options).inspect(_token(options.text))
    show_json(answer) if options.json else print(sheet(answer))
    return 0 if answer.get("active") else 1


def tenant_list(options: Namespace) -> int:
    """List tenants with their state."""
    rows = broker(options).tenants()
    show_json({"tenants": rows}) if options.json else print(table(rows, _TENANTS, none="none"))
    return 0


def tenant_restore(options: Namespace) -> int:
    """Open a tenant again that was revoked."""
    answer = broker(options).restore_tenant(options.id)
    if options.json:
        show_json(answer)
    else:
        print(f"tenant {options.id} is active; its revoked sandboxes are restored one by one")
    return 0


def incidents(options: Namespace) -> int:
    """Show what was refused or looks wrong, newest minute first."""
    if options.csv and options.json:
        raise SettingsError("--csv and --json are two answers", hint="say one of them")
    names = ("tenant", "sandbox", "kind", "since", "until")
    asked = {name: getattr(options, name) for name in names}
    if options.csv:
        for page in broker(options).incidents_csv(**asked):
            sys.stdout.buffer.write(page.encode())
        sys.stdout.flush()
        return 0
    answer = broker(options).incidents(limit=options.limit, **asked)
    if options.json:
        show_json(answer)
    else:
        print(table(answer.get("rows", []), _INCIDENTS, none="no incidents"))
    return 0
