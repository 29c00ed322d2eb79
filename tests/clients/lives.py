"""Clients that live through token after token, side by side and beside other tests: `Lives`.

Each client comes with a `reusable` launch credential that it exchanges itself, and with a
`single_use` one through `daypass run`. All of them run side by side, each in a sandbox of its own:
what is waited for is the end of many token lives, and time does not pass faster for one alone. It
is little work, so other tests can run meanwhile.

A client asks for its next token a while before the end of the last, a time that it has built in
(`Talker.margin`). Tokens here live LIFE seconds longer than that, so that 20 of them are 20
exchanges in less than three minutes; a life of 130 s is the same with 10 s for LIFE. Then a sandbox
has more live tokens than it may, and would be given old ones again: those that its client has left
are revoked.

Visitors live on whole tokens, longer than one of them, and come in further ways.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.canary import CANARY
from tests.clients.conversation import DAYPASS_RUN, TALKERS, Conversation, Told
from tests.clients.revoking import revoke
from tests.clients.stock import Place
from tests.clients.ways import forwarder, tls_proxy
from tests.servers.agent import Agent
from tests.servers.fleet import keys_below
from tests.servers.stack import Stack
from tests.servers.stub import StubUpstream

LIVES = 20
LIFE = 7  # more than the 5 s in which the broker gives the same token again
PAUSE = 1.0  # between two turns, so that the machine is not busy with turns alone
VISITOR_TTL = 130  # the client renews from 120 s before expiry: after 10 s for the first time
VISIT = 145.0  # seconds; longer than such a token lives
WAYS = {
    f"{name}, {launch}": (name, launch) for name in TALKERS for launch in ("reusable", "single_use")
}


@dataclass
class Talk:
    """A client in its sandbox, and how many turns it took."""

    stack: Stack
    sandbox: dict[str, Any]
    conversation: Conversation
    over: threading.Event
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
                self.leave(token)
            self.good_turn()

    def good_turn(self) -> None:
        """A turn after a pause, which succeeds."""
        assert not self.over.wait(PAUSE), "ended before its time"
        told = self.turn()
        assert told.ok, (told, self.turns, self.conversation.complaints())

    def live(self) -> None:
        """Half of the lives, one token revoked, the other half."""
        self.go_on(LIVES // 2)
        lost = 1
        while not self.lose():
            lost += 1
        self.go_on(LIVES + lost + 1)  # a revoked one was no whole life, nor is the last

    def lose(self) -> bool:
        """Revoke the token that the client holds and take a turn.

        False when that took so long that the client may have asked for the next one before.
        """
        token = self.tokens()[-1]
        revoke(self.stack, "jti", token)
        self.good_turn()
        (row,) = self.stack.rows("SELECT iat FROM token WHERE jti = ?", token)
        return time.time() < int(row["iat"]) + LIFE

    def leave(self, token: str) -> None:
        """Revoke a token that the client has no more."""
        order = {"scope": "jti", "ident": token, "reason": "test"}
        assert self.stack.admin("POST", "/v1/revocations", order).status == 201
        self.left.add(token)


@dataclass(frozen=True)
class Visitor:
    """An agent that calls each second for the length of VISIT."""

    stack: Stack
    sandbox: dict[str, Any]
    agent: Agent


class Lives:
    """Every client, alive from `begin` to `end`; `talks` by way, with what becomes of their lives.

    Talks share one stack, visitors have another one, so that what is counted of the ones holds
    nothing of the others.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = ExitStack()
        self._over = threading.Event()
        self.talks: dict[str, tuple[Talk, Future[None]]] = {}
        self.visitors: dict[str, Visitor] = {}

    def begin(self) -> None:
        """Start everything; returns while it lives."""
        with ExitStack() as running:
            self.upstream, self.stack = running.enter_context(_product(self._folder / "talks"))
            self.visitors = self._visitors(self._folder / "visitors", running)
            talks = {way: self._talk(way, number, running) for number, way in enumerate(WAYS)}
            pool = running.enter_context(ThreadPoolExecutor(len(talks)))
            running.callback(self._over.set)
            self.talks = {way: (talk, pool.submit(talk.live)) for way, talk in talks.items()}
            self._running = running.pop_all()

    def end(self) -> None:
        """End everything, also what is not over; again is no matter."""
        self._running.close()

    def _talk(self, way: str, number: int, running: ExitStack) -> Talk:
        """A client in a new sandbox whose tokens it replaces every LIFE seconds."""
        (name, launch), stack = WAYS[way], self.stack
        talker, folder = TALKERS[name], self._folder / f"talk-{number}"
        margin = talker.margin if launch == "reusable" else talker.profile_margin
        sandbox = stack.sandbox(token_ttl_seconds=margin + LIFE, budget_usd="900.00", launch=launch)
        folder.mkdir()
        variables = Place(stack.proxy_url, sandbox, "", folder).federation()
        variables["XDG_RUNTIME_DIR"] = str(folder)
        within = DAYPASS_RUN if launch == "single_use" else ()
        conversation = running.enter_context(talker.start(variables, folder, within))
        return Talk(stack, sandbox, conversation, self._over)

    def _visitors(self, folder: Path, running: ExitStack) -> dict[str, Visitor]:
        """Agents of both majors, by the way that they come."""
        _, stack = running.enter_context(_product(folder))
        tls = running.enter_context(tls_proxy(stack, folder))
        loopback = running.enter_context(forwarder(stack, folder))
        ways = {
            "2.x": ("anthropic 2.x", stack.proxy_url, {}),
            "1.x": ("anthropic 1.x", stack.proxy_url, {}),
            "tls": ("anthropic 2.x", tls, {"SSL_CERT_FILE": str(folder / "ca.pem")}),
            "socket": ("anthropic 2.x", loopback, {}),
        }
        found = {}
        for way, (client, url, extra) in ways.items():
            (folder / way).mkdir()
            sandbox = stack.sandbox(token_ttl_seconds=VISITOR_TTL)
            variables = Place(url, sandbox, "", folder / way).federation() | extra
            agent = Agent.start(client, variables, seconds=VISIT, pause=1.0)
            running.enter_context(agent.process)
            running.callback(agent.process.kill)
            found[way] = Visitor(stack, sandbox, agent)
        return found


@contextmanager
def _product(folder: Path) -> Iterator[tuple[StubUpstream, Stack]]:
    """A daypass and the stub behind it."""
    folder.mkdir()
    with StubUpstream([f"sk-ant-{CANARY}-acme"]) as upstream:
        keys = keys_below(folder, upstream)
        with Stack(folder / "s", upstream.url, keys) as stack:
            yield upstream, stack
