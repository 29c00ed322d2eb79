"""The commands about federation rules: add, list, show, enable, disable, remove, templates.

A rule lets attested workloads of a platform have sandboxes without an orchestrator's credential.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from daypass._commands import broker
from daypass._errors import SettingsError
from daypass._render import Column, sheet, show_json, table

_RULES: tuple[Column, ...] = (
    ("id", "RULE"),
    ("name", "NAME"),
    ("tenant", "TENANT"),
    ("profile", "PROFILE"),
    ("state", "STATE"),
    ("issuer", "ISSUER"),
)
_TEMPLATES: tuple[Column, ...] = (
    ("name", "TEMPLATE"),
    ("title", "FOR"),
    ("immutable", "PIN ONE OF"),
    ("identity", "ONE SANDBOX FOR EACH"),
)


def add(options: Namespace) -> int:
    """Make a rule and print what its workloads are started with."""
    fields: dict[str, Any] = {
        "name": options.name,
        "template": options.template,
        "tenant": options.tenant,
        "profile": options.profile,
        "issuer": options.issuer,
        "audience": options.audience,
        "conditions": _conditions(options.claim),
        "identity": options.identity or None,
        "keys": _keys(options),
        "replay": options.replay,
        "after_deadline": options.after_deadline,
        "max_life_seconds": options.max_life,
        "max_sandboxes": options.max_sandboxes,
    }
    rule = broker(options).call("POST", "/v1/rules", body=_given(fields))
    if options.json:
        show_json(rule)
        return 0
    print(f"# {rule['id']}")
    for name, value in rule["environment"].items():
        print(f"{name}={value}")
    return 0


def show_all(options: Namespace) -> int:
    """List rules."""
    answer = broker(options).call("GET", "/v1/rules", query=_given({"tenant": options.tenant}))
    if options.json:
        show_json(answer)
    else:
        print(table(answer.get("rules", []), _RULES, none="no rules"))
    return 0


def show(options: Namespace) -> int:
    """Show one rule in full."""
    rule = broker(options).call("GET", _path(options))
    show_json(rule) if options.json else print(sheet(rule))
    return 0


def enable(options: Namespace) -> int:
    """Put a rule in force again."""
    return _set(options, "active", "in force")


def disable(options: Namespace) -> int:
    """Take a rule out of force."""
    return _set(options, "disabled", "disabled: nobody gets a token by it any more")


def remove(options: Namespace) -> int:
    """Remove a rule that no sandbox came by."""
    answer = broker(options).call("DELETE", _path(options))
    show_json(answer) if options.json else print(f"removed {options.id}")
    return 0


def templates(options: Namespace) -> int:
    """List the ready-made rules."""
    answer = broker(options).call("GET", "/v1/rule-templates")
    if options.json:
        show_json(answer)
        return 0
    rows = [
        {**row, "immutable": ", ".join(row["immutable"]), "identity": ", ".join(row["identity"])}
        for row in answer.get("templates", [])
    ]
    print(table(rows, _TEMPLATES, none="no templates"))
    return 0


def _set(options: Namespace, state: str, words: str) -> int:
    answer = broker(options).call("PATCH", _path(options), body={"state": state})
    show_json(answer) if options.json else print(f"{options.id} is {words}")
    return 0


def _path(options: Namespace) -> str:
    return f"/v1/rules/{quote(options.id, safe='')}"


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _conditions(claims: Sequence[str]) -> dict[str, Any]:
    """Read `--claim NAME=VALUE`; the same name again adds a value that is allowed as well."""
    found: dict[str, Any] = {}
    for text in claims:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise SettingsError(f"{text!r} is no condition", hint="write --claim NAME=VALUE")
        found.setdefault(name, []).append(value)
    return found


def _keys(options: Namespace) -> dict[str, Any] | None:
    if options.keys_url and options.keys_file:
        raise SettingsError("--keys-url and --keys-file are two places", hint="say one of them")
    if options.keys_url:
        return {"url": options.keys_url}
    if not options.keys_file:
        return None
    try:
        return {"inline": json.loads(Path(options.keys_file).read_bytes())}
    except OSError as error:
        raise SettingsError(
            f"cannot read {options.keys_file}: {error.strerror}", hint="check the path"
        ) from None
    except ValueError:
        raise SettingsError(f"{options.keys_file} is not JSON", hint="give a JWK set") from None
