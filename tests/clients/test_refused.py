"""Official clients and refusals that do not pass by themselves: one request, our sentence, no loop.

A table of clients (`stock.CLIENTS`) times scenarios (`SCENARIOS`): a new scenario is one entry.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.stock import CLIENTS, Place
from tests.servers.stack import Stack
from tests.servers.stub import Send, StubUpstream
from tests.servers.wire import json_answer, message_json
from tests.support import eventually

pytestmark = pytest.mark.sdk

SECONDS = 20.0  # most that a client may take, its start on a busy machine included
MODEL = "claude-sonnet-4-6"


@dataclass(frozen=True)
class Scenario:
    """A refusal: how a sandbox gets there, and what its client must then be told.

    `code` and `status` are the one answer in our log, `shown` what the user must read.
    """

    code: str
    status: int
    shown: str
    prepare: Callable[[Stack, StubUpstream], dict[str, Any]]


def spent(stack: Stack, upstream: StubUpstream, **limits: Any) -> dict[str, Any]:
    """A sandbox whose one call has cost more than its limits allow."""
    sandbox = stack.sandbox(**limits)
    usage = {"input_tokens": 25, "output_tokens": 100_000}
    upstream.next([Send(json_answer(200, message_json(MODEL, usage=usage)))])
    assert stack.message(stack.access_token(sandbox), model=MODEL).status == 200
    stack.settled(sandbox)
    return sandbox


def out_of_budget(stack: Stack, upstream: StubUpstream) -> dict[str, Any]:
    """A sandbox that has used up the budget of its life."""
    return spent(stack, upstream, budget_usd="1.00")


def out_of_this_month(stack: Stack, upstream: StubUpstream) -> dict[str, Any]:
    """A sandbox that has used up its budget for the month, which comes back."""
    return spent(stack, upstream, budget_per_month_usd="1.00")


def too_poor(stack: Stack, upstream: StubUpstream) -> dict[str, Any]:
    """A sandbox whose whole budget is less than any call may cost."""
    return stack.sandbox(budget_usd="0.0001")


SCENARIOS = {
    "exhausted": Scenario(
        "budget_exhausted", 402, r"sandbox budget used up; .* of 1\.00 USD are left", out_of_budget
    ),
    "month": Scenario(
        "budget_exhausted",
        402,
        r"monthly budget used up; .*; it starts anew at [0-9]{4}-[0-9]{2}-01T00:00:00Z",
        out_of_this_month,
    ),
    "too low": Scenario(
        "budget_exhausted", 402, r"budget too low for this call; .* 0\.0001 USD are left", too_poor
    ),
}


def answers_to(stack: Stack, sandbox: dict[str, Any], at_least: int) -> list[tuple[int, str]]:
    """Status and code of each inference call of a sandbox, once there are so many, by the log."""
    lines = [json.loads(line) for line in stack.log("proxy").splitlines()]
    answers = [
        (line["status"], line.get("refused", ""))
        for line in lines
        if line["event"] == "call_closed" and line.get("sandbox") == sandbox["id"]
    ]
    return answers if len(answers) >= at_least else []


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_refused_client_asks_once_and_says_why(
    stack: Stack, upstream: StubUpstream, tmp_path: Path, client: str, scenario: str
) -> None:
    """B49: the client asks exactly once, nothing reaches the provider, our sentence is shown."""
    wanted = SCENARIOS[scenario]
    sandbox = wanted.prepare(stack, upstream)
    token = stack.access_token(sandbox)
    admitted = len(stack.usage(sandbox))
    upstream.requests.clear()

    ended = CLIENTS[client](Place(stack.proxy_url, sandbox, token, tmp_path))

    # The log is in order: behind the line of this call none of the client's can come.
    assert stack.message(token, model=MODEL).status == wanted.status
    answers = eventually(lambda: answers_to(stack, sandbox, at_least=admitted + 2))
    assert answers[admitted:-1] == [(wanted.status, wanted.code)], ended
    assert upstream.requests == []
    assert re.search(wanted.shown, ended.said), ended
    assert ended.code == 1
    assert ended.seconds < SECONDS
