"""Whose request it is: only trusted proxies are believed, and only what they wrote themselves."""

from typing import Any, cast

import pytest

from daypass_core.settings import SettingsError
from daypass_proxy.edge import Application
from daypass_proxy.peer import UNKNOWN_PEER, client_behind
from daypass_proxy.settings import load
from tests.fakes.asgi import Wire, scope
from tests.fakes.proxy import ENVIRONMENT, KEY, Proxy
from tests.support import access_token, make_claims

TRUSTED = ("10.0.0.0/8", "2001:db8::/32")


def forwarded(*values: str) -> list[tuple[bytes, bytes]]:
    """Headers of a request with these lines of X-Forwarded-For."""
    lines = [(b"x-forwarded-for", value.encode("latin-1")) for value in values]
    return [(b"host", b"proxy"), *lines, (b"x-real-ip", b"6.6.6.6")]


@pytest.mark.parametrize(
    ("peer", "values", "client"),
    [
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),
        ("203.0.113.9", ["10.1.1.1"], "203.0.113.9"),
        ("10.1.1.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.1.1.1", ["6.6.6.6, 198.51.100.1"], "198.51.100.1"),
        ("10.1.1.1", ["6.6.6.6", "198.51.100.1"], "198.51.100.1"),
        ("10.1.1.1", ["198.51.100.1, 10.2.2.2,10.3.3.3"], "198.51.100.1"),
        ("10.1.1.1", ["10.2.2.2, 10.3.3.3"], "10.2.2.2"),
        ("10.1.1.1", [], "10.1.1.1"),
        ("::ffff:10.1.1.1", ["198.51.100.1"], "198.51.100.1"),
        ("2001:db8::1", ["2a00::5"], "2a00::5"),
        ("10.1.1.1", ["198.51.100.1:4711"], "198.51.100.1"),
        ("10.1.1.1", ["[2a00::5]:4711"], "2a00::5"),
        ("10.1.1.1", ["198.51.100.1, nonsense"], UNKNOWN_PEER),
        ("10.1.1.1", ["198.51.100.1, "], UNKNOWN_PEER),
        ("10.1.1.1", ["unix"], UNKNOWN_PEER),
        ("10.1.1.1", ["nonsense, 198.51.100.1"], "198.51.100.1"),
        ("", ["198.51.100.1"], ""),
    ],
)
def test_the_client_is_the_first_that_is_not_trusted(
    peer: str, values: list[str], client: str
) -> None:
    """From the right; a stranger's header, and what a client wrote itself, count for nothing."""
    assert client_behind(TRUSTED, peer, forwarded(*values)) == client


def test_the_setting_is_networks() -> None:
    """Nobody is trusted by default; a mistake is named by its place and never repeated."""
    assert load(ENVIRONMENT).trusted_proxies == ()
    some = {**ENVIRONMENT, "DAYPASS_TRUSTED_PROXIES": "10.0.0.1, 2001:db8::/32"}
    assert load(some).trusted_proxies == ("10.0.0.1/32", "2001:db8::/32")
    with pytest.raises(SettingsError, match=r"DAYPASS_TRUSTED_PROXIES.* entry 2 must be a") as told:
        load({**ENVIRONMENT, "DAYPASS_TRUSTED_PROXIES": "10.0.0.1,lb.internal"})
    assert "lb.internal" not in str(told.value)
    with pytest.raises(SettingsError, match="must be at most 32 networks"):
        load({**ENVIRONMENT, "DAYPASS_TRUSTED_PROXIES": ",".join(["10.0.0.1"] * 33)})


@pytest.mark.parametrize(
    ("trusted", "peer", "status"),
    [
        ("", "10.0.0.7", 401),
        ("10.0.0.7", "10.0.0.7", 200),
        ("10.0.0.8", "10.0.0.7", 401),
        ("10.0.0.0/8", None, 401),
    ],
)
async def test_only_a_trusted_proxy_can_say_where_a_token_is(
    trusted: str, peer: str | None, status: int
) -> None:
    """A bound token passes behind a proxy that the settings trust; with a header alone it never
    does, and never through a Unix socket.
    """
    settings = load({**ENVIRONMENT, "DAYPASS_TRUSTED_PROXIES": trusted})
    proxy = Proxy(settings=settings)
    application = Application(cast(Any, None))
    application.services = proxy.services
    token = access_token(KEY, make_claims(source=("198.51.100.0/24",)))
    headers = [
        (b"authorization", f"Bearer {token}".encode()),
        (b"x-forwarded-for", b"198.51.100.1"),
    ]
    wire = Wire([])
    asked = scope("GET", b"/v1/self", headers=headers, peer=peer)
    await application(asked, wire.receive, wire.send)
    assert wire.status == status
    counted = [kind for _, kind in proxy.ledger.counted]
    assert counted == (["foreign_source"] if status == 401 else [])
