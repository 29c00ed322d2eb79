"""What happens to a client in the matrix: `SCENARIOS`, one entry for each column.

Place in the flow: `prepare` brings a sandbox to where the column wants it and gives an access token
of it; `fault` is what the provider does; `figure` names the figures that bound the requests.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.clients.matrix.provider import BUSY, CUT, SPEND, TOOL
from tests.clients.matrix.world import World
from tests.servers.stack import call
from tests.support import eventually

Sandbox = dict[str, Any]


Prepared = tuple[Sandbox, str]
Prepare = Callable[[World, str], Prepared]


def _fresh(**fields: Any) -> Prepare:
    def prepare(world: World, mark: str) -> Prepared:
        sandbox = world.stack.sandbox(**{"profile": "matrix"} | fields)
        return sandbox, world.stack.access_token(sandbox)

    return prepare


def _refused(world: World, token: str) -> None:
    """Wait until the proxy takes a token no more."""
    headers = {"authorization": f"Bearer {token}"}
    url = world.stack.proxy_url
    assert eventually(
        lambda: call(url, "GET", "/v1/self", headers=headers).status == 401, timeout=30
    )


def _expired(world: World, mark: str) -> Prepared:
    sandbox, token = _fresh(token_ttl_seconds=2)(world, mark)
    _refused(world, token)
    return sandbox, token


def _revoked(world: World, mark: str) -> Prepared:
    sandbox, token = _fresh()(world, mark)
    order = {"scope": "sandbox", "ident": sandbox["id"], "reason": "test"}
    assert world.stack.admin("POST", "/v1/revocations", order).status == 201
    _refused(world, token)
    return sandbox, token


def _after_one_call(**limits: Any) -> Prepare:
    """A sandbox that has made one dear call."""

    def prepare(world: World, mark: str) -> Prepared:
        sandbox, token = _fresh(**limits)(world, mark)
        world.provider.faults[mark] = SPEND
        messages = [{"role": "user", "content": mark}]
        assert world.stack.message(token, messages=messages).status == 200
        world.stack.settled(sandbox)
        del world.provider.faults[mark]
        return sandbox, token

    return prepare


@dataclass(frozen=True)
class Scenario:
    """One column. `shown` is part of our sentence, empty where the client is to succeed.

    `alike` says that a client must do the same without us.
    """

    name: str
    mode: str = "stream"
    figure: str = ""
    shown: str = ""
    fault: str = ""
    alike: bool = False
    prepare: Prepare = field(default_factory=_fresh)


SCENARIOS = (
    Scenario("ok", mode="plain", alike=True),
    Scenario("tool turn", mode="tool", alike=True, fault=TOOL),
    Scenario("stream", alike=True),
    Scenario("expired", figure="401", shown="token expired", prepare=_expired),
    Scenario("revoked", figure="401 for good", shown="revoked", prepare=_revoked),
    Scenario(
        "model refused",
        figure="400",
        shown="is not allowed for this sandbox",
        prepare=_fresh(profile="other-models"),
    ),
    Scenario(
        "endpoint refused",
        figure="403",
        shown="endpoint",
        prepare=_fresh(profile="listing"),
    ),
    Scenario(
        "budget gone",
        figure="402",
        shown="sandbox budget used up",
        prepare=_after_one_call(budget_usd="1.00"),
    ),
    Scenario(
        "rate", figure="429", shown="requests", prepare=_after_one_call(requests_per_minute=1)
    ),
    Scenario("upstream 529 once", figure="529 once", fault=BUSY, alike=True),
    Scenario("cut mid-stream", figure="cut", shown="provider", fault=CUT),
)
