"""`python -m daypass_migrations upgrade|current`: the migration as a job of its own."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from daypass_migrations import HEAD, MigrationRefused, current, upgrade


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status (1: failed, 3: `current` is not HEAD)."""
    parser = argparse.ArgumentParser(prog="daypass_migrations", description=__doc__)
    parser.add_argument("command", choices=("upgrade", "current"))
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--database-url", help="sqlite:////path.db or postgresql://…")
    where.add_argument("--database-url-file", type=Path, help="a file that holds it")
    arguments = parser.parse_args(argv)
    path: Path | None = arguments.database_url_file
    try:
        url = arguments.database_url if path is None else path.read_text(encoding="utf-8").strip()
        if arguments.command == "upgrade":
            upgrade(url)
        revision = current(url)
    except ValueError as error:
        print(f"daypass_migrations: the database's URL {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"daypass_migrations: {path}: {error.strerror}", file=sys.stderr)
        return 1
    except MigrationRefused as error:
        print(f"daypass_migrations: {error}", file=sys.stderr)
        return 1
    except SQLAlchemyError as error:
        # The driver's text may repeat the connection string, the class name does not.
        print(f"daypass_migrations: the database failed: {type(error).__name__}", file=sys.stderr)
        return 1
    print(revision or "none")
    # What `upgrade` leaves beyond HEAD suits this release.
    return 0 if revision == HEAD or arguments.command == "upgrade" else 3


if __name__ == "__main__":
    sys.exit(main())
