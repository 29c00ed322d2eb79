"""The broker's command line: serve, and what must be possible before anything is served.

`migrate`, `credential create`, `apply` and `keys replace` work on the database directly: whoever
may read its URL is the first administrator. Answers go to standard output, problems as one sentence
to standard error. Exit codes: 0 done, 1 refused or failed, 2 wrong usage or settings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

import daypass_migrations
from daypass_broker import (
    admin,
    app,
    credential,
    db,
    health,
    key_ring,
    policy_store,
    revocation,
    settings,
    tls,
)
from daypass_broker.act import SYSTEM, Act, acting
from daypass_broker.chain import kept as kept_heads
from daypass_broker.chain import verify as chain
from daypass_broker.chain.links import Signed
from daypass_broker.credential import Role
from daypass_broker.fields import FieldError
from daypass_broker.keys import KeyRingError
from daypass_broker.retention import RetentionError
from daypass_broker.retention import command as retention
from daypass_core import hardening, log, server
from daypass_core.clock import SystemClock
from daypass_core.ids import new_id
from daypass_core.problem import Refusal
from daypass_core.settings import Reader, SettingsError, environment

_FAILED, _USAGE = 1, 2

Command = Callable[[argparse.Namespace], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
    command: Command = options.command
    try:
        command(options)
    except SettingsError as error:
        return _complain(error, _USAGE)
    except Refusal as refusal:
        return _complain(refusal.problem.title, _FAILED)
    except (
        FieldError,
        KeyRingError,
        app.NotMigrated,
        daypass_migrations.MigrationRefused,
        db.StoreUnavailable,
        tls.TlsError,
        RetentionError,
        ValueError,
    ) as error:
        return _complain(error, _FAILED)
    except sa.exc.SQLAlchemyError as error:
        # The statement and its parameters stay out: they are no help to the reader.
        reason = str(getattr(error, "orig", None) or type(error).__name__).partition("\n")[0]
        return _complain(f"database: {reason}", _FAILED)
    except OSError as error:
        return _complain(f"{error.filename or 'file'}: {error.strerror}", _FAILED)
    return 0


def _complain(problem: object, code: int) -> int:
    print(f"daypass-broker: {problem}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m daypass_broker",
        description="The token broker of daypass. Settings are read from DAYPASS_* variables.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add(commands, "serve", _serve, "run the broker until SIGTERM or SIGINT")
    _add(commands, "migrate", _migrate, "bring the database to the newest schema")
    credentials = commands.add_parser("credential", help="credentials of admins and orchestrators")
    actions = credentials.add_subparsers(required=True, metavar="ACTION")
    create = _add(actions, "create", _create_credential, "make a credential and show it once")
    create.add_argument("--role", required=True, choices=[role.value for role in Role])
    create.add_argument("--orchestrator", metavar="NAME", help="which one, for role orchestrator")
    create.add_argument("--json", action="store_true", help="print one JSON object")
    apply = _add(commands, "apply", _apply, "apply a policy file")
    apply.add_argument("file", type=Path, metavar="FILE", help="YAML or JSON")
    apply.add_argument("--dry-run", action="store_true", help="say what would change, no more")
    apply.add_argument("--json", action="store_true", help="print one JSON object")
    keys = commands.add_parser("keys", help="signing keys")
    actions = keys.add_subparsers(required=True, metavar="ACTION")
    _add(actions, "replace", _replace_keys, "make new signing keys for those whose files are lost")
    _add(commands, "openapi", _openapi, "print the OpenAPI document of the admin listener")
    _add_retention(commands)
    certificates = _add(commands, "tls", _tls, "make or renew our own CA and a server certificate")
    certificates.add_argument("--dir", type=Path, required=True, help="where the files go")
    certificates.add_argument(
        "--host", action="append", required=True, help="name or address to certify; repeatable"
    )
    certificates.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _add_retention(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    prune = _add(commands, "prune", _prune, "export what is old, and delete it")
    for what in ("usage", "audit"):
        prune.add_argument(
            f"--{what}-months",
            type=int,
            metavar="N",
            help=f"keep {what} of this month and N before it; without it all of it is kept",
        )
    prune.add_argument("--export", type=Path, metavar="DIR", help="where what is pruned goes first")
    prune.add_argument("--dry-run", action="store_true", help="say what would go, no more")
    prune.add_argument("--json", action="store_true", help="print one JSON object")
    verify = _add(commands, "verify-export", _verify_export, "check what was exported")
    verify.add_argument("directory", type=Path, metavar="DIR", help="where the exports are")
    verify.add_argument("--json", action="store_true", help="print one JSON object")
    trail = _add(commands, "verify-trail", _verify_trail, "verify the audit trail's hash chain")
    trail.add_argument("--export", type=Path, metavar="DIR", help="where what was pruned is")
    trail.add_argument(
        "--heads", type=Path, metavar="FILE", help="the broker's log, kept elsewhere; - for stdin"
    )
    trail.add_argument("--json", action="store_true", help="print one JSON object")


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    command: Command,
    words: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=words, description=words.capitalize() + ".")
    parser.set_defaults(command=command)
    return parser


def _serve(_: argparse.Namespace) -> None:
    read = settings.load()
    log.configure("broker", read.log_level)
    hardening.harden()
    hardening.forget_environment()
    server.run(app.run(read))


def _migrate(_: argparse.Namespace) -> None:
    read = _environment()
    database_url = settings.database_url(read)
    read.done()
    revision = daypass_migrations.upgrade(database_url)
    print(f"database is at revision {revision}")


def _create_credential(options: argparse.Namespace) -> None:
    read = _environment()
    database_url = settings.database_url(read)
    read.done()
    with _acting(database_url) as act:
        issued = credential.issue(act, Role(options.role), options.orchestrator)
    if options.json:
        _print_json({"id": issued.id, "role": issued.role.value, "credential": issued.text})
        return
    print(issued.text)
    print("shown once: store it now; it cannot be read again", file=sys.stderr)


def _apply(options: argparse.Namespace) -> None:
    read = _environment()
    database_url, min_token_ttl = settings.database_url(read), settings.min_token_ttl(read)
    read.done()
    wanted = policy_store.read(options.file.read_bytes(), min_token_ttl=min_token_ttl)
    with _acting(database_url) as act:
        summary = policy_store.apply(act, wanted, dry_run=options.dry_run)
    if options.json:
        _print_json(summary.as_dict())
        return
    for verb, paths in (("created", summary.created), ("updated", summary.updated)):
        for path in paths:
            print(f"{verb} {path}")
    if not summary.created and not summary.updated:
        print("nothing to change")
    if summary.dry_run:
        print("dry run: nothing was written")


def _replace_keys(_: argparse.Namespace) -> None:
    read = _environment()
    database_url, key_settings = settings.database_url(read), settings.keys(read)
    read.done()
    with _opened(database_url) as engine:
        stores, options = key_ring.open_stores(key_settings), key_ring.options(key_settings)
        ring = key_ring.KeyRing(engine, stores, new_id, **options)
        replaced = ring.replace_lost(lambda lock: acting(engine, SYSTEM, new_id, lock=lock))
    for purpose in replaced:
        print(f"replaced the {purpose} key: what the lost one signed stays good until it expires")
    if not replaced:
        print("nothing to replace: every active key can be used")


def _prune(options: argparse.Namespace) -> None:
    wish = retention.Wish(
        options.usage_months, options.audit_months, options.export, options.dry_run
    )
    with _engine() as engine:
        done = retention.prune(engine, wish, _say)
    if options.json:
        _print_json(done.as_dict())
        return
    for line in done.lines():
        print(line)


def _verify_export(options: argparse.Namespace) -> None:
    """Also against the database, where one is named."""
    if any(name.startswith("DAYPASS_DATABASE_URL") for name in environment()):
        with _engine() as engine:
            count, wrong = retention.verify(engine, options.directory)
    else:
        count, wrong = retention.verify(None, options.directory)
    if options.json:
        _print_json({"exports": count, "wrong": wrong})
    else:
        print(f"{count} exports, {len(wrong)} problems")
    if wrong:
        raise RetentionError("; ".join(wrong))


def _verify_trail(options: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        kept: Iterator[Signed] | None = None
        if options.heads is not None:
            piped = str(options.heads) == "-"
            opened = sys.stdin.buffer if piped else stack.enter_context(options.heads.open("rb"))
            kept = kept_heads.read(opened)
        engine = stack.enter_context(_engine())
        found = chain.verify(engine, directory=options.export, kept=kept)
    if options.json:
        _print_json(found.as_dict())
    else:
        print("\n".join(found.lines()))
    if found.wrong:
        raise RetentionError("the audit trail is not what was sealed")


@contextmanager
def _engine() -> Iterator[sa.Engine]:
    """Open the database that the settings name."""
    read = _environment()
    database_url = settings.database_url(read)
    read.done()
    with _opened(database_url) as engine:
        yield engine


@contextmanager
def _opened(database_url: str) -> Iterator[sa.Engine]:
    """Open a database, whose schema must be one for this release."""
    engine = db.connect(database_url)
    try:
        objection = health.objection(engine)
        if objection is not None:
            raise app.NotMigrated(objection)
        yield engine
    finally:
        engine.dispose()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _openapi(_: argparse.Namespace) -> None:
    print(admin.openapi().decode(), end="")


def _tls(options: argparse.Namespace) -> None:
    made = tls.ensure(options.dir, options.host, SystemClock().now())
    paths = {"ca": made.ca_file, "cert": made.cert_file, "key": made.key_file}
    if options.json:
        _print_json({name: str(path) for name, path in paths.items()} | {"renewed": made.renewed})
        return
    for name, path in paths.items():
        print(f"{name:5} {path}")
    print("made a new server certificate" if made.renewed else "kept the server certificate")


def _environment() -> Reader:
    """Return a reader for the few settings a command needs; the rest need not be set yet."""
    return Reader(environment())


@contextmanager
def _acting(database_url: str) -> Iterator[Act]:
    """Open an act of the system itself on a database."""
    with (
        _opened(database_url) as engine,
        acting(engine, SYSTEM, new_id, lock=revocation.lock_version) as act,
    ):
        yield act


def _print_json(value: object) -> None:
    print(json.dumps(value))


if __name__ == "__main__":
    raise SystemExit(main())
