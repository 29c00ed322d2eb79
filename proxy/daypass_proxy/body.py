"""Strict JSON: a request body means exactly one thing, or it is refused.

The bytes we check are the bytes that go up, so our reading and the provider's must agree. Where
JSON parsers differ (duplicate keys, byte-order marks, UTF-16, NaN, 1e400, look-alike key names)
the body is refused instead of being interpreted (attack row 31).
"""

import json
import math
import re
import unicodedata
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import msgspec

from daypass_core.problem import Code, Refusal, refuse
from daypass_proxy.exchange import Exchange

MAX_DEPTH = 64
MAX_KEYS = 10_000
# Values of any kind, so that 32 MiB of "[],[],[]" does not become a gigabyte of objects.
MAX_VALUES = 250_000

_SEPARATORS = b",[{"
# No client writes longer ones; a double has 17 digits.
_NUMBER_LENGTH = 128
_LONG_RUN = b"0" * (_NUMBER_LENGTH + 1)
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_FEW = 1000
_LONGEST_NAME = 64
_CONTENT_TYPE = re.compile(rb'application/json(?: *; *charset="?utf-8"?)? *', re.IGNORECASE)


def check_media(exchange: Exchange) -> None:
    """Refuse a body that is compressed or not declared as JSON; raises Refusal."""
    if exchange.header(b"content-encoding") not in (None, b"identity"):
        raise refuse(
            Code.INVALID_REQUEST,
            "compressed request bodies are not accepted; send without content-encoding",
        )
    content_type = exchange.header(b"content-type")
    if content_type is None or not _CONTENT_TYPE.fullmatch(content_type):
        raise refuse(Code.INVALID_REQUEST, "content-type must be application/json")


def parse(body: bytes) -> dict[str, Any]:
    """Return the decoded object of a strict JSON body; raises Refusal invalid_request."""
    _check_volume(body)
    # To make integers of thousands of digits takes seconds, so they are looked for before.
    suspect = _LONG_RUN in body.translate(_AS_ZEROS)
    if suspect:
        _read_again(body)
    try:
        document: Any = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _invalid("request body is not valid JSON in UTF-8") from None
    if type(document) is not dict:
        raise _invalid("request body must be a JSON object")
    keys = _check_shape(document)
    if not suspect and not _proved_unique(document, keys, body):
        _read_again(body)
    return document


def refuse_lookalikes(value: Mapping[str, object], known: Collection[str], where: str = "") -> None:
    """Refuse a key that is not a known one but folds to it: "Model", or full-width letters."""
    for key in value:
        if key in known:
            continue
        # Longer text folds to no known name, but for the blanks around it; megabytes take long.
        bare = key.strip()
        if len(bare) > _LONGEST_NAME:
            continue
        folded = unicodedata.normalize("NFKC", bare).casefold().strip()
        if folded in known:
            field = f"{where}{key}" if len(key) <= 64 else f"{where}{folded}"
            raise refuse(
                Code.INVALID_REQUEST, f"{field!r} looks like {folded!r}; spell it so", field=folded
            )


def _float(text: str) -> float:
    """Read a number with a fraction or exponent; raises ValueError.

    msgspec's own reading takes 30 µs for numbers near the ends of the range, and a body may hold
    a quarter of a million of them.
    """
    value = float(text) if len(text) <= _NUMBER_LENGTH else math.inf
    if not math.isfinite(value):
        raise ValueError("number out of range")
    return value


_DECODER = msgspec.json.Decoder(Any, float_hook=_float)


def _check_volume(body: bytes) -> None:
    """Bound the number of values before any of them is made."""
    # Every value but the first follows a separator, and takes two bytes with it.
    if len(body) <= 2 * MAX_VALUES or _count(_SEPARATORS, body) <= MAX_VALUES:
        return
    # Long texts are full of commas; only those outside strings count. Without escaped backslashes
    # and quotes, every other part between quotes lies outside.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    bare = plain.translate(None, _all_but(b'"' + _SEPARATORS))
    if (
        bare.count(b'"') > 2 * (MAX_VALUES + MAX_KEYS)
        or sum(map(len, bare.split(b'"')[::2])) > MAX_VALUES
    ):
        raise _invalid(f"request body holds more than {MAX_VALUES} values")


def _count(wanted: bytes, data: bytes) -> int:
    """Return how many bytes of `data` are among `wanted`.

    By find() as long as they are few: it is ten times faster over the base64 of large bodies.
    """
    found = 0
    for byte in wanted:
        at = data.find(byte)
        while at >= 0:
            found += 1
            if found > _FEW:
                return len(data.translate(None, _all_but(wanted)))
            at = data.find(byte, at + 1)
    return found


def _all_but(wanted: bytes) -> bytes:
    return bytes(byte for byte in range(256) if byte not in wanted)


def _proved_unique(document: dict[str, Any], keys: int, body: bytes) -> bool:
    """Prove cheaply that no key was repeated; False when that takes a second reading.

    A decoded duplicate is lost. Every key of the text has its colon, so no more colons than keys
    means that none was lost; and re-encoding that gives the very same bytes means it as well. The
    compact bodies of the official SDKs pass here.
    """
    return _count(b":", body) <= keys or msgspec.json.encode(document) == body


def _check_shape(document: dict[str, Any]) -> int:
    """Bound nesting and keys, level by level; return the number of keys."""
    level: list[Any] = [document]
    keys = 0
    for _ in range(MAX_DEPTH):
        keys += sum(len(item) for item in level if type(item) is dict)
        if keys > MAX_KEYS:
            raise _invalid(f"request body holds more than {MAX_KEYS} keys")
        level = [
            value
            for item in level
            for value in (item.values() if type(item) is dict else item)
            if type(value) is dict or type(value) is list
        ]
        if not level:
            return keys
    raise _invalid(f"request body is nested deeper than {MAX_DEPTH}")


def _read_again(body: bytes) -> None:
    """Refuse a key that is repeated in its object, and a long integer; no number is made."""
    try:
        json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_once,
            parse_constant=_constant,
            parse_int=_integer,
            parse_float=len,
        )
    except (ValueError, RecursionError):
        raise _invalid("request body is not valid JSON in UTF-8") from None


def _integer(text: str) -> None:
    if len(text) > _NUMBER_LENGTH:
        raise ValueError("number out of range")


def _once(pairs: list[tuple[str, object]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise _invalid("request body repeats a key in one object; send each key once")


def _constant(name: str) -> NoReturn:
    raise ValueError(name)


def _invalid(title: str) -> Refusal:
    return refuse(Code.INVALID_REQUEST, title)
