"""The transport as the settings want it."""

from dataclasses import replace
from pathlib import Path

import pytest

from daypass_proxy import app
from daypass_proxy.settings import Settings, load
from tests.canary import CANARY
from tests.servers.ca import Authority

NEEDED = {
    "DAYPASS_ISSUER": "http://broker.test",
    "DAYPASS_DATABASE_URL": "sqlite:////var/lib/daypass/daypass.db",
    "DAYPASS_BROKER_URL": "unix:/run/daypass/broker.sock",
    "DAYPASS_ANTHROPIC_KEYS": "acme=env://ACME_KEY",
    "ACME_KEY": "sk-ant-secret-value",
}


def read(**changes: str) -> Settings:
    """The needed settings with changes."""
    return load({**NEEDED, **changes})


async def test_plain_settings() -> None:
    """Without settings of its own there is no egress proxy, and private addresses are refused."""
    transport = app.make_transport(read())
    dialer = transport._dialer
    assert (dialer._egress, dialer._inside, dialer._seconds) == (None, False, 5)
    assert (transport._timeouts.first_byte, transport._timeouts.idle) == (600, 300)


async def test_all_settings(tmp_path: Path) -> None:
    """The extra CA is trusted, the egress proxy known by its credential, which nothing shows."""
    transport = app.make_transport(
        read(
            DAYPASS_UPSTREAM_CA_FILE=str(Authority(tmp_path).file),
            DAYPASS_UPSTREAM_PRIVATE="1",
            DAYPASS_EGRESS_PROXY=f"http://me:{CANARY}@egress.test:3128",
        )
    )
    dialer, egress = transport._dialer, transport._egress
    assert dialer._inside
    subjects = [str(ca["subject"]) for ca in dialer._tls.get_ca_certs()]
    assert any("test authority" in subject for subject in subjects)
    assert egress is not None
    assert (egress.host, egress.port) == ("egress.test", 3128)
    assert egress.header.startswith(b"proxy-authorization: Basic bWU6")
    assert CANARY not in repr(egress)


async def test_egress_proxy_without_credential() -> None:
    """An egress proxy that asks for nothing gets no credential."""
    transport = app.make_transport(read(DAYPASS_EGRESS_PROXY="http://egress.test:3128"))
    assert transport._egress is not None
    assert transport._egress.header == b""


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
async def test_ca_file_is_not_usable(tmp_path: Path, content: bytes | None) -> None:
    """A CA file that holds none stops the start, with the name of the setting."""
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RuntimeError, match="DAYPASS_UPSTREAM_CA_FILE"):
        app.make_transport(replace(read(), upstream_ca_file=file))
