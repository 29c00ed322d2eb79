"""The commands about sandboxes: create, activate, list, show, limits, heartbeat, end and more.

What is created is handed out as a shell understands it: the launch credential goes into a private
file on this machine, its environment is printed as lines to evaluate.
"""

from __future__ import annotations

import re
import shlex
import shutil
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from daypass import _settings as settings
from daypass._commands import broker
from daypass._errors import Refused, SettingsError
from daypass._files import private_dir, write_private
from daypass._render import Column, note, sheet, show_json, table
from daypass.broker import Sandbox

_COLUMNS: tuple[Column, ...] = (
    ("id", "SANDBOX"),
    ("tenant", "TENANT"),
    ("profile", "PROFILE"),
    ("state", "STATE"),
    ("spent_usd", "SPENT"),
    ("budget_usd", "BUDGET"),
    ("deadline", "DEADLINE"),
    ("labels", "LABELS"),
)
_STATES: tuple[Column, ...] = (
    ("name", "LIMIT"),
    ("of", "OF"),
    ("limit", "MOST"),
    ("used", "USED"),
    ("held", "HELD"),
    ("left", "LEFT"),
    ("resets_at", "RESETS"),
)
_OWNERS = {"limits": "sandbox", "tenant_limits": "tenant"}
_LIMITS = {
    "budget": "budget_usd",
    "day": "budget_per_day_usd",
    "month": "budget_per_month_usd",
    "tokens": "token_budget",
    "rpm": "requests_per_minute",
    "tpm": "tokens_per_minute",
    "concurrency": "concurrency",
    "over_budget": "over_budget",
    "drain_seconds": "drain_seconds",
    "drain_tokens": "drain_tokens",
}


def create(options: Namespace) -> int:
    """Register sandboxes; for people, as lines that a shell can evaluate."""
    fields: dict[str, Any] = {
        "tenant": options.tenant,
        "profile": options.profile,
        "launch": options.launch,
        "connect": options.connect,
        **limits_given(options),
        "lifetime_seconds": options.lifetime,
        "token_ttl_seconds": options.token_ttl,
        **_life(options),
        "heartbeat_seconds": options.heartbeat,
        "idle": options.idle or None,
    }
    client = broker(options)
    if options.count is not None:
        made = client.create_many(options.count, idempotency_key=options.idempotency_key, **fields)
        if options.json:
            show_json({"sandboxes": [sandbox.raw for sandbox in made]})
            return 0
    else:
        made = [client.create(idempotency_key=options.idempotency_key, **fields)]
        if options.json:
            show_json(made[0].raw)
            return 0
    if options.idle:
        for sandbox in made:
            print(sandbox.id)
        return 0
    place = Path(options.write) if options.write else _places(options)
    for sandbox in made:
        script = _hand_out(sandbox, place)
        print(script.read_text(encoding="utf-8") if len(made) == 1 else f". {script}", flush=True)
    return 0


def activate(options: Namespace) -> int:
    """Give an idle sandbox out: its lifetime begins, and its environment is printed."""
    fields = {"lifetime_seconds": options.lifetime, **_life(options)}
    return _show_handout(options, broker(options).activate(options.id, **fields).raw)


def _life(options: Namespace) -> dict[str, Any]:
    """What may be said at registering and at activating."""
    source: Any = options.source or None
    if source in (["any"], ["first"]):
        source = source[0]
    vendor, equals, ident = (options.vendor or "").partition("=")
    if options.vendor and not (equals and vendor and ident):
        raise SettingsError(f"{options.vendor!r} is no vendor", hint="write --vendor NAME=ID")
    return {
        "source": source,
        "labels": _labels(options.label) or None,
        "vendor": vendor or None,
        "vendor_id": ident or None,
    }


def heartbeat(options: Namespace) -> int:
    """Say that sandboxes live; one with a heartbeat is ended when nobody does."""
    return _each(options, broker(options).beat)


def _places(options: Namespace) -> Path:
    """Where the files of sandboxes on this machine go: beside the state of `daypass up`."""
    return private_dir(settings.state_dir(options.dir)) / "sandboxes"


def _hand_out(sandbox: Sandbox, place: Path) -> Path:
    """Write a sandbox's files, and its environment as a script to be sourced; gives the script."""
    folder = private_dir(place) / sandbox.id
    script = folder / "environment.sh"
    lines = _shell_lines(sandbox, sandbox.write(folder))
    write_private(script, lines.encode())
    return script


