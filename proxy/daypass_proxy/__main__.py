"""`python -m daypass_proxy`: serve, or check the settings and say what is wrong with them.

Settings come from the environment; all problems are listed at once and end with exit code 2.
"""

import argparse
import sys
from collections.abc import Sequence

from daypass_core.log import configure
from daypass_core.server import harden, run
from daypass_core.settings import SettingsError
from daypass_proxy import app
from daypass_proxy.price import PriceError, PriceTable
from daypass_proxy.settings import load

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
    commands.add_parser("check", help="check the settings and the price overlay, then exit")
    command = parser.parse_args(arguments).command
    # Before any secret is read: nothing of this process goes into dumps or to its neighbours.
    configure("proxy", "info")
    harden()
    try:
        settings = load()
        PriceTable.load(settings.prices)
    except (SettingsError, PriceError) as error:
        sys.stderr.write(f"daypass-proxy: {error}\n")
        return EXIT_SETTINGS
    if command == "check":
        sys.stdout.write("settings are usable\n")
        return 0
    configure("proxy", settings.log_level)
    run(app.run(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
