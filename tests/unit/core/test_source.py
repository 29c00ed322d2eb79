"""Where a token may be used from: networks read strictly, and addresses found in them."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daypass_core.claims import SignedClaims, access_payload, parse_access
from daypass_core.source import inside, is_host, network_of, read_network, within
from tests.support import make_claims

V6 = st.integers(0, 2**128 - 1).map(ip_address)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("10.2.3.4", "10.2.3.4/32"),
        ("10.2.0.0/16", "10.2.0.0/16"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("2001:DB8:0::/64", "2001:db8::/64"),
        ("2001:db8::/32", "2001:db8::/32"),
    ],
)
def test_a_network_is_read_as_tokens_have_it(text: str, read: str) -> None:
    """Whatever is written, a token that carries what was read is accepted."""
    assert read_network(text) == read
    payload = access_payload(make_claims(source=(read,)))
    claims = parse_access({"kid": "k"}, SignedClaims(payload))
    assert claims.source == (read,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("10.2.3.4/16", "without bits behind its length"),
        ("10.2", "must be a network"),
        (" 10.2.0.0/16", "must be a network"),
        ("10.2.0.0/33", "must be a network"),
        ("", "must be a network"),
        ("any", "must be a network"),
        ("2001:db8::1", "write a network of /64 or wider"),
        ("2001:db8::/65", "write a network of /64 or wider"),
        ("::ffff:10.2.0.0/112", "write it as IPv4"),
        ("fe80::%eth0/64", "must not name an interface"),
    ],
)
def test_what_could_be_meant_otherwise_is_refused(text: str, said: str) -> None:
    """The message says what to write."""
    with pytest.raises(ValueError, match=said):
        read_network(text)


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        ("10.2.3.4", "10.2.3.4/32"),
        ("::ffff:10.2.3.4", "10.2.3.4/32"),
        ("2001:db8:0:7:1:2:3:4", "2001:db8:0:7::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", None),
        ("unknown", None),
        ("", None),
        ("10.2.3.4:80", None),
    ],
)
def test_an_address_stands_for_a_network(peer: str, network: str | None) -> None:
    """IPv4 for itself, IPv6 for its /64; what is no address for nothing, and lies in nothing."""
    assert network_of(peer) == network
    if network is None:
        assert not inside(("0.0.0.0/0", "::/0"), peer)
    else:
        assert inside((network,), peer)
        assert is_host(network)


@given(V6, V6)
def test_addresses_of_one_64_are_one_host(one: object, other: object) -> None:
    """Two IPv6 addresses are the same source exactly when their upper 64 bits are."""
    network = network_of(str(one))
    assert network is not None
    mapped = "." in network
    same = int(one) >> 64 == int(other) >> 64  # type: ignore[call-overload]
    if not mapped and "." not in (network_of(str(other)) or ""):
        assert inside((network,), str(other)) == same


def test_the_two_kinds_of_addresses_do_not_mix() -> None:
    """Everything in IPv4 is nothing in IPv6, and the other way round."""
    assert not inside(("0.0.0.0/0",), "2001:db8::1")
    assert not inside(("::/0",), "10.2.3.4")
    assert inside(("10.0.0.0/8",), "::ffff:10.2.3.4")
    assert not within(["10.0.0.0/8"], ["::/0"])
    assert not within(["2001:db8::/32"], ["0.0.0.0/0"])


def test_networks_within_networks() -> None:
    """All of them have to lie within one of the wider ones."""
    assert within(["10.2.0.0/16", "10.3.0.0/16"], ["192.168.0.0/16", "10.0.0.0/8"])
    assert not within(["10.2.0.0/16", "11.0.0.0/16"], ["10.0.0.0/8"])
    assert not within(["10.0.0.0/7"], ["10.0.0.0/8"])
    assert within(["10.0.0.0/8"], ["10.0.0.0/8"])
    assert not is_host(str(ip_network("10.0.0.0/31")))
