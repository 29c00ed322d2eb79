"""Unmodified clients live through token after token, one lost token, and one refusal for good.

Each client comes with a `reusable` launch credential that it exchanges itself, and with a
`single_use` one through `daypass run`. All of them run side by side, each in a sandbox of its own:
what is waited for is the end of many token lives, and time does not pass faster for one alone.

A client asks for its next token a while before the end of the last, a time that it has built in
(`Talker.margin`). Tokens here live LIFE seconds longer than that, so that 20 of them are 20
exchanges in less than three minutes; a life of 130 s is the same with 10 s for LIFE. Then a sandbox
has more live tokens than it may, and would be given old ones again: those that its client has left
are revoked.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conversation import DAYPASS_RUN, TALKERS, Conversation, Talker, Told
from tests.clients.stock import MODEL, Place
from tests.servers.stack import Stack, call
from tests.servers.stub import StubUpstream
from tests.support import eventually

pytestmark = pytest.mark.sdk

LIVES = 20
LIFE = 7  # more than the 5 s in which the broker gives the same token again
PAUSE = 1.0  # between two turns, so that the machine is not busy with turns alone
LONGEST = 400.0
WAYS = {
    f"{name}, {launch}": (name, launch) for name in TALKERS for launch in ("reusable", "single_use")
}


@dataclass
class Talk:
    """A client in its sandbox, and how many turns it took."""

    stack: Stack
    sandbox: dict[str, Any]
    conversation: Conversation
    folder: Path
    turns: int = 0
    left: set[str] = field(default_factory=set)

    @property
    def through_run(self) -> bool:
        """Whether the client is the command of `daypass run`."""
        return bool(self.sandbox["launch"]["mode"] == "single_use")

    def turn(self) -> Told:
        """One more turn; its prompt names the sandbox, so that the stub can tell whose it is."""
        self.turns += 1
        return self.conversation.turn(f"turn {self.turns} of {self.sandbox['id']}")

    def tokens(self) -> list[str]:
        """The tokens that its calls were made with, oldest first."""
        return list(dict.fromkeys(row["token_id"] for row in self.stack.usage(self.sandbox)))

    def go_on(self, tokens: int) -> None:
        """Take turns until so many tokens have been used; every turn must succeed."""
        while len(used := self.tokens()) < tokens:
            for token in set(used[:-1]) - self.left:
                self.revoke("jti", token)
                self.left.add(token)
            told = self.turn()
            assert told.ok, (told, self.turns, self.conversation.complaints())
            time.sleep(PAUSE)

    def live(self) -> None:
        """Half of the lives, one token revoked, the other half."""
        self.go_on(LIVES // 2)
        self.revoke("jti", self.tokens()[-1])
        self.go_on(LIVES + 2)  # the revoked one was no whole life, nor is the last

    def revoke(self, scope: str, ident: str) -> None:
        """Revoke as an administrator does."""
        order = {"scope": scope, "ident": ident, "reason": "test"}
        assert self.stack.admin("POST", "/v1/revocations", order).status == 201

    def token(self) -> str:
        """An access token of the sandbox that the test may use."""
        if not self.through_run:
            return self.stack.access_token(self.sandbox)
        (cache,) = (self.folder / "daypass").glob("*.json")
        return str(json.loads(cache.read_text())["access_token"])


def started(stack: Stack, way: str, folder: Path, running: ExitStack) -> Talk:
    """A client in a new sandbox whose tokens it replaces every LIFE seconds."""
    name, launch = WAYS[way]
    talker: Talker = TALKERS[name]
    margin = talker.margin if launch == "reusable" else talker.profile_margin
    sandbox = stack.sandbox(token_ttl_seconds=margin + LIFE, budget_usd="900.00", launch=launch)
    folder.mkdir()
    variables = Place(stack.proxy_url, sandbox, "", folder).federation()
    variables["XDG_RUNTIME_DIR"] = str(folder)
    within = DAYPASS_RUN if launch == "single_use" else ()
    conversation = running.enter_context(talker.start(variables, folder, within))
    return Talk(stack, sandbox, conversation, folder)


Lives = dict[str, tuple[Talk, Future[None]]]


@pytest.fixture(scope="module")
def lives(module_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    """Every client and what became of its lives, once all of them are over."""
    folder = tmp_path_factory.mktemp("lives")
    with ExitStack() as running, ThreadPoolExecutor(len(WAYS)) as pool:
        found = {}
        for number, way in enumerate(WAYS):
            talk = started(module_stack, way, folder / str(number), running)
            found[way] = (talk, pool.submit(talk.live))
        wait([future for _, future in found.values()], LONGEST)
        yield found


def log(stack: Stack, name: str) -> list[dict[str, Any]]:
    """The log of a service, line by line."""
    return [json.loads(line) for line in stack.log(name).splitlines() if line.startswith("{")]


def issued(talk: Talk) -> set[str]:
    """The tokens that a sandbox was given, by the broker's log."""
    return {
        line["token_id"]
        for line in log(talk.stack, "broker")
        if line["event"] == "token_issued" and line["sandbox"] == talk.sandbox["id"]
    }


