"""Host lists: what is meant is allowed, and nothing that any reader takes for another host."""

import ipaddress
from urllib.parse import urlsplit

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daypass import SettingsError
from daypass.hosts import Hosts, target

ALLOWED = Hosts(
    [
        *("example.com", "xn--bcher-kva.example", "files.test:8443", "any.test:*", "192.0.2.7"),
        *("[2001:db8::1]:9000", "localhost:3000"),
    ]
)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com/",
        "https://EXAMPLE.com:443/a?b=c#d",
        "https://docs.example.com/@user/a:b",
        "https://a.b.example.com?x=https://evil.test@y",
        "https://example.com./",
        "https://xn--bcher-kva.example/",
        "https://files.test:8443/",
        "https://any.test/",
        "https://any.test:1/",
        "https://192.0.2.7/",
        "https://[2001:db8:0:0:0:0:0:1]:9000/",
        "https://localhost:3000/",
        "HTTPS://example.com/",
    ],
)
def test_what_is_listed_is_allowed(url: str) -> None:
    """The host itself and below, in any case, with a final dot, and with the listed port."""
    assert ALLOWED.allows(url)


@pytest.mark.parametrize(
    "url",
    [
        # another scheme, or none
        "http://example.com/",
        "ftp://example.com/",
        "example.com",
        "//example.com/",
        "https:example.com",
        "https:/example.com",
        "https:///example.com",
        "javascript:https://example.com/",
        # users
        "https://example.com@evil.test/",
        "https://example.com:443@evil.test/",
        "https://user@example.com/",
        "https://@example.com/",
        "https://example.com%40evil.test/",
        "https://example.com\\@evil.test/",
        # suffixes and prefixes
        "https://notexample.com/",
        "https://example.com.evil.test/",
        "https://evil.test/example.com",
        "https://evil.test/https://example.com",
        "https://evil.test?example.com",
        "https://evil.test#.example.com",
        "https://example.com-evil.test/",
        "https://evil.test\\.example.com/",
        "https://.example.com/",
        "https://a..example.com/",
        "https://example.com../",
        "https://com/",
        # ports
        "https://example.com:80/",
        "https://example.com:8443/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com:/",
        "https://example.com:443:443/",
        "https://any.test:*/",
        "https://files.test/",
        "https://localhost/",
        # other alphabets, and what looks like them
        "https://bücher.example/",
        "https://ex\u0430mple.com/",
        "https://example\u3002com/",
        "https://example.com\u2044.evil.test/",
        "https://e\u00adxample.com/",
        "https://example.com\uff0fevil.test/",
        "https://%65xample.com/",
        # blanks and controls
        " https://example.com/",
        "https://example.com /",
        "https://exam\tple.com/",
        "https://example.com\r\nhost: evil.test/",
        "https://evil.test\x00.example.com/",
        "https://example.com/\n",
        # addresses in other clothes
        "https://192.0.2.007/",
        "https://192.0.519/",
        "https://0xc0.0.2.7/",
        "https://3221225991/",
        "https://192.0.2.7./",
        "https://a.192.0.2.7/",
        "https://[::ffff:192.0.2.7]/",
        "https://192.0.2.8/",
        "https://[2001:db8::1]/",
        "https://[2001:db8::1%25eth0]:9000/",
        "https://2001:db8::1:9000/",
        "https://[example.com]/",
        "https://[2001:db8::1/",
        "",
        "https://",
        "https://" + "a." * 5000 + "example.com/",
    ],
)
def test_what_is_not_listed_is_not_allowed(url: str) -> None:
    """Users, suffixes, ports, look-alikes, blanks, and addresses written to be read otherwise."""
    assert not ALLOWED.allows(url)


def test_plain_http_is_allowed_where_it_is_asked_for() -> None:
    """The usual port is that of the scheme."""
    plain = Hosts(["example.com"], schemes=("https", "http"))
    assert plain.allows("http://example.com/")
    assert plain.allows("https://example.com/")
    assert not plain.allows("http://example.com:443/")


@pytest.mark.parametrize(
    "entry",
    [
        *("", "https://example.com", "*.example.com", ".example.com", "bücher.example"),
        *("example.com/", "a@b.example", "exam ple.com", "example.com:", "-a.example"),
        *("10.0.0", "[::1", "::1"),
    ],
)
def test_an_entry_that_is_no_host_is_named(entry: str) -> None:
    """A mistake in the list is told when it is made, not by hosts that stay closed or open."""
    with pytest.raises(SettingsError, match="is not a host"):
        Hosts([entry])


def within(host: str | None) -> bool:
    """Whether another reader's host is one of ours."""
    name = (host or "").lower().removesuffix(".")
    return f".{name}".endswith((".example.com", ".any.test"))


PIECES = st.sampled_from(
    [
        *(
            "example.com",
            "any.test",
            "evil.test",
            "https://",
            "http://",
            "//",
            "a.",
            ".",
            "..",
            "@",
        ),
        *(":", "443", "8080", "/", "\\", "?", "#", "%", "%2e", "%00", "[", "]", "[::1]", "0x7f"),
        *(
            "127.0.0.1",
            "\t",
            "\n",
            " ",
            "\x00",
            "\u3002",
            "\uff0e",
            "\u2100",
            "ß",
            "xn--",
            "-",
            "_",
        ),
        *("E", ";", "*"),
    ]
)


@given(st.lists(PIECES, max_size=8).map("".join), st.sampled_from(["https://", ""]))
@example("a.example.com#@evil.test", "https://")
@example("evil.test#@example.com", "https://")
def test_every_reader_finds_the_same_host(rest: str, begin: str) -> None:
    """What is allowed is within the list for urllib and for httpx2, too."""
    url = begin + rest
    if not Hosts(["example.com", "any.test:*"]).allows(url):
        return
    assert within(urlsplit(url).hostname), url
    assert within(httpx2.URL(url).host), url


LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
PATHS = st.from_regex(
    r"(/[A-Za-z0-9._~!$&'()*+,;=:@%-]{0,8}){0,3}(\?[a-z=&/?:@]{0,8})?", fullmatch=True
)


@given(st.lists(LABELS, max_size=3), PATHS, st.booleans(), st.booleans())
def test_what_lies_below_is_always_allowed(
    labels: list[str], path: str, dot: bool, upper: bool
) -> None:
    """No plain URL at or below a listed name is refused, so nobody is led to loosen the list."""
    host = ".".join([*labels, "example.com"]) + "." * dot
    assert ALLOWED.allows(f"https://{host.upper() if upper else host}{path}")


@given(st.ip_addresses())
def test_addresses_are_themselves_alone(address: ipaddress.IPv4Address) -> None:
    """An address is allowed in every usual spelling where it is listed, and nowhere else."""
    written = f"[{address}]" if ":" in str(address) else str(address)
    spelled = f"[{address.exploded}]" if ":" in str(address) else written
    assert Hosts([written]).allows(f"https://{spelled}/")
    assert not Hosts(["example.com"]).allows(f"https://{written}/")


@given(st.text(max_size=40))
def test_nothing_but_a_sentence_is_raised(url: str) -> None:
    """Whatever comes, `target` gives a target or says in words what is wrong."""
    try:
        found = target(url).host
    except ValueError as error:
        found = str(error)
    assert found
