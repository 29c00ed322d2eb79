"""`python -m daypass_migrations upgrade|current --database-url URL`: the migration job."""

from __future__ import annotations

import argparse
import sys

from sqlalchemy.exc import SQLAlchemyError

from daypass_migrations import HEAD, current, upgrade


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status (1: failed, 3: `current` is not HEAD)."""
    parser = argparse.ArgumentParser(prog="daypass_migrations", description=__doc__)
    parser.add_argument("command", choices=("upgrade", "current"))
    parser.add_argument(
        "--database-url", required=True, help="sqlite:////path.db or postgresql://…"
    )
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "upgrade":
            upgrade(arguments.database_url)
        revision = current(arguments.database_url)
    except ValueError as error:
        print(f"daypass_migrations: --database-url: {error}", file=sys.stderr)
        return 1
    except SQLAlchemyError as error:
        # The driver's text may repeat the connection string, the class name does not.
        print(f"daypass_migrations: the database failed: {type(error).__name__}", file=sys.stderr)
        return 1
    print(revision or "none")
    return 0 if revision == HEAD else 3


if __name__ == "__main__":
    sys.exit(main())
