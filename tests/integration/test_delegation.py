"""A sub-agent on a token of its own, through a real broker and proxy: what it may, what ends it."""

from collections.abc import Callable
from typing import Any

import pytest

from daypass import Child, Refused, delegate
from tests.integration.test_revocation import BODY, MODEL, RUNNING, revoke
from tests.servers.client import RawStream
from tests.servers.stack import Stack, call
from tests.servers.stub import StubUpstream
from tests.support import eventually


def myself(stack: Stack, token: str) -> dict[str, Any]:
    """What the proxy says of a token."""
    answer = call(stack.proxy_url, "GET", "/v1/self", None, {"authorization": f"Bearer {token}"})
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    return found


def buy(stack: Stack, token: str, **more: Any) -> Child:
    """Buy as a sub-agent's parent does."""
    return delegate(token=token, base_url=stack.proxy_url, **more)


@pytest.fixture
def stack(make_stack: Callable[..., Stack]) -> Stack:
    """A broker and a proxy."""
    return make_stack()


def test_a_child_may_less_and_its_calls_cost_its_buyer(
    stack: Stack, upstream: StubUpstream
) -> None:
    """The child's scope and slice bound it; what it spends, its sandbox has spent."""
    sandbox = stack.sandbox()
    parent = stack.access_token(sandbox)
    child = buy(stack, parent, models=[MODEL], budget_usd="0.50", lifetime=60)
    assert stack.message(child.token).status == 200
    assert stack.message(child.token, model="gpt-6").status == 400
    found, own = myself(stack, child.token), myself(stack, parent)
    spent = found["budget"]["spent_usd"]
    assert found["grants"][:-1] == own["grants"]
    assert (found["budget"]["budget_usd"], own["budget"]["spent_usd"]) == ("0.50", spent)
    assert spent != "0.00"
    (row,) = stack.rows("SELECT account, accounts, sandbox FROM usage")
    assert row["account"] == f"grant:{found['grants'][-1]}"
    assert row["accounts"].split(" ")[1:] == [f"sandbox:{sandbox['id']}", "tenant:acme"]


def test_a_slice_is_not_to_be_had_twice(stack: Stack, upstream: StubUpstream) -> None:
    """What a child has, its buyer cannot spend or sell, and the refusal says what is free."""
    parent = stack.access_token(stack.sandbox())
    buy(stack, parent, budget_usd="4.00", lifetime=60)
    with pytest.raises(Refused, match=r"1\.00 of the buyer's budget is free") as caught:
        buy(stack, parent, budget_usd="1.01")
    assert caught.value.code == "insufficient_budget"
    assert myself(stack, parent)["budget"]["remaining_usd"] == "1.00"


def test_what_a_child_has_left_comes_back(stack: Stack, upstream: StubUpstream) -> None:
    """When it is over its buyer has the rest again, without anybody asking."""
    parent = stack.access_token(stack.sandbox())
    child = buy(stack, parent, budget_usd="4.00", lifetime=60)
    stack.message(child.token)
    spent = myself(stack, child.token)["budget"]["spent_usd"]
    revoke(stack, "grant", myself(stack, child.token)["grants"][-1])
    left = eventually(
        lambda: (now := myself(stack, parent)["budget"])["set_aside_usd"] == "0.00" and now, 20
    )
    assert left["spent_usd"] == spent
    (row,) = stack.rows("SELECT lent_nano, lent_used_nano FROM account WHERE kind = 'sandbox'")
    assert row["lent_nano"] == row["lent_used_nano"]


def test_revoking_a_grant_ends_its_subtree_alone(stack: Stack, upstream: StubUpstream) -> None:
    """A running call two levels below is cut; the parent and a sibling go on."""
    parent = stack.access_token(stack.sandbox())
    child, sibling = buy(stack, parent), buy(stack, parent)
    grandchild = buy(stack, child.token)
    upstream.next(RUNNING)
    stream = RawStream.post(stack.proxy_url, grandchild.token, BODY)
    stream.until(b"hello")
    revoke(stack, "grant", myself(stack, child.token)["grants"][-1])
    assert b"event: error" in stream.rest()
    for token in (child.token, grandchild.token):
        answer = stack.message(token)
        assert (answer.status, answer.headers["x-should-retry"]) == (401, "false")
    for token in (parent, sibling.token):
        assert stack.message(token).status == 200
