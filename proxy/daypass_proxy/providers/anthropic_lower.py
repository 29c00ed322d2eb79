"""Lowering `max_tokens`: the one change that a body ever undergoes on its way up.

Place in the flow: `reserve.fit` asks for it through the provider when a budget holds fewer output
tokens than the request asks for. The body was checked before, so it has one meaning. Nearly always
the name stands in it once, and only its digits are replaced. Else the outer object is put together
anew from its members as they came: every other value keeps its bytes, and members their order.
"""

from __future__ import annotations

import re

import msgspec

SLOW_MAX = 4 * 1024 * 1024
"""Largest body in bytes that is put together anew; the event loop stands still for 14 ms then."""

_Members = dict[str, msgspec.Raw]
_OBJECT = msgspec.json.Decoder(_Members)
_OBJECTS = msgspec.json.Decoder(list[_Members])
_NAME = b'"max_tokens"'
_ONLY = re.compile(_NAME + rb"[ \t\r\n]*:[ \t\r\n]*([0-9]+)")
# A letter may be written as an escape, and the name so be there and not be found.
_ESCAPE = b"\\u00"
_SPELLED = re.compile(rb"\\u00[2-7]")
_LIMIT = "max_tokens"
_OTHERS = "fallbacks"
"""The models that may write the answer instead; each may have a `max_tokens` of its own."""


def lower_output(body: bytes, most: int) -> bytes:
    """Return `body` with no `max_tokens` of whoever writes the answer above `most`.

    Raises ValueError for a large body in which that would take long to find.
    """
    plain = _ESCAPE not in body or _SPELLED.search(body) is None
    if plain and body.count(_NAME) == 1:
        only = _ONLY.search(body, body.find(_NAME))
        if only is not None and int(only[1]) > most:
            return b"%b%d%b" % (body[: only.start(1)], most, body[only.end(1) :])
    if len(body) > SLOW_MAX:
        raise ValueError("body is too large to look for max_tokens in")
    members = _OBJECT.decode(body)
    _lower(members, most)
    others = members.get(_OTHERS)
    if others is not None and bytes(others) != b"null":
        entries = _OBJECTS.decode(others)
        # A list that has none above stays as it came, blanks and all.
        if sum(_lower(entry, most) for entry in entries):
            members[_OTHERS] = msgspec.Raw(b"[" + b",".join(map(_written, entries)) + b"]")
    return _written(members)


def _lower(members: _Members, most: int) -> bool:
    """Lower the limit among these members, if there is one above; say whether it was."""
    value = members.get(_LIMIT)
    if value is None or bytes(value) == b"null" or int(bytes(value)) <= most:
        return False
    members[_LIMIT] = msgspec.Raw(b"%d" % most)
    return True


def _written(members: _Members) -> bytes:
    pairs = [msgspec.json.encode(name) + b":" + bytes(value) for name, value in members.items()]
    return b"{" + b",".join(pairs) + b"}"
