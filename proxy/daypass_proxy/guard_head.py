"""What a request head may say (RFC 9110, RFC 9112): the rules of `guard`, as one pure function.

llhttp has parsed the head when it comes here. Refused is whatever two parsers could read in two
ways, and whatever would change the protocol under our feet (attack rows 3, 4, 6, 7, 9, 45).
"""

import re

from daypass_core.problem import Code, refuse
from daypass_proxy.exchange import HeaderPairs

# A closed list: what llhttp knows besides (CONNECT, TRACE, SOURCE, WebDAV) is nobody's need here.
METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})

_TARGET = re.compile(rb"/[\x21\x22\x24-\x7e]*")
_HOST = re.compile(rb"[A-Za-z0-9.:\[\]_~%-]{1,255}")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_EMPTY_LINES = re.compile(rb"(?:\r\n)*\r?")
_VALUE_BYTES = bytes([9, *range(0x20, 0x7F)])
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_ONCE = {
    b"host": "exactly one valid Host header is needed",
    b"content-length": "Content-Length must be one number",
    b"transfer-encoding": "Transfer-Encoding may be sent only once",
}


def check_empty_lines(half_line: bytes, data: bytes) -> bytes:
    """Let whole empty lines stand before a request (RFC 9112 §2.2), and no half ones.

    llhttp skips whatever carriage returns and line feeds there are; others do not. `half_line` is
    the carriage return that ended the bytes before `data`; returns that of `data`.
    """
    rest = data.lstrip(b"\r\n")
    lines = half_line + data[: len(data) - len(rest)]
    half_line = lines[-1:] if lines.endswith(b"\r") else b""
    if not _EMPTY_LINES.fullmatch(lines) or (rest and half_line):
        raise refuse(Code.INVALID_REQUEST, "request is not valid HTTP/1.1")
    return half_line


def check_head(
    method: bytes, version: str, target: bytes, headers: HeaderPairs, most_bytes: int
) -> tuple[HeaderPairs, dict[bytes, bytes]]:
    """Return the headers as they are to be read, and the last of each by name.

    Host, Content-Length and Transfer-Encoding are the only ones of their name. Raises Refusal
    (400, 426, 431).
    """
    if version not in ("1.1", "1.0"):
        raise refuse(Code.INVALID_REQUEST, "only HTTP/1.1 is spoken here")
    if method not in METHODS:
        raise refuse(Code.INVALID_REQUEST, "method is not offered")
    if not _TARGET.fullmatch(target):
        raise refuse(
            Code.INVALID_REQUEST, "request target must be a plain path, as in /v1/messages"
        )
    headers = _check_bytes(headers, most_bytes - len(target))
    found = dict(headers)
    if len(found) < len(headers):
        names = [name for name, _ in headers]
        for name, words in _ONCE.items():
            if names.count(name) > 1:
                raise refuse(Code.INVALID_REQUEST, words)
    if not _HOST.fullmatch(found.get(b"host", b"")):
        raise refuse(Code.INVALID_REQUEST, _ONCE[b"host"])
    _check_framing(version, found)
    if b"upgrade" in found or b"expect" in found:
        _check_offers(headers)
    return headers, found


def _check_bytes(headers: HeaderPairs, most_bytes: int) -> HeaderPairs:
    """Return the headers without the blanks behind their values (RFC 9110 §5.5).

    llhttp takes only tokens for names, and blanks off the front of a value but not off its end.
    All names and all values are looked through at once, joined by what cannot be in them.
    """
    names, values = zip(*headers, strict=True) if headers else ((), ())
    joined_names, joined = b":".join(names), b"\t".join(values)
    if len(joined_names) + len(joined) > most_bytes:
        raise refuse(Code.HEADERS_TOO_LARGE)
    if b"_" in joined_names:
        # Some servers take it for "-".
        raise refuse(Code.INVALID_REQUEST, "header names must not contain '_'")
    if odd := joined.translate(None, _VALUE_BYTES):
        _check_odd(odd, values)
    if b" \t" in joined or b"\t\t" in joined or joined.endswith((b" ", b"\t")):
        return tuple((name, value.rstrip(b" \t")) for name, value in headers)
    return headers


def _check_odd(odd: bytes, values: tuple[bytes, ...]) -> None:
    """Refuse bytes that would not be written again as they were read."""
    if _CONTROL.search(odd):
        raise refuse(Code.INVALID_REQUEST, "header value contains a control character")
    if not all(map(_is_utf8, values)):
        # What goes up would not be what was checked.
        raise refuse(Code.INVALID_REQUEST, "header value is not valid UTF-8")


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _check_framing(version: str, found: dict[bytes, bytes]) -> None:
    """One way to tell where the body ends, or none (RFC 9112 §6.3)."""
    length, coding = found.get(b"content-length"), found.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise refuse(Code.INVALID_REQUEST, "send Content-Length or Transfer-Encoding, not both")
        if coding.lower() != b"chunked" or version != "1.1":
            raise refuse(
                Code.INVALID_REQUEST, "Transfer-Encoding may only be 'chunked' in HTTP/1.1"
            )
    elif length is not None and not _LENGTH.fullmatch(length):
        raise refuse(Code.INVALID_REQUEST, _ONCE[b"content-length"])
    if b"trailer" in found:
        raise refuse(Code.INVALID_REQUEST, "trailers are not accepted")


def _check_offers(headers: HeaderPairs) -> None:
    """Refuse another protocol, and an expectation that we do not know (RFC 9110 §7.8, §10.1.1)."""
    upgrades = [value.lower() for name, value in headers if name == b"upgrade"]
    if any(b"websocket" in value for value in upgrades):
        raise refuse(Code.UPGRADE_REFUSED, "WebSocket is not offered; use plain HTTP requests")
    if upgrades:
        raise refuse(Code.INVALID_REQUEST, "Upgrade is not offered; switch off h2c")
    if any(name == b"expect" and value.lower() != b"100-continue" for name, value in headers):
        raise refuse(Code.INVALID_REQUEST, "Expect may only be 100-continue")
