"""The commands that talk to the broker, one function each: ask, then print.

Those about sandboxes are in `_sandboxes`. A function gets the parsed options and gives an exit
code. What is printed is for people, or with `--json` the broker's answer as it is.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from daypass import _settings as settings
from daypass._errors import SettingsError
from daypass._render import Column, note, show_json, table

if TYPE_CHECKING:
    from daypass.broker import Broker

_SUMS: tuple[Column, ...] = (
    ("calls", "CALLS"),
    ("input_tokens", "INPUT"),
    ("output_tokens", "OUTPUT"),
    ("cache_creation_input_tokens", "CACHE WRITE"),
    ("cache_read_input_tokens", "CACHE READ"),
    ("pass_tokens", "PASSES"),
    ("tokens", "ALL TOKENS"),
    ("cost_usd", "COST USD"),
)
_CALLS: tuple[Column, ...] = (
    ("started_at", "STARTED"),
    ("sandbox", "SANDBOX"),
    ("model", "MODEL"),
    ("input_tokens", "INPUT"),
    ("output_tokens", "OUTPUT"),
    ("tokens", "ALL TOKENS"),
    ("cost_usd", "COST USD"),
    ("outcome", "OUTCOME"),
)
_EVENTS: tuple[Column, ...] = (
    ("at", "AT"),
    ("tag", "EVENT"),
    ("actor", "BY"),
    ("sandbox", "SANDBOX"),
    ("detail", "DETAIL"),
)
_CREDENTIALS: tuple[Column, ...] = (
    ("id", "CREDENTIAL"),
    ("role", "ROLE"),
    ("orchestrator", "ORCHESTRATOR"),
    ("created_at", "CREATED"),
    ("revoked_at", "REVOKED"),
)


def broker(options: Namespace) -> Broker:
    """The broker that the options, the environment or `daypass up` point at."""
    from daypass.broker import Broker

    found = settings.admin_settings(
        url=options.admin_url,
        credential_file=options.credential_file,
        ca_file=options.ca_file,
        directory=options.dir,
    )
    return Broker(found.url, found.credential, ca_file=found.ca_file)


def apply(options: Namespace) -> int:
    """Put a policy file in force, or say what that would change."""
    try:
        text = sys.stdin.buffer.read() if options.file == "-" else Path(options.file).read_bytes()
    except OSError as error:
        raise SettingsError(
            f"cannot read {options.file}: {error.strerror}", hint="check the path"
        ) from None
    answer = broker(options).apply(text, dry_run=options.dry_run)
    if options.json:
        show_json(answer)
        return 0
    for verb in ("created", "updated"):
        for path in answer.get(verb, []):
            print(f"{verb} {path}")
    if not answer.get("created") and not answer.get("updated"):
        print("nothing to change")
    if options.dry_run:
        print("dry run: nothing was written")
    return 0


def policy(options: Namespace) -> int:
    """Print the policy in force: JSON, which `apply` takes again, in lines that can be compared."""
    answer = broker(options).policy()
    show_json(answer) if options.json else print(json.dumps(answer, indent=2))
    return 0


def usage(options: Namespace) -> int:
    """Show calls or sums of calls, with their cost."""
    names = ("tenant", "sandbox", "model", "since", "until")
    asked = {**{name: getattr(options, name) for name in names}, "group_by": options.by}
    if options.csv and options.json:
        raise SettingsError("--csv and --json are two answers", hint="say one of them")
    if options.csv:

        def tell_pruned(before: str) -> None:
            note(f"usage before {before[:10]} was pruned, and is in its exports")

        for page in broker(options).usage_csv(tell_pruned=tell_pruned, **asked):
            # Bytes: the line ends of CSV are its own on every system.
            sys.stdout.buffer.write(page.encode())
        sys.stdout.flush()
        return 0
    answer = broker(options).usage(**asked)
    if options.json:
        show_json(answer)
        return 0
    columns = _CALLS
    if options.by:
        group = "label" if options.by.startswith("label:") else options.by
        columns = ((group, options.by.upper()), *_SUMS)
    rows = answer.get("rows", [])
    if not options.by:
        # A call in flight has no outcome yet; a dash would leave open whether it was lost.
        rows = [{**row, "outcome": row.get("outcome") or "open"} for row in rows]
    print(table(rows, columns, none="no calls"))
    totals = answer.get("totals") or {}
    if totals.get("calls"):
        which = "first" if options.by else "newest"
        shown = f"; shown: the {which} {len(rows)}" if answer.get("next") else ""
        count = _counted(totals["calls"], "call", "calls")
        print(f"\n{count}, USD {totals.get('cost_usd', '?')} in all{shown}")
        if running := totals.get("open_calls"):
            words = _counted(running, "of them is open and holds", "of them are open and hold")
            print(f"{words} USD {totals['reserved_usd']}")
        if guessed := totals.get("estimated_calls"):
            print(f"{_counted(guessed, 'of them is', 'of them are')} booked by estimate")
    if pruned := answer.get("pruned"):
        files = ", ".join(pruned.get("exports") or ()) or "a file"
        note(f"usage before {pruned.get('before', '?')[:10]} was pruned; exported to {files}")
    return 0


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def audit(options: Namespace) -> int:
    """Show the audit trail."""
    answer = broker(options).audit(
        limit=options.limit, sandbox=options.sandbox, tenant=options.tenant, tag=options.tag
    )
    if options.json:
        show_json(answer)
    else:
        print(table(answer.get("events", []), _EVENTS, none="no events"))
    return 0


def credential_create(options: Namespace) -> int:
    """Make a credential; it is shown once."""
    answer = broker(options).create_credential(options.role, options.orchestrator)
    if options.json:
        show_json(answer)
    else:
        print(answer["credential"])
        note("shown once: store it now, it cannot be read again")
    return 0


def credential_list(options: Namespace) -> int:
    """List credentials without their secret part."""
    answer = broker(options).credentials()
    if options.json:
        show_json(answer)
    else:
        print(table(answer.get("credentials", []), _CREDENTIALS, none="no credentials"))
    return 0


def credential_revoke(options: Namespace) -> int:
    """End a credential at once."""
    answer = broker(options).revoke_credential(options.id)
    show_json(answer) if options.json else print(f"revoked {options.id}")
    return 0
