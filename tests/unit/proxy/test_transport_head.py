"""The request's head, and which addresses are of the public internet."""

import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_proxy.transport import UpstreamRequest
from daypass_proxy.transport.addresses import is_outside
from daypass_proxy.transport.origin import Origin, split_url, write_head
from daypass_proxy.transport.response import NotHttp, Response

ORIGIN = Origin.parse("https://api.example:8443")
raw = st.binary(max_size=12).map(lambda data: data.replace(b"a", b"\r\n"))


def request(
    *headers: tuple[bytes, bytes], method: str = "POST", body: bytes = b"{}"
) -> UpstreamRequest:
    """A request whose URL does not matter."""
    return UpstreamRequest(method, "https://api.example:8443/v1", headers, body)


def test_head() -> None:
    """A head is its line, the host, the length and our headers, in their order and as they are."""
    head = write_head(request((b"x-b", b"1"), (b"X-A", b"\xc3\xbc")), ORIGIN, "/v1?a=%2F")
    assert head == (
        b"POST /v1?a=%2F HTTP/1.1\r\nhost: api.example:8443\r\ncontent-length: 2\r\n"
        b"x-b: 1\r\nX-A: \xc3\xbc\r\n\r\n"
    )


@pytest.mark.parametrize(("method", "says"), [("GET", False), ("POST", True), ("DELETE", True)])
def test_length_of_nothing(method: str, says: bool) -> None:
    """A request without a body says so where a body could be expected."""
    head = write_head(request(method=method, body=b""), ORIGIN, "/")
    assert (b"content-length: 0\r\n" in head) is says


@given(pairs=st.lists(st.tuples(raw, raw), max_size=4))
@settings(max_examples=100)
def test_no_header_makes_another(pairs: list[tuple[bytes, bytes]]) -> None:
    """Row 7: whatever bytes headers hold, there are as many lines as headers, or no head."""
    if any(re.search(rb"[\r\n\0]", name + value) for name, value in pairs):
        with pytest.raises(ValueError, match="cannot be written"):
            write_head(request(*pairs), ORIGIN, "/v1")
        return
    head = write_head(request(*pairs), ORIGIN, "/v1")
    lines = re.split(rb"\r\n|\r|\n", head)
    assert lines[3:-2] == [name + b": " + value for name, value in pairs]


@pytest.mark.parametrize(
    "target", ["", "v1", "*", "/a b", "/a\r\nx: y", "/a\n", "/a#b", "/\x7f", "/ü", "//é", "/\0"]
)
def test_targets_that_are_not_written(target: str) -> None:
    """Row 9: a target that is not plain and absolute is not sent; nothing is repaired."""
    with pytest.raises(ValueError, match="cannot be written"):
        write_head(request(), ORIGIN, target)


@pytest.mark.parametrize("method", ["", "post", "GET /", "GET\r\n", "G T"])
def test_methods_that_are_not_written(method: str) -> None:
    """A method is a word in capitals."""
    with pytest.raises(ValueError, match="cannot be written"):
        write_head(request(method=method), ORIGIN, "/")


@pytest.mark.parametrize(
    ("url", "host", "port", "secure", "authority"),
    [
        ("https://api.example/v1", "api.example", 443, True, "api.example:443"),
        ("http://API.example:81/v1", "api.example", 81, False, "api.example:81"),
        ("http://[::1]:81/v1", "::1", 81, False, "[::1]:81"),
    ],
)
def test_origins(url: str, host: str, port: int, secure: bool, authority: str) -> None:
    """An origin is read once; the target is what follows it, as written."""
    known: dict[str, Origin] = {}
    origin, target = split_url(url, known)
    assert (origin.host, origin.port, origin.secure) == (host, port, secure)
    assert (origin.authority, target) == (authority, "/v1")
    assert split_url(url.replace("/v1", "//x?/y"), known) == (origin, "//x?/y")
    assert split_url(url, known)[0] is origin


@pytest.mark.parametrize(
    "url", ["", "/v1", "ftp://h/x", "https://h", "https://u:p@h/x", "http:///"]
)
def test_urls_that_are_none(url: str) -> None:
    """What is not an absolute URL without a user is refused, in words that do not repeat it."""
    with pytest.raises(ValueError) as caught:
        split_url(url, {})
    assert url == "" or url not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.1.2.3",
        "168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192",
        "192.0.2.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1",
        "240.0.0.1", "255.255.255.255",
        "::", "::1", "::127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "fe80::1",
        "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "100::1",
        "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b:1::808:808", "2002:a00:1::",
        "2002:7f00:1::1", "2001::1", "4000::1", "nonsense", "", "1", "0x7f.1", "127.0.0.1.",
    ],
)  # fmt: skip
def test_addresses_inside(address: str) -> None:
    """Row 13: loopback, private, link-local, metadata, multicast, and all of them wrapped."""
    assert not is_outside(address)


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "160.79.104.10", "2607:6bc0::10", "::ffff:8.8.8.8", "64:ff9b::808:808"],
)
def test_addresses_outside(address: str) -> None:
    """Addresses of the public internet, also as a NAT64 network gives them."""
    assert is_outside(address)


@given(cut=st.lists(st.integers(0, 120), max_size=8), extra=st.binary(max_size=4))
@settings(max_examples=100)
def test_segments_do_not_matter(cut: list[int], extra: bytes) -> None:
    """However it is cut an answer is the same; what follows it is an error, never a part of it."""
    answer = (
        b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 200 OK\r\nA: b\r\ntransfer-encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n0\r\nx: y\r\n\r\n"
    )
    response, start = Response(), 0
    for end in [*sorted(cut), len(answer)]:
        if answer[start:end]:
            response.feed(answer[start:end])
        start = max(start, end)
    assert (response.status, b"".join(response.pieces), response.complete) == (200, b"abc", True)
    assert response.headers == ((b"a", b"b"), (b"transfer-encoding", b"chunked"))
    if extra.strip(b"\r\n"):
        with pytest.raises(NotHttp):
            response.feed(extra)
    assert b"".join(response.pieces) == b"abc"


def test_each_head_has_its_own_key() -> None:
    """Row 15: of heads that are alike but for the key, each holds its own."""
    for key in (b"one", b"two", b"one"):
        head = write_head(request((b"accept", b"a"), (b"x-api-key", key)), ORIGIN, "/v1")
        assert head.endswith(b"accept: a\r\nx-api-key: " + key + b"\r\n\r\n")


def test_key_is_not_remembered() -> None:
    """Row 15: a key goes into one head and nowhere else; what is remembered leaves it out."""
    pair = (b"x-api-key", b"kept" * 5)
    before = sys.getrefcount(pair), sys.getrefcount(pair[1])
    write_head(request((b"accept", b"a"), pair), ORIGIN, "/v1")
    assert (sys.getrefcount(pair), sys.getrefcount(pair[1])) == before
