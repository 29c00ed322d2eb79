"""`python -m daypass_proxy`: serve, check the settings, verify or reconcile the ledger.

Settings come from the environment; all problems are listed at once and end with exit code 2.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from daypass_core.clock import StoreClock
from daypass_core.hardening import forget_environment, harden
from daypass_core.log import configure
from daypass_core.server import run
from daypass_core.settings import SettingsError
from daypass_proxy import app, crew, key_check, serving
from daypass_proxy.ledger.store import Unreadable
from daypass_proxy.ledger.verify import verify
from daypass_proxy.price import PriceError
from daypass_proxy.reconcile import command as reconcile
from daypass_proxy.settings import load, load_database_url

EXIT_SETTINGS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m daypass_proxy",
        description="The proxy of daypass: checks tokens, injects provider keys, forwards, meters.",
        epilog="Settings are environment variables named DAYPASS_…; see docs/reference.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("serve", help="serve until SIGTERM or SIGINT")
    checking = commands.add_parser(
        "check",
        help="check the settings and the price overlay, and read every key once",
        description="Exit code 0: all is right; 1: a key cannot be read; 2: the settings are not.",
    )
    checking.add_argument("--tenant", help="read this tenant's keys where they are by {tenant}")
    checking.add_argument("--offline", action="store_true", help="read no key, ask nobody")
    verifying = commands.add_parser(
        "verify",
        help="recompute every account from its usage rows",
        description="Exit code 0: all is right; 1: there are discrepancies; 2: not readable.",
    )
    verifying.add_argument(
        "database", nargs="?", help="SQLite file or database URL (default: DAYPASS_DATABASE_URL)"
    )
    verifying.add_argument("--json", action="store_true", help="print a JSON list")
    reconciling = commands.add_parser(
        "reconcile",
        help="compare what was booked with the provider's usage report",
        description="Exit code 0: within the tolerance; 1: beyond it; 2: one side not readable.",
    )
    reconcile.add_arguments(reconciling)
    options = parser.parse_args(arguments)
    command: str = options.command
    # Before any secret is read: nothing of this process goes into dumps or to its neighbours.
    configure("proxy", "info")
    harden()
    if command == "verify":
        return _verify(options.database, as_json=options.json)
    try:
        settings = load()
        app.load_prices(settings)
    except (SettingsError, PriceError) as error:
        sys.stderr.write(f"daypass-proxy: {error}\n")
        return EXIT_SETTINGS
    if command == "check":
        sys.stdout.write("settings are usable\n")
        if options.offline:
            return 0
        return key_check.show(
            key_check.check(settings, StoreClock(), options.tenant), sys.stdout.write
        )
    configure("proxy", settings.log_level)
    if command == "reconcile":
        return reconcile.main(options, settings)
    forget_environment()
    if settings.server.proxy_workers > 1:
        return crew.serve(settings)
    run(serving.run(settings))
    return 0


def _verify(database: str | None, *, as_json: bool) -> int:
    """Print the discrepancies of a database; return the exit code."""
    try:
        found = verify(database or load_database_url())
    except (SettingsError, Unreadable) as error:
        sys.stderr.write(f"daypass-proxy: cannot verify: {error}\n")
        return EXIT_SETTINGS
    if as_json:
        sys.stdout.write(json.dumps([asdict(each) for each in found], indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{each}\n" for each in found)
        if not found:
            sys.stdout.write("every account is the sum of its usage rows\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