def _shell_lines(sandbox: Sandbox, environment: Mapping[str, str]) -> str:
    budget = sandbox.raw.get("budget_usd")
    lines = [
        f"# sandbox {sandbox.id}, tenant {sandbox.tenant}, profile {sandbox.profile},"
        f" budget {'none' if budget is None else f'USD {budget}'}, until {sandbox.deadline}",
    ]
    if sandbox.launch_mode == "single_use":
        lines.append("# single use: start the agent with `daypass run -- COMMAND`")
    lines.append(f"unset {' '.join(settings.SHADOWING)}")
    everything = {"DAYPASS_SANDBOX": sandbox.id, **environment}
    lines += [f"export {name}={shlex.quote(value)}" for name, value in everything.items()]
    return "\n".join(lines)


def _labels(given: list[str]) -> dict[str, str]:
    labels = {}
    for label in given:
        name, equals, value = label.partition("=")
        if not equals or not name:
            raise SettingsError(f"{label!r} is not a label", hint="write --label NAME=VALUE")
        labels[name] = value
    return labels


def show_all(options: Namespace) -> int:
    """List sandboxes, newest first."""
    if options.limit < 1:
        raise SettingsError(f"--limit {options.limit} shows nothing", hint="say at least 1")
    rows = list(
        broker(options).list(limit=options.limit, tenant=options.tenant, state=options.state)
    )
    if options.json:
        show_json({"sandboxes": rows})
    else:
        print(table(rows, _COLUMNS, none="no sandboxes; `daypass sandbox create` makes one"))
    return 0


def show(options: Namespace) -> int:
    """Show one sandbox with what it spent and has left."""
    _show_one(options, broker(options).get(options.id))
    return 0


def limits(options: Namespace) -> int:
    """Change limits of a sandbox; its next call meets them."""
    given = limits_given(options)
    if not given:
        raise SettingsError("say at least one limit to change", hint="such as --budget 2.50")
    if given.get("budget_usd") == "none":
        raise SettingsError("--budget cannot be none", hint="say how much, such as --budget 2.50")
    wanted = {name: None if value == "none" else value for name, value in given.items()}
    _show_one(options, broker(options).limit(options.id, **wanted))
    return 0


def limits_given(options: Namespace) -> dict[str, Any]:
    flags = ((name, getattr(options, flag)) for flag, name in _LIMITS.items())
    return {name: value for name, value in flags if value is not None}


def _show_one(options: Namespace, row: dict[str, Any]) -> None:
    if options.json:
        show_json(row)
        return
    print(sheet({name: value for name, value in row.items() if name not in _OWNERS}))
    states = [
        {"name": name, "of": owner, **state}
        for field, owner in _OWNERS.items()
        for name, state in (row.get(field) or {}).items()
    ]
    print(f"\n{table(states, _STATES, none='no limits')}")


def end(options: Namespace) -> int:
    """End sandboxes: their tokens die at once, and their files on this machine go."""
    client = broker(options)

    def act(sandbox: str) -> dict[str, Any]:
        row = client.end(sandbox)
        # An id becomes a path here, so it has to look like one of ours.
        if re.fullmatch(r"sbx_[a-z0-9]+", sandbox):
            folder = settings.state_dir(options.dir) / "sandboxes" / sandbox
            shutil.rmtree(folder, ignore_errors=True)
        if not options.json:
            print(f"ended {sandbox}")
        return row

    return _each(options, act)


def _each(options: Namespace, act: Callable[[str], dict[str, Any]]) -> int:
    """Do one thing to several sandboxes; one for which it is refused keeps it from no other."""
    answers = [_unless_refused(sandbox, act) for sandbox in options.id]
    done = [row for row in answers if row is not None]
    if options.json:
        show_json({"sandboxes": done})
    return 0 if len(done) == len(answers) else 1


def _unless_refused(sandbox: str, act: Callable[[str], dict[str, Any]]) -> dict[str, Any] | None:
    """Do it to one; raises what would be refused for the others as well."""
    try:
        return act(sandbox)
    except Refused as error:
        if error.status not in (404, 409):
            raise
        note(f"{sandbox}: {error}")
        return None


def restore(options: Namespace) -> int:
    """Lift the revocation of a sandbox, with a new launch credential; the old ones stay dead."""
    return _show_handout(options, broker(options).restore(options.id))


def launch(options: Namespace) -> int:
    """Give a sandbox a new launch credential; the one before it dies within a minute."""
    return _show_handout(options, broker(options).replace_launch(options.id))


def _show_handout(options: Namespace, answer: dict[str, Any]) -> int:
    if options.json:
        show_json(answer)
    elif "files" not in answer:
        print(f"{answer['id']} comes by its workload identity: it has no launch credential")
    else:
        script = _hand_out(Sandbox.from_answer(answer), _places(options))
        print(script.read_text(encoding="utf-8"))
    return 0
