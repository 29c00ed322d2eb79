"""The rules of a head by themselves: each holds whatever the parser before it lets through."""

import pytest

from daypass_core.problem import Refusal
from daypass_proxy.guard_head import METHODS, check_head

HOST = (b"host", b"proxy.test")
LENGTH, CHUNKED = (b"content-length", b"4"), (b"transfer-encoding", b"chunked")


def status(
    *headers: tuple[bytes, bytes],
    method: bytes = b"POST",
    version: str = "1.1",
    target: bytes = b"/v1/messages",
    most_bytes: int = 32_768,
) -> int:
    """The status a head is refused with, 0 for one that is let through."""
    try:
        check_head(method, version, target, (HOST, *headers), most_bytes)
    except Refusal as refusal:
        return refusal.problem.status
    return 0


@pytest.mark.parametrize("byte", [*range(9), *range(10, 32), 127])
def test_control_bytes_in_values(byte: int) -> None:
    """RFC 9110 §5.5: no control byte but the tab is let through in a value."""
    assert status((b"x-a", b"a%cb" % byte)) == 400
    assert status((b"x-a", b"a\tb")) == 0


def test_one_framing() -> None:
    """RFC 9112 §6.3: a length beside a coding is refused, in either order, at any value."""
    assert status(LENGTH, CHUNKED) == status(CHUNKED, LENGTH) == 400
    assert status(CHUNKED, (b"content-length", b"0")) == 400
    assert status(LENGTH) == status(CHUNKED) == status() == 0


@pytest.mark.parametrize("pair", [HOST, LENGTH, CHUNKED])
def test_once_only(pair: tuple[bytes, bytes]) -> None:
    """Host, Content-Length and Transfer-Encoding come once, equal or not."""
    extra = (pair,) if pair == HOST else (pair, pair)
    assert status(*extra) == 400


def test_names_targets_versions_and_methods() -> None:
    """Rows 4, 7, 9: what is not listed is refused."""
    assert status((b"x_a", b"b")) == 400
    assert [status(target=one) for one in (b"*", b"", b"v1", b"/a#b", b"/a b", b"/\x80")] == [
        400
    ] * 6
    assert [status(version=one) for one in ("0.9", "1.2", "2.0", "3.0", "")] == [400] * 5
    assert [status(method=one) for one in sorted(METHODS)] == [0] * 7
    assert [status(method=one) for one in (b"CONNECT", b"TRACE", b"post", b"")] == [400] * 4


def test_offers() -> None:
    """RFC 9110 §7.8, §10.1.1: any upgrade and any other expectation is refused."""
    assert status((b"upgrade", b"h2c"), (b"upgrade", b"WebSocket")) == 426
    assert status((b"upgrade", b"")) == 400
    assert status((b"expect", b"100-continue"), (b"expect", b"x")) == 400
    assert status((b"trailer", b"x")) == 400


def test_bytes_of_all() -> None:
    """Row 17: target, names and values together have a bound."""
    assert status((b"x-a", b"a" * 1_000), most_bytes=1_100) == 0
    assert status((b"x-a", b"a" * 1_100), most_bytes=1_100) == 431
    assert status(target=b"/" + b"a" * 1_100, most_bytes=1_100) == 431


def test_blanks_behind_values_are_taken_off() -> None:
    """RFC 9110 §5.5: what stands for a value is the same for whoever reads it next."""
    pairs = ((b"host", b"h \t"), (b"x-a", b"a  b"), (b"x-b", b"c "), (b"x-c", b"\t"))
    headers, found = check_head(b"GET", "1.1", b"/", pairs, 1_000)
    assert headers == ((b"host", b"h"), (b"x-a", b"a  b"), (b"x-b", b"c"), (b"x-c", b""))
    assert found == dict(headers)
