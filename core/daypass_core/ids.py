"""Identifiers: unguessable, sortable by nobody, readable by prefix.

Every row, token and request is named by one of these, so a log line tells what kind of thing it
speaks of. `new_id` is passed to those who need it, so tests can pass their own.
"""

import os
from collections import deque

_LETTERS = 26
_AT_ONCE = 64
# Every byte to the letter of its lowest five bits: 256 is a multiple of 32, so none is likelier.
_BASE32 = b"abcdefghijklmnopqrstuvwxyz234567" * 8

# Drawn ahead, because asking the system costs more than all the rest. Each is taken once, whichever
# thread takes it; a forked child must not give out what its parent will.
_drawn: deque[str] = deque()
os.register_at_fork(after_in_child=_drawn.clear)


def new_id(prefix: str) -> str:
    """Return `prefix_` and 26 lower-case base32 characters of 130 random bits.

    Prefixes in use: sbx sandbox, grt grant, tok access token, lch launch credential, req request
    and usage row, rev revocation, crd credential, lin lineage, fdrl federation rule.
    """
    try:
        return f"{prefix}_{_drawn.pop()}"
    except IndexError:
        _draw()
        return new_id(prefix)


def _draw() -> None:
    letters = os.urandom(_LETTERS * _AT_ONCE).translate(_BASE32).decode("ascii")
    _drawn.extend(letters[start : start + _LETTERS] for start in range(0, len(letters), _LETTERS))
