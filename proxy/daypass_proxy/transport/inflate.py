"""Content codings: a decoded copy of bytes that are relayed as they came.

We ask every upstream for `identity`; some compress all the same (case B26). The relay passes the
coded bytes on with their header, `meter` and `upstream` look into a copy decoded here, under a cap
so that a bomb (attacks row 16) costs nothing. A coding we cannot look into is refused (row 29).
"""

import zlib

from daypass_proxy.exchange import HeaderPairs

_GZIP = 16 + zlib.MAX_WBITS
_CAP = 64 * 1024 * 1024
_RATIO = 100
_RATIO_FROM = 1024 * 1024  # a small body may compress well
_STEP = 64 * 1024
_ZLIB_METHOD = 8


class UnknownCoding(ValueError):
    """The content-encoding is none that we can look into."""


class Inflate:
    """Decodes one coded body, piece by piece. `blind` turns true when it cannot go on."""

    def __init__(self, coding: str, most: int = _CAP) -> None:
        """`coding` is the value of content-encoding, `most` the largest decoded body in bytes.

        Raises UnknownCoding.
        """
        self._coding = coding.strip().lower()
        if self._coding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise UnknownCoding("content-encoding is not gzip, deflate or identity")
        self._plain = self._coding in ("", "identity")
        self._inflater: zlib._Decompress | None = None
        self._taken = 0
        self._given = 0
        self._most = most
        self.blind = False

    def feed(self, data: bytes) -> bytes:
        """Return what `data` adds to the decoded body; b"" once blind."""
        if self._plain:
            return data
        if self.blind or not data:
            return b""
        self._taken += len(data)
        pieces: list[bytes] = []
        try:
            while data and not self.blind:
                data = self._step(data, pieces)
        except zlib.error:
            self.blind = True
        return b"".join(pieces)

    def _step(self, data: bytes, pieces: list[bytes]) -> bytes:
        """Decode at most one step's worth; return the input that is left."""
        if self._inflater is None:
            self._inflater = zlib.decompressobj(self._window_bits(data))
        inflater = self._inflater
        piece = inflater.decompress(data, _STEP)
        pieces.append(piece)
        self._given += len(piece)
        if self._given > self._most:
            self.blind = True
        if self._given > _RATIO_FROM and self._given > _RATIO * self._taken:
            self.blind = True
        if inflater.eof:
            self._inflater = None  # gzip bodies may have several members
            return inflater.unused_data
        if not piece and inflater.unconsumed_tail == data:
            self.blind = True
        return inflater.unconsumed_tail

    def _window_bits(self, first: bytes) -> int:
        if self._coding != "deflate":
            return _GZIP
        # RFC 9110 §8.4.1.2: deflate is zlib-wrapped, but some servers send it raw.
        return zlib.MAX_WBITS if first[0] & 0x0F == _ZLIB_METHOD else -zlib.MAX_WBITS


def inflate(coding: str, body: bytes, most: int = _CAP) -> bytes | None:
    """Return a whole body decoded, None when it cannot be looked into or is larger than `most`."""
    try:
        inflater = Inflate(coding, most)
    except UnknownCoding:
        return None
    plain = inflater.feed(body)
    return None if inflater.blind else plain


def coding_of(headers: HeaderPairs) -> str:
    """Return the content coding, "" for none; several lines are one list (RFC 9110 §5.3)."""
    if b"content-encoding" not in dict(headers):
        return ""
    said = [value for name, value in headers if name == b"content-encoding"]
    coding = b", ".join(said).decode("latin-1").strip().lower()
    return "" if coding == "identity" else coding
