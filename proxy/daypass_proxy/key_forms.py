"""The forms in which a key could show in an answer, and what finds them.

Place in the flow: `keyring` makes the forms of each key that it reads, and looks for them.
"""

import base64
import re
from urllib.parse import quote

_SHORTEST_FORM = 8
_SHORTEST_HALF = 12


class Unusable(Exception):
    """A key that cannot be had or sent; the message holds no part of it."""


def forms_of(key: str) -> frozenset[bytes]:
    """Return the byte strings by which `key` would be found; raises Unusable."""
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise Unusable("key holds characters that cannot stand in a header")
    raw = key.encode()
    middle = len(raw) // 2
    halves = [half for half in (raw[:middle], raw[middle:]) if len(half) >= _SHORTEST_HALF]
    if halves:
        # The end as well, by which keys are told apart; all keys of a provider begin alike.
        halves.append(raw[-_SHORTEST_HALF:])
    forms = {
        raw,
        quote(key, safe="").encode(),
        key.replace("/", r"\/").encode(),
        raw.hex().encode(),
        raw.hex().upper().encode(),
    }
    for code in (base64.b64encode, base64.urlsafe_b64encode):
        # Inside longer base64 the key may begin at any of three alignments; what depends on the
        # neighbouring bytes is cut off at both ends.
        for shift in range(3):
            coded = code(bytes(shift) + raw)
            forms.add(coded[(shift * 8 + 5) // 6 : len(raw + bytes(shift)) * 8 // 6])
    found = [form for form in (*forms, *halves) if len(form) >= _SHORTEST_FORM]
    # Where a form is, every part of it is: looking for the parts alone finds as much.
    return frozenset(
        form for form in found if not any(part in form for part in found if part != form)
    )


def pattern(forms: frozenset[bytes]) -> re.Pattern[bytes] | None:
    """Return what finds any of `forms`; None when there are none, for that would find all."""
    if not forms:
        return None
    pattern = re.compile(b"|".join(map(re.escape, sorted(forms))))
    # The module remembers what it compiled; a key is remembered here alone.
    re.purge()
    return pattern
