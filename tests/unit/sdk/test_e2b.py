"""What E2B is told of a sandbox, and mistakes that are told before anything is made."""

from types import SimpleNamespace
from typing import Any

import pytest

import daypass
from daypass import Broker, Sandbox, SettingsError, e2b
from tests.unit.sdk.admin_server import SANDBOX, AdminServer

IDLE = Sandbox.from_answer({**SANDBOX, "state": "idle", "environment": {}, "files": {}})
PROXY = "https://daypass.example/"


def test_the_proxy_is_the_only_way_out() -> None:
    """Everything is denied but the proxy and what is named; ours wins over what the caller sets."""
    told = e2b.arguments(
        IDLE,
        PROXY,
        reach=["pypi.org"],
        private_ca=True,
        envs={"A": "b", "ANTHROPIC_BASE_URL": "https://api.anthropic.com"},
        metadata={"daypass_sandbox": "another", "task": "1"},
    )
    assert told == {
        "envs": {
            "A": "b",
            "ANTHROPIC_BASE_URL": "https://daypass.example",
            "ANTHROPIC_IDENTITY_TOKEN_FILE": "/run/daypass/launch.jwt",
            "ANTHROPIC_FEDERATION_RULE_ID": "fdrl_daypass_launch",
            "ANTHROPIC_ORGANIZATION_ID": "acme",
            "SSL_CERT_FILE": "/run/daypass/ca.pem",
            "NODE_EXTRA_CA_CERTS": "/run/daypass/ca.pem",
        },
        "metadata": {"task": "1", "daypass_sandbox": "sbx_a"},
        "network": {"allow_out": ["daypass.example", "pypi.org"], "deny_out": ["0.0.0.0/0"]},
    }


@pytest.mark.parametrize("name", ["api.anthropic.com", "anthropic.com", "com", "API.OpenAI.com."])
def test_a_providers_own_host_is_not_opened(name: str) -> None:
    """Neither by its name nor by one above it."""
    with pytest.raises(SettingsError, match=r"opens api\.\w+\.com"):
        e2b.arguments(IDLE, PROXY, reach=["pypi.org", name])


class Machines:
    """A class in place of E2B's."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.killed = 0
        self.written: dict[str, str] = {}

    def create(self, **asked: Any) -> Any:
        """Make one."""
        self.made.append(asked)
        files = SimpleNamespace(write=lambda path, content, user: self.written.update({path: user}))
        return SimpleNamespace(sandbox_id="i4x", files=files, kill=self.kill)

    def kill(self) -> None:
        """Kill it."""
        self.killed += 1


@pytest.fixture
def broker(admin: AdminServer) -> Broker:
    """A client of the admin server, which registers idle and activates."""
    admin.answers["POST /v1/sandboxes"] = (201, {**SANDBOX, "state": "idle"})
    admin.answers["POST /v1/sandboxes/sbx_a/activate"] = (200, SANDBOX)
    return Broker(admin.url, "dpo_x_y")


def test_it_is_activated_under_the_vendors_id(admin: AdminServer, broker: Broker) -> None:
    """Idle first, then E2B's, then activated, handed over, killed and ended."""
    machines = Machines()
    proxy = SANDBOX["environment"]["ANTHROPIC_BASE_URL"]
    with e2b.sandbox(broker, proxy=proxy, kind=machines, profile="coding"):
        assert machines.written == {"/run/daypass/launch.jwt": "root"}
        assert machines.killed == 0
    assert machines.killed == 1
    assert admin.calls == [
        "POST /v1/sandboxes",
        "POST /v1/sandboxes/sbx_a/activate",
        "DELETE /v1/sandboxes/sbx_a",
    ]
    assert admin.asked[0].json() == {"idle": True, "profile": "coding"}
    assert admin.asked[1].json() == {"vendor": "e2b", "vendor_id": "i4x"}


def test_another_proxy_than_the_brokers_is_told(admin: AdminServer, broker: Broker) -> None:
    """The variables would lead elsewhere; what was made is killed and ended."""
    machines = Machines()
    with (
        pytest.raises(SettingsError, match="hands out http://127"),
        e2b.sandbox(broker, proxy=PROXY, kind=machines),
    ):
        pytest.fail("the block must not run")
    assert (machines.killed, machines.written) == (1, {})
    assert admin.calls[-1] == "DELETE /v1/sandboxes/sbx_a"


@pytest.mark.parametrize("name", ["network", "allow_internet_access"])
def test_the_network_is_not_to_be_set_twice(admin: AdminServer, broker: Broker, name: str) -> None:
    """What the caller wants of the network is said with `reach`, or nothing is made at E2B."""
    machines = Machines()
    with (
        pytest.raises(SettingsError, match=f"create: {name} is decided here"),
        e2b.sandbox(broker, proxy=PROXY, kind=machines, create={name: True}),
    ):
        pytest.fail("the block must not run")
    assert machines.made == []
    assert admin.calls[-1] == "DELETE /v1/sandboxes/sbx_a"


def test_without_the_package_it_says_what_to_install(admin: AdminServer, broker: Broker) -> None:
    """E2B's SDK is the user's to install; nothing is registered."""
    with (
        pytest.raises(daypass.NotInstalled, match="pip install e2b"),
        e2b.sandbox(broker, proxy=PROXY),
    ):
        pytest.fail("the block must not run")
    assert admin.calls == []
