"""Strict JSON: a request body means exactly one thing, or it is refused.

The bytes we check are the bytes that go up, so our reading and the provider's must agree. Where
JSON parsers differ (duplicate keys, byte-order marks, UTF-16, lone surrogates, NaN, 1e400,
look-alike key names) the body is refused instead of being interpreted (attack row 31). Time is
linear in the body's size, memory at most five times that (row 17).
"""

import math
import re
from typing import Any

import msgspec

from daypass_core.problem import Code, Refusal, refuse
from daypass_proxy.body.outline import (
    Buffer,
    count_colons,
    has_few,
    has_long_number,
    may_hold_values,
    members,
    spells_colons,
)
from daypass_proxy.body.spool import SPOOL_ABOVE
from daypass_proxy.head import Head

MAX_DEPTH = 64
# A million tokens of short turns are 25,000 keys.
MAX_KEYS = 100_000
# Values of any kind, so that 32 MiB of "[],[],[]" does not become a gigabyte of objects.
MAX_VALUES = 250_000
# No client writes longer ones; a double has 17 digits.
MAX_DIGITS = 128

# What is checked at once, on the event loop: everybody's streams wait for so long. Measured with
# the dearest bodies of each kind, in CPU time; what is larger is checked elsewhere.
SMALL = 64 * 1024
"""Whatever is in so few bytes is checked within 20 ms (lists in lists)."""
FEW_CONTAINERS = 3000
MEDIUM = 160 * 1024
"""So many bytes are as well, in few containers: 18 ms (names of letters that fold)."""
FEW_COMMAS = 8000
FEW_COLONS = 3000
"""With so few values and names, up to 2 MiB are as well: 15 ms (floats beside one text)."""

_BEGINNING = 128  # shows how the client writes
_MANY_COLONS = 1000  # in strings; to count them there takes longer than to write the body again
_JSON = b"application/json"
_CONTENT_TYPE = re.compile(rb'application/json(?: *; *charset="?utf-8"?)? *', re.IGNORECASE)


def check_media(head: Head) -> None:
    """Refuse a body that is compressed or not declared as JSON; raises Refusal."""
    if head.header(b"content-encoding") not in (None, b"identity"):
        raise refuse(
            Code.INVALID_REQUEST,
            "compressed request bodies are not accepted; send without content-encoding",
        )
    content_type = head.header(b"content-type")
    if content_type != _JSON and (
        content_type is None or not _CONTENT_TYPE.fullmatch(content_type)
    ):
        raise refuse(Code.INVALID_REQUEST, "content-type must be application/json")


def is_quick(body: bytes) -> bool:
    """Say whether `body` is checked within 20 ms, whatever its sender has thought of."""
    if len(body) <= SMALL:
        return True
    if len(body) > SPOOL_ABOVE or not has_few(b"[{", body, FEW_CONTAINERS):
        return False
    if len(body) <= MEDIUM:
        return True
    return has_few(b",", body, FEW_COMMAS) and has_few(b":", body, FEW_COLONS)


def parse(body: Buffer) -> dict[str, Any]:
    """Return the decoded object of a strict JSON body; raises Refusal invalid_request."""
    # Of a large body too many values would be gigabytes, so they are counted before any is made.
    if len(body) > SPOOL_ABOVE and not may_hold_values(body, MAX_VALUES):
        raise _invalid(f"request body holds more than {MAX_VALUES} values")
    if has_long_number(body, MAX_DIGITS):
        # To make integers of thousands of digits takes seconds.
        raise _invalid(f"request body holds a number of more than {MAX_DIGITS} digits")
    try:
        document: Any = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _invalid("request body is not valid JSON in UTF-8") from None
    if type(document) is not dict:
        raise _invalid("request body must be a JSON object")
    if len(body) <= min(MAX_KEYS, MAX_VALUES) and _brackets(body) <= MAX_DEPTH:
        # So few bytes hold no more keys or values, and so few brackets nest no deeper.
        if len(body) <= SMALL and _is_plain(document, body):
            return document
        keys = _count_keys(document)
    else:
        keys = _check_shape(document)
    if not _is_whole(document, keys, body):
        raise _invalid("request body repeats a key in one object; send each key once")
    return document


def _float(text: str) -> float:
    """Read a number with a fraction or exponent; raises ValueError.

    msgspec's own reading takes 30 µs for numbers near the ends of the range, and a body may hold
    a quarter of a million of them.
    """
    value = float(text) if len(text) <= MAX_DIGITS else math.inf
    if not math.isfinite(value):
        raise ValueError("number out of range")
    return value


_DECODER = msgspec.json.Decoder(Any, float_hook=_float)
_ENCODER = msgspec.json.Encoder()


def _brackets(body: Buffer) -> int:
    """Return how many objects and lists `body`, which is not large, holds at most."""
    text = body[:]  # of bytes no copy
    return text.count(b"{") + text.count(b"[")


def _count_keys(document: dict[str, Any]) -> int:
    """Return the number of keys in all objects."""
    keys = 0
    waiting: list[Any] = [document]
    for item in waiting:  # and in what is added meanwhile
        if type(item) is dict:
            keys += len(item)
            item = item.values()
        for value in item:
            kind = type(value)
            if kind is not str and (kind is dict or kind is list):
                waiting.append(value)
    return keys


def _check_shape(document: dict[str, Any]) -> int:
    """Bound nesting, keys and values, level by level; return the number of keys."""
    level: list[Any] = [document]
    keys = values = 0
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            values += len(item) or 1
            if type(item) is dict:
                keys += len(item)
                item = item.values()
            for value in item:
                kind = type(value)
                if kind is not str and (kind is dict or kind is list):
                    below.append(value)
        if keys > MAX_KEYS:
            raise _invalid(f"request body holds more than {MAX_KEYS} keys")
        if values > MAX_VALUES:
            raise _invalid(f"request body holds more than {MAX_VALUES} values")
        if not below:
            return keys
        level = below
    raise _invalid(f"request body is nested deeper than {MAX_DEPTH}")


def _is_whole(document: dict[str, Any], keys: int, body: Buffer) -> bool:
    """Prove that no name of the text was lost by being repeated in its object.

    Every name has its colon, so a lost one shows as a colon too many: one that is neither that of
    a name kept nor within a string kept. A colon spelled as an escape is none in the text.
    """
    colons = count_colons(body)
    if colons == keys:
        return True
    again = len(body) <= SMALL or (len(body) <= SPOOL_ABOVE and colons - keys > _MANY_COLONS)
    if again and _is_plain(document, body):
        return True
    if spells_colons(body):
        return members(body) == keys
    return colons - _colons_within(document) == keys


def _is_plain(document: dict[str, Any], body: Buffer) -> bool:
    """Say whether `body` is just how we would write the document, which repeats no name.

    As common clients write: without blanks, and escapes only where they have to be.
    """
    return b'": ' not in body[:_BEGINNING] and _ENCODER.encode(document) == body[:]


def _colons_within(document: dict[str, Any]) -> int:
    """Return how many colons are in all strings of the document, names included."""
    found = 0
    waiting: list[Any] = [document]
    for item in waiting:  # and in what is added meanwhile
        if type(item) is dict:
            for name in item:
                if ":" in name:
                    found += name.count(":")
            item = item.values()
        for value in item:
            if type(value) is str:
                if ":" in value:
                    found += value.count(":")
            elif type(value) is dict or type(value) is list:
                waiting.append(value)
    return found


def _invalid(title: str) -> Refusal:
    return refuse(Code.INVALID_REQUEST, title)
