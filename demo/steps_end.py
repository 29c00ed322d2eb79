"""The demo's last steps: a revocation in the middle of a stream, the audit trail, the books."""

from __future__ import annotations

import threading
import time

from demo.agents import Answer
from demo.books import Booked, compare, last_call, settled_usage
from demo.services.llm import CUT_SLACK_TOKENS
from demo.steps_calls import OTHER_QUESTION, SHORT_TOKENS, ask
from demo.world import Tenant, World, expect

# Digits are tokens of their own, so each piece of this answer is exactly one token.
LONG_QUESTION = "Count from 1 to 500, digits only."
LONG_TOKENS = 900
PIECES_BEFORE = 20
CUT_SECONDS = 1.0
AUDIT_ROWS = 12


class Revocation:
    """The admin's act: revoke a sandbox, and note when the broker had answered."""

    def __init__(self, world: World, tenant: Tenant) -> None:
        """Nothing happens before `start`."""
        self._world = world
        self._sandbox = tenant.sandbox.id
        self._thread = threading.Thread(target=self._revoke, daemon=True)
        self._answered_at = 0.0

    def start_after(self, so_far: Answer) -> None:
        """Revoke, once this much has come in."""
        self._world.terminal.note(so_far.text)
        if so_far.pieces == PIECES_BEFORE:
            self._thread.start()

    def answered_at(self) -> float:
        """When the broker answered, on the machine's monotonic clock."""
        expect(self._thread.ident is not None, "the stream ended before it could be revoked")
        self._thread.join(10)
        expect(self._answered_at > 0, "the revocation was not answered")
        return self._answered_at

    def _revoke(self) -> None:
        self._world.admin.revoke("sandbox", self._sandbox, reason="seen in the demo")
        self._answered_at = time.monotonic()


def revoke_while_streaming(world: World) -> None:
    """The admin revokes the sandbox while an answer streams: it stops, and so does the next one."""
    acme, before = world.tenants["acme"], world.llm.idle_counters()
    revocation = Revocation(world, acme)
    answer = acme.agent.ask(LONG_QUESTION, max_tokens=LONG_TOKENS, listen=revocation.start_after)
    cut_after = max(answer.failed_at - revocation.answered_at(), 0.0)
    expect(answer.error is not None, f"the stream went on to its end: {answer.stop_reason}")
    expect(cut_after < CUT_SECONDS, f"the stream was cut only after {cut_after:.1f} s")
    world.terminal.say(
        f"After {answer.pieces} pieces the client had {answer.error}: {answer.reason}"
    )
    world.terminal.say(
        f"That was {cut_after * 1000:.0f} ms after the broker's answer to the admin."
    )
    world.cut = world.llm.idle_counters().since(before)
    refused = acme.agent.ask(OTHER_QUESTION, max_tokens=SHORT_TOKENS)
    expect(refused.error is not None, "a revoked sandbox was served")
    expect(
        world.llm.counters().since(before) == world.cut,
        "a call of the revoked sandbox reached the LLM",
    )
    world.terminal.say(f"Its next request: {refused.error}: {refused.reason}")
    ask(world, world.tenants["globex"], OTHER_QUESTION, SHORT_TOKENS)
    world.terminal.say("The other tenant is served as before.")


def show_the_audit_trail(world: World) -> None:
    """Who did what to the revoked sandbox, as the broker wrote it down with each act."""
    acme = world.tenants["acme"].sandbox.id
    events = world.admin.audit(sandbox=acme, limit=AUDIT_ROWS)["events"][::-1]
    tags = {event["tag"] for event in events}
    needed = {"sandbox.created", "token.issued", "revocation.created"}
    expect(needed <= tags, f"the audit trail lacks {needed - tags}: it has {tags}")
    holders = {
        each["id"]: each["orchestrator"] or each["role"]
        for each in world.admin.credentials()["credentials"]
    }
    rows = [("time", "event", "by")]
    for event in events:
        who = "the sandbox" if event["actor"] == acme else holders.get(event["actor"])
        rows.append((event["at"][11:23], event["tag"], who or event["actor"]))
    world.terminal.table(rows)


def balance_the_books(world: World) -> None:
    """Every token booked, over both tenants and both proxies, against the LLM's own counters."""
    usage = settled_usage(world.admin)
    counted, booked = world.llm.idle_counters(), Booked.of(usage["totals"])
    cut = Booked.of(last_call(world.admin, world.tenants["acme"].sandbox.id))
    expect(usage["totals"]["estimated_calls"] == 1, "another call than the cut one was estimated")
    unheard = world.cut.predicted_tokens - cut.output_tokens
    made = f"{cut.output_tokens} tokens of the cut stream were booked, {unheard} more were made"
    expect(0 <= unheard <= CUT_SLACK_TOKENS, made)
    rows = [("tokens", "booked", "the LLM's own counters")]
    for name, ours, theirs in compare(booked, counted):
        late = unheard if name == "output" else 0
        expect(ours == theirs - late, f"{name}: {ours} tokens booked, {theirs} counted")
        rows.append((name, str(ours), f"{ours} + {late} after the cut" if late else str(ours)))
    world.terminal.table(rows)
    late_ones = " What the LLM still made after the cut was sent to no one." if unheard else ""
    world.terminal.say(
        f"{booked.calls} calls of two tenants through two proxies, one of them cut:"
        f" ${booked.cost_usd.normalize():f}.{late_ones}"
    )
