"""Each rule for a request head by itself, whether or not the parser in front has it too.

The raw corpus shows what the server answers; here a rule that llhttp happens to share cannot hide
behind it, for another parser, or another release of this one, may not.
"""

import pytest

from daypass_core.problem import Code, Refusal
from daypass_proxy.guard_head import check_head

HOST = (b"host", b"proxy.test")
MOST = 32 * 1024


def check(
    *more: tuple[bytes, bytes],
    method: bytes = b"POST",
    version: str = "1.1",
    target: bytes = b"/v1/messages",
    host: tuple[tuple[bytes, bytes], ...] = (HOST,),
    most: int = MOST,
) -> dict[bytes, bytes]:
    """Check a plain head with one thing changed; return what is found by name."""
    _, found = check_head(method, version, target, (*host, *more), most)
    return found


def test_plain_heads_pass() -> None:
    """What ordinary clients send is taken as it is."""
    assert check((b"content-length", b"12"))[b"content-length"] == b"12"
    assert check((b"transfer-encoding", b"chunked"))
    assert check((b"expect", b"100-continue"), (b"accept", b"*/*"), (b"accept", b"text/html"))
    assert check((b"x-name", "caf\u00e9\t!".encode()), target=b"/a/%2e%2e/b;c?d=e&f")
    assert check(version="1.0", method=b"GET", host=((b"host", b"[::1]:8443"),))


@pytest.mark.parametrize("version", ["0.9", "1.2", "2.0", "3", ""])
def test_version(version: str) -> None:
    """Row 7: another version than 1.0 and 1.1 is not spoken."""
    with pytest.raises(Refusal, match="is spoken here"):
        check(version=version)


@pytest.mark.parametrize("method", [b"CONNECT", b"TRACE", b"PRI", b"get", b"SOURCE", b""])
def test_method(method: bytes) -> None:
    """Row 7: tunnels, echoes and inventions are not offered."""
    with pytest.raises(Refusal, match="method is not offered"):
        check(method=method)


@pytest.mark.parametrize(
    "target",
    [b"", b"*", b"http://evil.test/v1/messages", b"v1/messages", b"/a b", b"/a#b", b"/\xc3\xa9",
     b"/a\r\nx: y", b"/a\x00", b"/a\x7f", b"evil.test:443"],
)  # fmt: skip
def test_target(target: bytes) -> None:
    """B03, row 9: only a plain path of visible ASCII without a fragment is a target."""
    with pytest.raises(Refusal, match="request target"):
        check(target=target)


@pytest.mark.parametrize("name", [b"x_api_key", b"_", b"x_", b"content_length"])
def test_names(name: bytes) -> None:
    """Row 4: a name with an underscore is refused; that names are tokens is llhttp's to see."""
    with pytest.raises(Refusal, match="must not contain '_'"):
        check((name, b"v"))


@pytest.mark.parametrize("byte", [*range(9), *range(10, 32), 127])
def test_control_bytes(byte: int) -> None:
    """Row 45: no value holds a control byte but the tab."""
    with pytest.raises(Refusal, match="control character"):
        check((b"x-name", b"a" + bytes([byte]) + b"b"))


@pytest.mark.parametrize("value", [b"\xff", b"caf\xe9", b"\xed\xa0\x80", b"\xc0\xaf", b"\xe2\x82"])
def test_values_are_utf8(value: bytes) -> None:
    """Row 7: a value that would not be written again byte for byte is refused."""
    with pytest.raises(Refusal, match="not valid UTF-8"):
        check((b"x-name", value))


@pytest.mark.parametrize(
    "hosts",
    [(), (b"a", b"a"), (b"a", b"b"), (b"",), (b"h/public?x=",), (b"a b",), (b"a@b",), (b"a,b",),
     (b"a" * 256,), (b"\xc3\xa9",)],
)  # fmt: skip
def test_host(hosts: tuple[bytes, ...]) -> None:
    """Row 6: there is exactly one Host, and it looks like one."""
    with pytest.raises(Refusal, match="exactly one valid Host"):
        check(host=tuple((b"host", value) for value in hosts))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (((b"content-length", b"5"), (b"transfer-encoding", b"chunked")), "not both"),
        (((b"transfer-encoding", b"chunked"), (b"content-length", b"0")), "not both"),
        (((b"content-length", b"5"), (b"content-length", b"5")), "one number"),
        (((b"content-length", b"5"), (b"content-length", b"6")), "one number"),
        *(
            (((b"content-length", value),), "one number")
            for value in (b"", b"5, 5", b"+5", b"-1", b"0x5", b"5.0", b"1" * 16, b" 5", b"5;")
        ),
        (((b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")), "only once"),
        *(
            (((b"transfer-encoding", value),), "only be 'chunked'")
            for value in (b"gzip, chunked", b"identity", b"chunked, chunked", b"", b"xchunked")
        ),
        (((b"trailer", b"x-api-key"),), "trailers are not accepted"),
        (((b"upgrade", b"h2c"),), "Upgrade is not offered"),
        (((b"expect", b"200-ok"),), "Expect may only be"),
        (((b"expect", b"100-continue"), (b"expect", b"x")), "Expect may only be"),
    ],
)
def test_framing_and_offers(more: tuple[tuple[bytes, bytes], ...], words: str) -> None:
    """Rows 7 and 8: one way to tell where the body ends, and no other protocol."""
    with pytest.raises(Refusal, match=words):
        check(*more)


def test_old_versions_have_no_chunks() -> None:
    """Row 7: Transfer-Encoding in HTTP/1.0 is refused."""
    with pytest.raises(Refusal, match="only be 'chunked'"):
        check((b"transfer-encoding", b"chunked"), version="1.0")


def test_websockets_are_told_apart() -> None:
    """An upgrade to WebSocket is 426, so that clients fall back to HTTP."""
    with pytest.raises(Refusal) as caught:
        check((b"upgrade", b"WebSocket"), (b"connection", b"upgrade"))
    assert caught.value.problem.code is Code.UPGRADE_REFUSED


def test_size() -> None:
    """Row 17: target, names and values together have a bound."""
    assert check((b"x-name", b"v" * 100), most=200)
    for more, target in ((b"v" * 200, b"/"), (b"v", b"/" + b"a" * 200)):
        with pytest.raises(Refusal) as caught:
            check((b"x-name", more), target=target, most=200)
        assert caught.value.problem.code is Code.HEADERS_TOO_LARGE
