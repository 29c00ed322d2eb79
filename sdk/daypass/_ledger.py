"""`daypass ledger verify`: the ledger's own check, run by the proxy's Python where the database is.

The check is `python -m daypass_proxy verify`; this finds the database and passes on what it says.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from argparse import Namespace

from daypass import _settings as settings
from daypass._errors import NotInstalled, NotVerified, SettingsError
from daypass._state import State

_URL = "DAYPASS_DATABASE_URL"
_FILE = "DAYPASS_DATABASE_URL_FILE"


def verify(options: Namespace) -> int:
    """Check every account: 0 all right, 1 discrepancies, 2 the database cannot be read.

    Raises `NotVerified` without the proxy, `SettingsError` without a database; both end with 2.
    """
    if importlib.util.find_spec("daypass_proxy") is None:
        raise NotVerified("daypass_proxy is not installed", hint=NotInstalled.usual_hint)
    url = _database(options)
    # The whole environment: a database may want PGPASSFILE and the like. The URL may hold a
    # password, so it is not an argument, which everybody on the machine could read.
    where, others = ({}, ()) if url is None else ({_URL: url}, (_FILE,))
    env, _ = settings.child_environment(others, {**where, "PYTHONSAFEPATH": "1"})
    command = [sys.executable, "-m", "daypass_proxy", "verify", *(["--json"] * options.json)]
    code = subprocess.run(command, env=env).returncode
    if code not in (0, 1, 2):
        raise NotVerified(f"the check ended with exit code {code}", hint="run it again")
    return code


def _database(options: Namespace) -> str | None:
    """The URL that was given, or of the state directory that was; None: the environment says it."""
    if options.database:
        return str(options.database)
    told = settings.environment()
    if not options.dir and (told.get(_URL) or told.get(_FILE)):
        return None
    path = State(settings.state_dir(options.dir)).database
    if not path.is_file():
        raise SettingsError(
            f"no database at {path}", hint="pass --dir of `daypass up`, or --database URL"
        )
    return f"sqlite:///{path}"
