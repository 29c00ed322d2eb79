"""Limits changed while daypass runs: the next call meets them, and everybody can see them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers.billed import at_rest
from tests.servers.stack import POLICY, Stack
from tests.support import eventually


def limit(stack: Stack, sandbox: dict[str, Any], **wanted: object) -> Any:
    """Change limits of a sandbox as admin."""
    answer = stack.admin("PATCH", f"/v1/sandboxes/{sandbox['id']}", wanted)
    assert answer.status == 200, answer.body
    return answer.json()


def test_a_lowered_budget_bites_at_the_next_call(stack: Stack) -> None:
    """B06: lowered below what is spent, nothing passes any more; raised again, calls do."""
    sandbox = stack.sandbox(budget_usd="2.00")
    token = stack.access_token(sandbox)
    assert stack.message(token).status == 200
    at_rest(stack, sandbox, 1)
    shown = limit(stack, sandbox, budget_usd="0.0001")
    assert (shown["budget_usd"], shown["remaining_usd"]) == ("0.0001", "0.00")
    assert shown["limits"]["budget_usd"]["used"] == "0.0003"
    refused = stack.message(token)
    assert (refused.status, refused.headers["x-should-retry"]) == (402, "false")
    limit(stack, sandbox, budget_usd="2.00")
    # A refusal is remembered for a quarter of a second.
    eventually(lambda: stack.message(token).status == 200)
    at_rest(stack, sandbox, 2)


def test_a_rate_bites_at_the_next_call_and_goes_again(stack: Stack) -> None:
    """A limit that there was not before counts from its first call on; taken away, it is gone."""
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    assert stack.message(token).status == 200
    limit(stack, sandbox, requests_per_minute=1)
    assert [stack.message(token).status for _ in range(2)] == [200, 429]
    shown = stack.admin("GET", f"/v1/sandboxes/{sandbox['id']}").json()["limits"]
    assert shown["requests_per_minute"]["left"] == 0
    assert shown["requests_per_minute"]["resets_at"] is not None
    limit(stack, sandbox, requests_per_minute=None)
    eventually(lambda: stack.message(token).status == 200)
    at_rest(stack, sandbox, 3)


def test_a_policy_limits_all_sandboxes_of_a_tenant(make_stack: Callable[..., Stack]) -> None:
    """What one sandbox uses of its tenant's day is not there for the other; another tenant has its
    own."""
    stack = make_stack()
    first, second, other = stack.sandbox(), stack.sandbox(), stack.sandbox("globex")
    assert stack.message(stack.access_token(first)).status == 200
    at_rest(stack, first, 1)
    limited = "acme: {profiles: [coding], time_zone: Asia/Tokyo, budget_per_day_usd: '0.0003'}"
    (stack.folder / "policy.yaml").write_text(POLICY.replace("acme: {profiles: [coding]}", limited))
    stack.broker_command("apply", str(stack.folder / "policy.yaml"))
    refused = stack.message(stack.access_token(second))
    assert refused.status == 402
    assert "tenant daily budget" in refused.json()["error"]["message"]
    assert stack.message(stack.access_token(other)).status == 200
    at_rest(stack, other, 1)
    shown = stack.admin("GET", f"/v1/sandboxes/{second['id']}").json()["tenant_limits"]
    assert shown["budget_per_day_usd"]["used"] == "0.0003"


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_the_command_reports_changes_and_verifies(stack: Stack, kind: str) -> None:
    """`daypass sandbox limits`, `usage --by label:…` and `ledger verify` on a running daypass."""
    sandbox = stack.sandbox(labels={"task": f"=cmd-{kind}"})
    stack.message(stack.access_token(sandbox))
    at_rest(stack, sandbox, 1)
    flags = ("--budget", "1.00", "--concurrency", "2", "--json")
    limits = json.loads(daypass(stack, "sandbox", "limits", sandbox["id"], *flags))["limits"]
    assert {name: state["limit"] for name, state in limits.items()} == {
        "budget_usd": "1.00",
        "concurrency": 2,
    }
    shown = daypass(stack, "usage", "--by", "label:task", "--sandbox", sandbox["id"], f"--{kind}")
    if kind == "csv":
        heading, row = (line.split(",") for line in shown.splitlines())
        found = dict(zip(heading, row, strict=True))
        assert (found["label"], found["cost_usd"], found["tokens"]) == ("'=cmd-csv", "0.0003", "40")
    else:
        (found,) = json.loads(shown)["rows"]
        assert (found["label"], found["cost_usd"], found["tokens"]) == ("=cmd-json", "0.0003", 40)
    assert "every account is the sum" in daypass(stack, "ledger", "verify")


def daypass(stack: Stack, *words: str) -> str:
    """Run the command against a stack and return what it printed."""
    env = {
        "PATH": os.defpath,
        "DAYPASS_ADMIN_URL": stack.admin_url,
        "DAYPASS_CREDENTIAL": stack.admin_credential,
        "DAYPASS_DATABASE_URL": stack.database_url,
    }
    done = subprocess.run(
        [sys.executable, "-m", "daypass", *words], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