def answered(talk: Talk) -> int:
    """How many calls of a sandbox are booked; one that met the revocation half-way cost nothing."""
    return sum(
        row["state"] == "settled" and row["cost_nano"] > 0 for row in talk.stack.usage(talk.sandbox)
    )


@pytest.mark.parametrize("way", WAYS)
def test_twenty_lives_and_a_lost_token_without_a_failed_call(
    lives: Lives, module_stub: StubUpstream, way: str
) -> None:
    """B18: 20 times a new token and once a revoked one; each turn is one call that succeeds."""
    talk, lived = lives[way]
    lived.result(0)
    tokens = talk.tokens()
    assert len(tokens) >= LIVES + 2
    assert issued(talk) >= set(tokens)
    ident = talk.sandbox["id"].encode()
    assert sum(ident in seen.body for seen in module_stub.requests) == talk.turns
    assert eventually(lambda: answered(talk) >= talk.turns)
    assert answered(talk) == talk.turns
    # A call may have been on its way when its token was revoked: refused after its admission.
    assert set(talk.stack.incidents(talk.sandbox["id"])) <= {"call_refused:token_expired"}


def test_the_lost_tokens_were_presented(lives: Lives, module_stack: Stack) -> None:
    """Each client had the token it held refused: what it lived through was no lucky moment."""
    refused = [
        line for line in log(module_stack, "proxy") if line.get("refused") == "token_expired"
    ]
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


def revoked(talk: Talk) -> str:
    """Revoke the sandbox just after its client took a new token; gives one that is over now."""
    talk.go_on(len(talk.tokens()) + 1)
    ours = talk.token()
    talk.revoke("sandbox", talk.sandbox["id"])
    headers = {"authorization": f"Bearer {ours}"}
    eventually(lambda: call(talk.stack.proxy_url, "GET", "/v1/self", headers=headers).status == 401)
    return ours


@pytest.mark.parametrize("way", WAYS)
def test_a_revoked_sandbox_is_one_call_and_one_exchange(
    lives: Lives, module_stub: StubUpstream, way: str
) -> None:
    """After a revocation a client calls at most once, asks for a token once, says why and ends."""
    talk, lived = lives[way]
    lived.result(0)
    stack = talk.stack
    token = revoked(talk)
    before = count(stack, module_stub)

    told = talk.turn()
    code = talk.conversation.end()

    # The log is in order: behind the line of this call none of the client's can come.
    fence = stack.message(token, model=MODEL)
    assert fence.status == 401
    eventually(lambda: fence.headers["request-id"] in stack.log("proxy"))
    after = count(stack, module_stub)
    assert after.calls <= before.calls + 2
    assert after.upstream == before.upstream
    # `daypass run` is a process of its own, and its next renewal may have been due.
    assert 1 <= after.exchanges - before.exchanges <= 1 + talk.through_run
    assert not told.ok
    sentence = "sandbox revoked; an administrator can lift this with: daypass sandbox restore"
    assert f"{sentence} {talk.sandbox['id']}" in told.text
    assert code == 1
