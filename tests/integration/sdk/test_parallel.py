"""Sandboxes side by side, as an orchestrator with asyncio runs them: one budget above them all."""

import asyncio
from collections.abc import Callable
from decimal import Decimal

import pytest

from daypass import AsyncBroker, LLMProxyClient, Refused, Sandbox, TokenProvider, Unavailable
from tests.servers.stack import POLICY, Stack

BUDGET = Decimal("0.02")
SANDBOXES = 8
SHARED = POLICY.replace(
    "acme: {profiles: [coding]}", f'acme: {{profiles: [coding], budget_usd: "{BUDGET}"}}'
).replace('"claude-*", ', '"claude-sonnet-4-5", ')


class Agent:
    """One sandbox's agent: it asks until the budget is gone."""

    def __init__(self, sandbox: Sandbox) -> None:
        url = sandbox.environment["ANTHROPIC_BASE_URL"]
        own = TokenProvider(url, launch=sandbox.launch, organization="acme", cache=False)
        self._client = LLMProxyClient(provider=own)

    def work(self) -> int:
        """How many answers it got before it was told that there is no more money."""
        answers = 0
        while (refused := self._ask()) is None or isinstance(refused, Unavailable):
            answers += refused is None  # else it is held by the others' calls: it may come back
        assert (refused.status, refused.code) == (402, "billing_error"), refused
        return answers

    def _ask(self) -> Unavailable | Refused | None:
        try:
            assert self._client.call("Say hi.", max_tokens=16) == "Hello"
        except (Unavailable, Refused) as error:
            return error
        return None


async def test_one_budget_above_sandboxes_that_run_side_by_side(
    make_stack: Callable[..., Stack],
) -> None:
    """Each works until the tenant's budget is gone, to which all of them come in the end; together
    they spend no more than it, and afterwards none of them is left.
    """
    stack = make_stack(policy=SHARED)
    broker = AsyncBroker(stack.admin_url, stack.admin_credential)

    async def task() -> int:
        async with broker.sandbox(tenant="acme", profile="coding") as sandbox:
            return await asyncio.to_thread(Agent(sandbox).work)

    answers = await asyncio.gather(*(task() for _ in range(SANDBOXES)))
    rows = stack.rows("SELECT * FROM usage WHERE state = 'settled'")
    spent = Decimal(sum(row["cost_nano"] for row in rows)) / 10**9
    assert sum(answers) == len(rows)
    assert BUDGET / 2 < spent <= BUDGET
    states = {row["state"] for row in stack.rows("SELECT state FROM sandbox")}
    assert states == {"ended"}


async def test_a_hundred_are_registered_in_one_call(
    make_stack: Callable[..., Stack],
) -> None:
    """One request for all, each with a credential of its own; all are ended after a failure."""
    stack = make_stack()
    broker = AsyncBroker(stack.admin_url, stack.admin_credential)

    async def fail() -> None:
        async with broker.sandboxes(100, tenant="acme") as made:
            assert len({each.id for each in made}) == 100
            assert len({each.launch for each in made}) == 100
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    states = [row["state"] for row in stack.rows("SELECT state FROM sandbox")]
    assert states == ["ended"] * 100
