"""Unmodified clients live through token after token, one lost token, and one refusal for good.

Last in this folder: their lives begin with its first test (conftest.py) and are over soon.
"""

import json
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

import pytest

from tests.clients.lives import LIVES, VISIT, WAYS, Lives, Talk
from tests.clients.revoking import revoke
from tests.servers.stack import Stack
from tests.servers.stub import StubUpstream
from tests.support import eventually

pytestmark = pytest.mark.sdk

LONGEST = 600.0


@pytest.fixture(scope="module")
def lives(begun_lives: Future[Lives]) -> Iterator[Lives]:
    """Every client and what became of its lives, once all of them are over."""
    found = begun_lives.result(0)
    wait([future for _, future in found.talks.values()], LONGEST)
    yield found
    found.end()


def test_clients_live_across_a_token_expiry(lives: Lives) -> None:
    """Both majors, TLS with our CA and the forwarder: no failed call beyond one token life."""
    reports = {way: each.agent.reports(timeout=VISIT + 60) for way, each in lives.visitors.items()}
    assert len(reports) == 4
    for way, lines in reports.items():
        assert len(lines) > 60, (way, lines[-1])
        assert all(line["ok"] and line["stop_reason"] == "end_turn" for line in lines), (way, lines)
        usage = lives.visitors[way].stack.usage(lives.visitors[way].sandbox)
        assert len({row["token_id"] for row in usage}) >= 2, way
    assert len({line["version"] for lines in reports.values() for line in lines}) == 2


def log(stack: Stack, name: str) -> list[dict[str, Any]]:
    """The log of a service, line by line, with all that came before."""
    lines = stack.complete_log(name).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def issued(talk: Talk) -> set[str]:
    """The tokens that a sandbox was given, by the broker's log."""
    return {
        line["token_id"]
        for line in log(talk.stack, "broker")
        if line["event"] == "token_issued" and line["sandbox"] == talk.sandbox["id"]
    }


def answered(talk: Talk) -> int:
    """How many calls of a sandbox are booked; one that was refused cost nothing."""
    return sum(
        row["state"] == "settled" and row["cost_nano"] > 0 for row in talk.stack.usage(talk.sandbox)
    )


@pytest.mark.parametrize("way", WAYS)
def test_twenty_lives_and_a_lost_token_without_a_failed_call(lives: Lives, way: str) -> None:
    """B18: 20 times a new token and once a revoked one; each turn is one call that succeeds."""
    talk, lived = lives.talks[way]
    lived.result(0)
    tokens = talk.tokens()
    assert len(tokens) >= LIVES + 2
    assert issued(talk) >= set(tokens)
    ident = talk.sandbox["id"].encode()
    assert sum(ident in seen.body for seen in lives.upstream.requests) == talk.turns
    assert eventually(lambda: answered(talk) >= talk.turns, timeout=20)
    assert answered(talk) == talk.turns
    # A token may end by itself while its call is being admitted.
    assert set(talk.stack.incidents(talk.sandbox["id"])) <= {"call_refused:token_expired"}


def test_the_lost_tokens_were_presented(lives: Lives) -> None:
    """Each client had the token it held refused: what it lived through was no lucky moment."""
    refused = [line for line in log(lives.stack, "proxy") if line.get("refused") == "token_expired"]
    assert len(refused) >= len(WAYS)


@dataclass(frozen=True)
class Count:
    """Refusals so far: of calls, of exchanges; and what reached the provider."""

    calls: int
    exchanges: int
    upstream: int


def count(stack: Stack, upstream: StubUpstream) -> Count:
    """Count what clients were refused, by the logs of proxy and broker."""
    refused = [line for line in log(stack, "proxy") if line.get("refused") == "token_revoked"]
    return Count(
        sum(line["event"] == "call_closed" and line["endpoint"] == "messages" for line in refused),
        sum(line["event"] == "token_refused" for line in log(stack, "broker")),
        len(upstream.requests),
    )


def end_access(talk: Talk) -> None:
    """Revoke the sandbox just after its client took a new token, and wait until that is seen."""
    talk.go_on(len(talk.tokens()) + 1)
    revoke(talk.stack, "sandbox", talk.sandbox["id"])


@pytest.mark.parametrize("way", WAYS)
def test_a_revoked_sandbox_is_one_call_and_one_exchange(lives: Lives, way: str) -> None:
    """After a revocation a client calls at most once, asks for a token once, says why and ends."""
    talk, lived = lives.talks[way]
    lived.result(0)
    stack = talk.stack
    end_access(talk)
    before = count(stack, lives.upstream)

    told = talk.turn()
    code = talk.conversation.end()

    after = count(stack, lives.upstream)
    assert after.calls <= before.calls + 1
    assert after.upstream == before.upstream
    # `daypass run` is a process of its own, and its next renewal may have been due.
    assert 1 <= after.exchanges - before.exchanges <= 1 + talk.through_run
    assert not told.ok
    sentence = "sandbox revoked; an administrator can lift this with: daypass sandbox restore"
    assert f"{sentence} {talk.sandbox['id']}" in told.text
    assert code == 1
