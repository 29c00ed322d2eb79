"""The command line of `daypass`: every command with its flags, and what runs it.

Also what completion and the reference of commands are made from. A command names the function that
runs it as text, so that nothing is imported to read a command line.
"""

from __future__ import annotations

import argparse
from typing import NoReturn

from daypass import __version__
from daypass._errors import SettingsError
from daypass._flags import count, life, limits


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(message, hint=f"see `{self.prog} --help`")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; also what completion and documentation are made from."""
    parser = _Parser(
        prog="daypass",
        description="Agents get a day pass, never the key.",
        epilog="Exit codes: 0 done, 1 refused or failed, 2 the question was wrong, 130 Ctrl-C.",
    )
    parser.add_argument("--version", action="version", version=f"daypass {__version__}")
    parser.set_defaults(act=None)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _local(commands)
    _sandbox(commands)
    _rule(commands)
    _admin(commands)
    _ending(commands)
    _keys(commands)
    return parser


_TIMES = "RFC 3339 or epoch seconds"
_Commands = argparse._SubParsersAction  # argparse has no public name for it


def _command(commands: _Commands[_Parser], name: str, act: str, words: str) -> _Parser:
    parser = commands.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
    parser.set_defaults(act=act)
    return parser


def _plain(commands: _Commands[_Parser], name: str, words: str) -> _Parser:
    """A command that runs here, in `_local`."""
    parser = _command(commands, name, f"daypass._local:{name}", words)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _asking(commands: _Commands[_Parser], name: str, act: str, words: str) -> _Parser:
    """A command that asks the broker, in `_commands` or `_sandboxes`."""
    parser = _command(commands, name, f"daypass.{act}", words)
    parser.add_argument("--json", action="store_true", help="print the broker's answer as JSON")
    where = parser.add_argument_group("where the broker is (default: what `daypass up` left)")
    where.add_argument("--admin-url", metavar="URL", help="or DAYPASS_ADMIN_URL")
    where.add_argument("--credential-file", metavar="FILE", help="or DAYPASS_CREDENTIAL_FILE")
    where.add_argument("--ca-file", metavar="FILE", help="certificate authority of the broker")
    where.add_argument("--dir", metavar="STATE", help="or DAYPASS_DIR; default ~/.daypass")
    return parser


def _check(
    commands: _Commands[_Parser], act: str, words: str, *, told: str | None = None
) -> _Parser:
    """A check of the database, in `_verify`; `told` SUPPRESS: the command before has these too.

    What it was told there would else be taken back by what is the default here.
    """
    parser = _command(commands, "verify", act, words)
    parser.add_argument("--json", action="store_true", default=told or False, help="print JSON")
    parser.add_argument("--database", metavar="URL", help="or DAYPASS_DATABASE_URL")
    where = "of `daypass up`, default ~/.daypass"
    parser.add_argument("--dir", metavar="STATE", default=told, help=where)
    return parser


def _local(commands: _Commands[_Parser]) -> None:
    up = _plain(commands, "up", "run broker and proxy on this machine until interrupted")
    up.epilog = "Every other setting is a DAYPASS_ variable, which is handed on to both services."
    up.add_argument("--dir", metavar="STATE", help="state directory, default ~/.daypass")
    up.add_argument("--port", type=int, default=8700, help="of the proxy, default 8700; 0 any")
    up.add_argument("--admin-port", type=int, default=8701, help="default 8701; 0 any")
    up.add_argument("--tls", action="store_true", help="serve https with a CA of our own")
    up.add_argument(
        "--anthropic-key",
        action="append",
        metavar="[TENANT=]REF",
        help="env://NAME, file:///PATH or vault://MOUNT/PATH#FIELD; repeatable,"
        " default env://ANTHROPIC_API_KEY for tenant default",
    )
    up.add_argument("--shared-key", action="store_true", help="one key for every tenant")
    up.add_argument("--anthropic-url", metavar="URL", help="default https://api.anthropic.com")
    up.add_argument("--policy", metavar="FILE", help="policy to apply at the start")
    up.add_argument("--prices", metavar="FILE", help="prices to add to our own")
    up.add_argument("--vault-addr", metavar="URL", help="of OpenBao or Vault")
    up.add_argument("--vault-token-file", metavar="FILE", help="its token")

    run = _command(commands, "run", "daypass._local:run", "run a command that holds a day pass")
    run.usage = "daypass run [options] -- COMMAND [ARGUMENT ...]"
    run.add_argument("--launch", metavar="FILE", help="launch credential, - for standard input")
    run.add_argument("--token-file", metavar="FILE", help="keep the current token in this file")
    run.add_argument("--socket", metavar="PATH", help="the proxy's Unix socket, to forward to")
    run.add_argument("--listen", metavar="HOST:PORT", help="where, default 127.0.0.1:8788")
    run.add_argument(
        "--helper", action="store_true", help="serve it a static URL that needs no token"
    )
    run.add_argument("command", nargs=argparse.REMAINDER, help="what to run")

    _token(commands)

    doctor = _command(
        commands,
        "doctor",
        "daypass._doctor:doctor",
        "say what is wrong with a sandbox, if anything",
    )
    doctor.add_argument("--launch", metavar="FILE", help="launch credential")
    doctor.add_argument("--base-url", metavar="URL", help="of the proxy, or ANTHROPIC_BASE_URL")
    doctor.add_argument("--json", action="store_true", help="print JSON")

    _delegate(commands)

    forward = _plain(commands, "forward", "forward a loopback port to the proxy's Unix socket")
    forward.add_argument("--listen", metavar="HOST:PORT", help="default 127.0.0.1:8788")
    forward.add_argument("--socket", metavar="PATH", help="or DAYPASS_PROXY_SOCKET")

    _helper(commands)

    completion = _command(commands, "completion", "completion", "print shell completion")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


def _delegate(commands: _Commands[_Parser]) -> None:
    delegate = _command(
        commands, "delegate", "daypass._delegate:command", "buy a narrower token for a sub-agent"
    )
    delegate.add_argument("--json", action="store_true", help="print JSON")
    delegate.add_argument("--base-url", metavar="URL", help="of the proxy, or ANTHROPIC_BASE_URL")
    for flag, words in (
        ("model", "one it may call, or several by a trailing *"),
        ("endpoint", "such as messages"),
        ("feature", "such as web_search"),
        ("domain", "one that tools may reach"),
    ):
        delegate.add_argument(
            f"--{flag}", action="append", metavar="NAME", help=f"{words}; repeatable"
        )
    delegate.add_argument("--max-output-tokens", type=int, metavar="N", help="of each call")
    delegate.add_argument("--body", choices=("strict", "compat", "open"), help="how strict it is")
    delegate.add_argument("--lifetime", type=int, metavar="SECONDS", help="at most our token's own")
    limits(delegate, int, "set aside in our own budget until then")


def _helper(commands: _Commands[_Parser]) -> None:
    helper = _command(
        commands,
        "helper",
        "daypass.helper:command",
        "serve a static URL that adds the access token",
    )
    helper.add_argument("--listen", metavar="HOST:PORT", help="default 127.0.0.1:8789")
    helper.add_argument("--launch", metavar="FILE", help="launch credential")
    helper.add_argument("--base-url", metavar="URL", help="of the proxy, or ANTHROPIC_BASE_URL")
    helper.add_argument("--json", action="store_true", help="print JSON")


def _token(commands: _Commands[_Parser]) -> None:
    token = _plain(commands, "token", "print a good access token")
    token.add_argument("--launch", metavar="FILE", help="launch credential, - for standard input")
    token.add_argument("--base-url", metavar="URL", help="of the proxy, or ANTHROPIC_BASE_URL")
    inspect = _asking(
        token.add_subparsers(metavar="[ACTION]"),
        "inspect",
        "_revoking:inspect_token",
        "say what a token says, if it is good now",
    )
    inspect.add_argument("text", metavar="TOKEN", nargs="?", default="-", help="default: read it")


def _sandbox(commands: _Commands[_Parser]) -> None:
    sandbox = commands.add_parser("sandbox", help="register, list and end sandboxes")
    actions = sandbox.add_subparsers(metavar="ACTION", required=True)
    create = _asking(
        actions, "create", "_sandboxes:create", "register a sandbox and print its environment"
    )
    create.add_argument("--tenant", metavar="NAME", help="needed when there is more than one")
    create.add_argument("--profile", metavar="NAME", help="needed when the tenant has several")
    limits(create, int, "at most what the profile allows")
    create.add_argument("--lifetime", type=int, metavar="SECONDS", help="until its deadline")
    create.add_argument("--token-ttl", type=int, metavar="SECONDS", help="of each access token")
    create.add_argument(
        "--launch", choices=("reusable", "single_use"), help="kind of launch credential"
    )
    create.add_argument("--connect", choices=("direct", "socket"), help="by URL or Unix socket")
    create.add_argument(
        "--heartbeat", type=int, metavar="SECONDS", help="ended when nobody says that it lives"
    )
    create.add_argument("--idle", action="store_true", help="for a warm pool: no credential yet")
    life(create)
    create.add_argument("--count", type=int, metavar="N", help="register this many at once")
    create.add_argument("--idempotency-key", metavar="KEY", help="the same key, the same answer")
    create.add_argument("--write", metavar="DIR", help="where the files go, default in STATE")

    listing = _asking(actions, "list", "_sandboxes:show_all", "list sandboxes, newest first")
    listing.add_argument("--tenant", metavar="NAME", help="only of this tenant")
    states = ("idle", "active", "expired", "ended", "revoked")
    listing.add_argument("--state", choices=states, help="only in this state")
    listing.add_argument("--limit", type=int, default=100, metavar="N", help="default 100")

    show = _asking(actions, "show", "_sandboxes:show", "show one sandbox and what it has left")
    show.add_argument("id", metavar="SANDBOX")
    change = _asking(
        actions, "limits", "_sandboxes:limits", "change limits of a sandbox, for its next call"
    )
    change.add_argument("id", metavar="SANDBOX")
    limits(change, count, "in all; every other limit may also be `none`")
    activate = _asking(
        actions,
        "activate",
        "_sandboxes:activate",
        "give an idle sandbox out, print its environment",
    )
    activate.add_argument("id", metavar="SANDBOX")
    activate.add_argument("--lifetime", type=int, metavar="SECONDS", help="until its deadline")
    life(activate)
    beat = _asking(actions, "heartbeat", "_sandboxes:heartbeat", "say that sandboxes live")
    beat.add_argument("id", metavar="SANDBOX", nargs="+")
    end = _asking(actions, "end", "_sandboxes:end", "end sandboxes; their tokens die at once")
    end.add_argument("id", metavar="SANDBOX", nargs="+")
    restore = _asking(actions, "restore", "_sandboxes:restore", "lift the revocation of a sandbox")
    restore.add_argument("id", metavar="SANDBOX")
    launch = _asking(
        actions, "launch", "_sandboxes:launch", "replace the launch credential of a sandbox"
    )
    launch.add_argument("id", metavar="SANDBOX")


def _rule(commands: _Commands[_Parser]) -> None:
    rule = commands.add_parser("rule", help="let workloads that others attest have sandboxes")
    actions = rule.add_subparsers(metavar="ACTION", required=True)
    add = _asking(actions, "add", "_rules:add", "make a federation rule")
    add.add_argument("name", metavar="NAME", help="of the rule, one a tenant")
    add.add_argument("--template", metavar="NAME", help="such as github; see `rule templates`")
    add.add_argument("--tenant", required=True, metavar="NAME", help="whose sandboxes they are")
    add.add_argument("--profile", required=True, metavar="NAME", help="what they get")
    add.add_argument("--issuer", metavar="URL", help="the `iss` of assertions, exactly")
    add.add_argument("--audience", metavar="TEXT", help="their one `aud`, exactly")
    add.add_argument(
        "--claim",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="demanded of them; repeatable, the same name again allows one value more",
    )
    add.add_argument(
        "--identity", action="append", metavar="NAME", help="names a workload; repeatable"
    )
    add.add_argument("--keys-url", metavar="URL", help="of the issuer's keys, when not discovered")
    add.add_argument("--keys-file", metavar="FILE", help="the issuer's keys, a JWK set")
    add.add_argument("--replay", choices=("until_exp", "once"), help="default until_exp")
    add.add_argument(
        "--after-deadline", choices=("refuse", "new"), help="of its sandbox, for the same workload"
    )
    add.add_argument("--max-life", type=int, metavar="SECONDS", help="of an assertion")
    add.add_argument("--max-sandboxes", type=int, metavar="N", help="alive at once, default 1000")
    listing = _asking(actions, "list", "_rules:show_all", "list federation rules")
    listing.add_argument("--tenant", metavar="NAME", help="only of this tenant")
    _asking(actions, "templates", "_rules:templates", "list the ready-made rules")
    for name, words in (
        ("show", "show one rule in full"),
        ("disable", "take a rule out of force at once"),
        ("enable", "put a disabled rule in force again"),
        ("remove", "remove a rule that no sandbox came by"),
    ):
        one = _asking(actions, name, f"_rules:{name}", words)
        one.add_argument("id", metavar="RULE")


def _admin(commands: _Commands[_Parser]) -> None:
    apply = _asking(commands, "apply", "_commands:apply", "put a policy in force")
    apply.add_argument("-f", "--file", required=True, help="YAML or JSON, - for standard input")
    apply.add_argument("--dry-run", action="store_true", help="say what would change, no more")

    _asking(commands, "policy", "_commands:policy", "print the policy in force")

    usage = _asking(commands, "usage", "_commands:usage", "show calls and what they cost")
    for name in ("tenant", "sandbox", "model"):
        usage.add_argument(f"--{name}", metavar="NAME", help=f"only of this {name}")
    usage.add_argument("--since", metavar="TIME", help=f"started at or after: {_TIMES}, or a date")
    usage.add_argument("--until", metavar="TIME", help="started before")
    usage.add_argument(
        "--by", metavar="KIND", help="tenant, sandbox, token, model, day, or label:KEY"
    )
    usage.add_argument("--csv", action="store_true", help="print every row as CSV")

    audit = _asking(commands, "audit", "_commands:audit", "show the audit trail")
    for name in ("sandbox", "tenant"):
        audit.add_argument(f"--{name}", metavar="NAME", help=f"only of this {name}")
    audit.add_argument("--tag", metavar="NAME", help="only events of this kind")
    audit.add_argument("--limit", type=int, default=50, metavar="N", help="default 50")

    trail = _check(
        audit.add_subparsers(metavar="[ACTION]"),
        "daypass._verify:trail",
        "recompute the hash chain of the trail from its events",
        told=argparse.SUPPRESS,
    )
    trail.add_argument(
        "--heads", metavar="FILE", help="the broker's log, kept elsewhere; - for standard input"
    )
    trail.add_argument("--export", metavar="DIR", help="where what was pruned is")

    ledger = commands.add_parser("ledger", help="check the ledger")
    _check(
        ledger.add_subparsers(metavar="ACTION", required=True),
        "daypass._verify:ledger",
        "recompute every account from its usage rows",
    )

    credential = commands.add_parser("credential", help="credentials of admins, orchestrators")
    actions = credential.add_subparsers(metavar="ACTION", required=True)
    create = _asking(
        actions, "create", "_commands:credential_create", "make a credential and show it once"
    )
    create.add_argument(
        "--role", required=True, choices=("admin", "orchestrator"), help="what it may do"
    )
    create.add_argument("--orchestrator", metavar="NAME", help="which, for role orchestrator")
    _asking(actions, "list", "_commands:credential_list", "list credentials")
    end = _asking(actions, "revoke", "_commands:credential_revoke", "end a credential at once")
    end.add_argument("id", metavar="CREDENTIAL")


def _ending(commands: _Commands[_Parser]) -> None:
    revoke = _asking(commands, "revoke", "_revoking:revoke", "revoke access; running calls are cut")
    for scope in ("sandbox", "tenant", "grant"):
        revoke.add_argument(f"--{scope}", metavar="ID", help=f"everything of one {scope}")
    revoke.add_argument("--kid", metavar="ID", help="everything signed with one key")
    revoke.add_argument("--jti", metavar="ID", help="one access token or launch credential")
    revoke.add_argument("--token", metavar="TOKEN", help="the same by itself; - for standard input")
    revoke.add_argument("--all", dest="everything", action="store_true", help="everybody's")
    revoke.add_argument(
        "--before", metavar="TIME", help=f"only what was issued up to then: now, {_TIMES}"
    )
    revoke.add_argument("--reason", metavar="TEXT", help="for the audit trail")
    revoke.add_argument("--yes", action="store_true", help="do not ask before --all")

    incidents = _asking(
        commands, "incidents", "_revoking:incidents", "show what was refused or looks wrong"
    )
    for name in ("tenant", "sandbox"):
        incidents.add_argument(f"--{name}", metavar="NAME", help=f"only of this {name}")
    incidents.add_argument("--kind", metavar="NAME", help="only of this kind, such as clone")
    incidents.add_argument("--since", metavar="TIME", help=f"minutes from then on: {_TIMES}")
    incidents.add_argument("--until", metavar="TIME", help="minutes before then")
    incidents.add_argument("--limit", type=int, default=50, metavar="N", help="default 50")
    incidents.add_argument("--csv", action="store_true", help="print every row as CSV")

    tenant = commands.add_parser("tenant", help="tenants, and the way back after a revocation")
    actions = tenant.add_subparsers(metavar="ACTION", required=True)
    _asking(actions, "list", "_revoking:tenant_list", "list tenants with their state")
    restore = _asking(actions, "restore", "_revoking:tenant_restore", "open a revoked tenant again")
    restore.add_argument("id", metavar="TENANT")


def _keys(commands: _Commands[_Parser]) -> None:
    keys = commands.add_parser("keys", help="what the broker signs with")
    actions = keys.add_subparsers(metavar="ACTION", required=True)
    purposes = ("access", "launch", "renewal")
    listing = _asking(actions, "list", "_keys:show_all", "list signing keys, newest first")
    listing.add_argument("--purpose", choices=purposes, help="only keys that sign this")
    rotate = _asking(actions, "rotate", "_keys:rotate", "prepare the next signing key")
    rotate.add_argument(
        "--purpose", choices=purposes, default="access", help="what it signs, default access"
    )
    rotate.add_argument("--now", action="store_true", help="sign with it in seconds, not minutes")
