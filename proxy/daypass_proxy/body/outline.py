"""What can be said of a JSON text without reading it: how much of it lies outside its strings.

Used by `strict` before and after decoding. What is large is looked at in slices, so that memory
stays within two megabytes whatever the body's size (attack row 17). The counts are exact for valid
JSON; of other text they are exact up to its first fault, and the decoder stops there as well.
"""

from collections.abc import Iterator
from mmap import mmap

Buffer = bytes | mmap
"""A whole body: in memory, or mapped from where the service has put it."""

_SLICE = 256 * 1024  # a multiple of _STRIDE
_ONE_PIECE = 2 * 1024 * 1024  # in memory it is looked at as it lies there
_SMALL = 4 * 1024  # up to here the plainest way is the fastest
_SEPARATORS = b",[{"
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_STRIDE = 32
_RUN_OF_SAMPLES = b"0000"
_BY_CHANCE = 256  # one in so many samples; a body that meets more is looked at in whole
_FEW = 32
_SPARSE = 64
_COLON = b":"
_NEARLY_COLON = rb"\u003"  # < and > are spelled with it as well, by some clients everywhere
_SPELLED_COLONS = (rb"\u003a", rb"\u003A")


def _all_but(wanted: bytes) -> bytes:
    return bytes(byte for byte in range(256) if byte not in wanted)


_NO_SEPARATORS = _all_but(_SEPARATORS)
_NO_MARKS = _all_but(_SEPARATORS + b'":')


def slices(body: Buffer) -> Iterator[bytes]:
    """Yield the bytes of `body` in order, cut unless it is at hand in one piece."""
    if isinstance(body, bytes) and len(body) <= _ONE_PIECE:
        yield body
        return
    for at in range(0, len(body), _SLICE):
        yield body[at : at + _SLICE]


def count_up_to(byte: bytes, body: bytes, most: int) -> int:
    """Return how often `byte` is in `body`; when it is more than `most` times, at least most + 1.

    A few are found one by one. More are taken out as long as they are rare, for that is how to go
    from one to the next by memchr(3): six times faster than count(). Given up before it is slower.
    """
    if len(body) <= _SMALL:
        return body.count(byte)
    at, find = -1, body.find
    for found in range(min(most, _FEW) + 1):
        at = find(byte, at + 1)
        if at < 0:
            return found
    if most <= _FEW:
        return most + 1
    tries = min(most, len(body) // _SPARSE) + 1
    found = len(body) - len(body.replace(byte, b"", tries))
    return found if found < tries or tries > most else body.count(byte)


def has_few(wanted: bytes, body: bytes, most: int) -> bool:
    """Say whether at most `most` bytes of `body` are among `wanted`."""
    found = 0
    for byte in wanted:
        found += count_up_to(bytes((byte,)), body, most - found)
        if found > most:
            return False
    return True


def may_hold_values(body: Buffer, most: int) -> bool:
    """Say whether `body` holds at most `most` values: every one but the first has its separator."""
    found = 0
    for piece in slices(body):
        if has_few(_SEPARATORS, piece, 0):
            continue
        found += len(piece.translate(None, _NO_SEPARATORS))
        if found > most:
            break
    else:
        return True
    # Long texts are full of commas; only those outside strings count.
    found = 0
    for marks in _marks(body):
        found += len(marks) - marks.count(b":")
        if found > most:
            return False
    return True


def count_colons(body: Buffer) -> int:
    """Return how many colons are in the body, its strings included."""
    if len(body) <= _SMALL:
        return body[:].count(_COLON)
    return sum(count_up_to(_COLON, piece, len(piece)) for piece in slices(body))


def spells_colons(body: Buffer) -> bool:
    """Say whether the body may hold a colon that is spelled as an escape."""
    if len(body) <= _SMALL:
        return _spells_colons(body[:])
    before = b""
    for piece in slices(body):
        # One byte is looked for in a tenth of the time, and base64 has no backslash.
        if b"\\" in piece and _spells_colons(piece):
            return True
        if b"\\" in before and _spells_colons(before + piece[:5]):
            return True
        before = piece[-5:]
    return False


def _spells_colons(text: bytes) -> bool:
    # From its end, which is twice as fast: then a backslash is looked for, not a digit.
    return text.rfind(_NEARLY_COLON) >= 0 and any(text.rfind(each) >= 0 for each in _SPELLED_COLONS)


def members(body: Buffer) -> int:
    """Return how many name-value pairs there are in all objects: each has its colon."""
    return sum(marks.count(b":") for marks in _marks(body))


def has_long_number(body: Buffer, digits: int) -> bool:
    """Say whether more than `digits` (at least 128) digits follow each other outside strings."""
    if not _may_hold_run(body):
        return False
    run, before = b"0" * (digits + 1), b""
    for outside in _outside(body):
        before += outside.translate(_DIGITS_AS_ZEROS)
        if run in before:
            return True
        before = before[-digits:]
    return False


def _may_hold_run(body: Buffer) -> bool:
    """Say whether so many digits may follow each other somewhere, strings included.

    A run of 129 is met four times by steps of _STRIDE. In base64 that happens by chance a few times
    in a megabyte, so what lies between is looked at as well.
    """
    if len(body) <= _SLICE:
        samples = body[::_STRIDE]
    else:
        samples = b"".join([piece[::_STRIDE] for piece in slices(body)])
    samples = samples.translate(_DIGITS_AS_ZEROS)
    at = -1
    for _ in range(16 + len(samples) // _BY_CHANCE):
        at = samples.find(_RUN_OF_SAMPLES, at + 1)
        if at < 0:
            return False
        if body[at * _STRIDE : (at + len(_RUN_OF_SAMPLES) - 1) * _STRIDE + 1].isdigit():
            return True
    return True


def _marks(body: Buffer) -> Iterator[bytes]:
    """Yield the separators and colons outside strings."""
    inside = False
    for piece in _without_escapes(body):
        if inside and b'"' not in piece:
            continue
        parts = piece.translate(None, _NO_MARKS).split(b'"')
        yield b"".join(parts[inside::2])
        inside ^= len(parts) % 2 == 0


def _outside(body: Buffer) -> Iterator[bytes]:
    """Yield all that is outside strings, each string replaced by one quotation mark."""
    inside = False
    for piece in _without_escapes(body):
        parts = piece.split(b'"')
        outside = b'"'.join(parts[inside::2])
        yield b'"' + outside if inside else outside
        inside ^= len(parts) % 2 == 0


def _without_escapes(body: Buffer) -> Iterator[bytes]:
    """Yield the body without escaped backslashes and quotes: each quote left begins or ends."""
    at = 0
    while at < len(body):
        piece = body[at : at + _SLICE]
        at += len(piece)
        if b"\\" in piece:
            if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
                # A backslash is not parted from what it escapes.
                piece += body[at : at + 1]
                at += 1
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        yield piece
