"""Where the database is: DAYPASS_DATABASE_URL, or the file that DAYPASS_DATABASE_URL_FILE names.

Place in the flow: each service's `settings.py` reads it. A command reads the file once. A service
reads it again for every connection it opens, so that a password which was changed there works
without a restart. No message repeats anything of a URL, for it may hold a password.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from daypass_core.settings import Reader

_URL: Final = "DAYPASS_DATABASE_URL"
_FILE: Final = "DAYPASS_DATABASE_URL_FILE"
_LONGEST: Final = 16 * 1024  # bytes

NETWORK: Final = {
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 5000,
}
"""libpq's parameters by which a server that is gone without a word is noticed within seconds, on
both sides of a statement: else whoever asked would wait until the system gives up, a quarter of an
hour later, the new primary long there. The last in milliseconds, the others in seconds."""


def read(reader: Reader, check: Callable[[str], str]) -> str:
    """Return the URL as it is now, as `check` leaves it; notes a problem and returns "" else."""
    path = file(reader)
    if path is None:
        return reader.parsed(_URL, check, "")
    if reader.text(_URL, None) is not None:
        reader.problem(_FILE, f"is set and {_URL} is too; set one of them")
    try:
        return check(url_in(path))
    except ValueError as error:
        reader.problem(_FILE, f"the file's URL {error}")
        return ""


def file(reader: Reader) -> Path | None:
    """Return the file that holds the URL; None where the URL itself is set."""
    return reader.path(_FILE, None)


def url_in(path: Path) -> str:
    """Return the URL that a file holds at this moment, without surrounding blanks.

    Raises ValueError when there is none; its message begins with a verb.
    """
    try:
        with path.open("rb") as opened:
            text = opened.read(_LONGEST).decode().strip()
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError("must be text") from None
    if not text or "\n" in text:
        raise ValueError("must be the only line of it")
    return text
