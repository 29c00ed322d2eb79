"""`daypass ledger verify`, `daypass audit verify`: checks that are run where the database is.

They are commands of the services, `python -m daypass_proxy verify` and `python -m daypass_broker
verify-trail`; this finds the database and passes on what they say.
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


def ledger(options: Namespace) -> int:
    """Check every account: 0 all right, 1 discrepancies, 2 the database cannot be read.

    Raises `NotVerified` without the proxy, `SettingsError` without a database; both end with 2.
    """
    return _run("daypass_proxy", options, "verify")


def trail(options: Namespace) -> int:
    """Check the audit trail against its heads: 0 as sealed, 1 not, or it cannot be read.

    Raises `NotVerified` without the broker, `SettingsError` without a database; both end with 2.
    """
    given = {"--heads": options.heads, "--export": options.export}
    # In one word: a name may begin with a dash. An empty one is not taken for none.
    named = [f"{flag}={value}" for flag, value in given.items() if value is not None]
    return _run("daypass_broker", options, "verify-trail", *named)


def _run(module: str, options: Namespace, *words: str) -> int:
    if importlib.util.find_spec(module) is None:
        raise NotVerified(f"{module} is not installed", hint=NotInstalled.usual_hint)
    url = _database(options)
    # The whole environment: a database may want PGPASSFILE and the like. The URL may hold a
    # password, so it is not an argument, which everybody on the machine could read.
    where, others = ({}, ()) if url is None else ({_URL: url}, (_FILE,))
    env, _ = settings.child_environment(others, {**where, "PYTHONSAFEPATH": "1"})
    command = [sys.executable, "-m", module, *words, *(["--json"] * options.json)]
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
