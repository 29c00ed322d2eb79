"""The commands about sandboxes: create, list, show, limits, end, restore, launch.

What is created is handed out as a shell understands it: the launch credential goes into a private
file on this machine, its environment is printed as lines to evaluate.
"""

from __future__ import annotations

import re
import shlex
import shutil
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daypass import _settings as settings
from daypass._commands import broker
from daypass._errors import SettingsError
from daypass._files import private_dir, write_private
from daypass._render import Column, sheet, show_json, table
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
        **_given_limits(options),
        "lifetime_seconds": options.lifetime,
        "token_ttl_seconds": options.token_ttl,
        "labels": _labels(options.label) or None,
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
    place = Path(options.write) if options.write else _places(options)
    for sandbox in made:
        script = _hand_out(sandbox, place)
        print(script.read_text(encoding="utf-8") if len(made) == 1 else f". {script}", flush=True)
    return 0


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
    given = _given_limits(options)
    if not given:
        raise SettingsError("say at least one limit to change", hint="such as --budget 2.50")
    if given.get("budget_usd") == "none":
        raise SettingsError("--budget cannot be none", hint="say how much, such as --budget 2.50")
    wanted = {name: None if value == "none" else value for name, value in given.items()}
    _show_one(options, broker(options).limit(options.id, **wanted))
    return 0


def _given_limits(options: Namespace) -> dict[str, Any]:
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
    ended = []
    for sandbox in options.id:
        ended.append(client.end(sandbox))
        # An id becomes a path here, so it has to look like one of ours.
        if re.fullmatch(r"sbx_[a-z0-9]+", sandbox):
            folder = settings.state_dir(options.dir) / "sandboxes" / sandbox
            shutil.rmtree(folder, ignore_errors=True)
        if not options.json:
            print(f"ended {sandbox}")
    if options.json:
        show_json({"sandboxes": ended})
    return 0


def restore(options: Namespace) -> int:
    """Lift the revocation of a sandbox, with a new launch credential; the old ones stay dead."""
    return _show_handout(options, broker(options).restore(options.id))


def launch(options: Namespace) -> int:
    """Give a sandbox a new launch credential; the one before it dies within a minute."""
    return _show_handout(options, broker(options).replace_launch(options.id))


def _show_handout(options: Namespace, answer: dict[str, Any]) -> int:
    if options.json:
        show_json(answer)
    else:
        script = _hand_out(Sandbox.from_answer(answer), _places(options))
        print(script.read_text(encoding="utf-8"))
    return 0
