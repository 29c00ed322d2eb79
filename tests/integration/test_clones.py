"""Single-use sandboxes with the real SDK and broker: many that renew at once, and two of one."""

import base64
import json
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers.stack import Answer, Stack, call
from tests.support import begin_together

# A process of a sandbox: at each line it has its token renewed and says what it got.
AGENT = """
import json, sys
from daypass import DaypassError, TokenProvider
url, launch, cache = sys.argv[1:]
tokens = TokenProvider(url, launch=launch or None, cache=cache)
token = None
for line in sys.stdin:
    try:
        token = tokens.token(rejected=token)
        print(json.dumps({"token": token}), flush=True)
    except DaypassError as error:
        print(json.dumps({"kind": type(error).__name__, "said": str(error)}), flush=True)
"""
# Five threads that use a token as long as there are fewer than this many lives behind them. They
# begin when they are told to: a process that starts late would see tokens that nobody else needs.
CREW = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from daypass import TokenProvider
from daypass._http import Origin
url, launch, cache, lives = sys.argv[1:]
tokens, origin = TokenProvider(url, launch=launch, cache=cache), Origin(url)
seen, stop = set(), threading.Event()
def work(_):
    failed = 0
    while len(seen) < int(lives):
        token = tokens.token()
        seen.add(token)
        answer = origin.call("GET", "/v1/self", headers={"authorization": f"Bearer {token}"})
        failed += answer.status != 200
        stop.wait(0.02)
    return failed
print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(5) as pool:
    print(sum(pool.map(work, range(5))), len(seen))
"""


class Agent:
    """A process of a sandbox that keeps its state in a folder."""

    def __init__(self, stack: Stack, launch: str, state: Path) -> None:
        arguments = [sys.executable, "-c", AGENT, stack.proxy_url, launch, str(state / "cache")]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def renew(self) -> dict[str, str]:
        """Have the token renewed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("renew\n")
        self.process.stdin.flush()
        found: dict[str, str] = json.loads(self.process.stdout.readline())
        return found

    def end(self) -> None:
        """Let it end."""
        self.process.communicate(timeout=20)


@contextmanager
def agent(stack: Stack, launch: str, state: Path) -> Iterator[Agent]:
    """Run such a process inside the block."""
    state.mkdir(exist_ok=True)
    made = Agent(stack, launch, state)
    try:
        yield made
    finally:
        made.end()


def age(stack: Stack, seconds: int) -> None:
    """Let time pass since every renewal, as its grace sees it."""
    path = stack.database_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, timeout=10)) as store, store:
        store.execute("UPDATE lineage SET rotated_at = rotated_at - ?", (seconds * 1000,))


def events(stack: Stack, sandbox: dict[str, Any]) -> list[str]:
    """What the audit tells about the lineage of a sandbox, oldest first."""
    found = stack.admin("GET", f"/v1/audit?sandbox={sandbox['id']}").json()["events"]
    return [event["tag"] for event in reversed(found) if event["tag"].startswith("lineage.")]


def test_a_copied_state_directory_betrays_itself_at_the_next_renewal(
    stack: Stack, tmp_path: Path
) -> None:
    """Two processes with one state: the second to renew is found out, audited, and both are
    quarantined; who holds a token still uses it, and nobody gets another.
    """
    sandbox = stack.sandbox(launch="single_use")
    with agent(stack, sandbox["launch"]["credential"], tmp_path / "one") as one:
        assert stack.message(one.renew()["token"]).status == 200
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        with agent(stack, "", tmp_path / "two") as two:
            # The copy goes on with the token that it found.
            assert two.renew()["token"]
            age(stack, 11)
            mine = one.renew()["token"]
            assert stack.incidents(sandbox["id"]) == {}
            age(stack, 11)
            found_out = two.renew()
            assert found_out["kind"] == "Revoked"
            assert "this is a copy" in found_out["said"]
            assert stack.incidents(sandbox["id"])["clone"] == 1
            assert stack.message(mine).status == 200
            assert "quarantined" in one.renew()["said"]
    assert events(stack, sandbox) == [
        "lineage.started",
        "lineage.rotated",
        "lineage.quarantined",
    ]
    assert stack.admin("GET", f"/v1/sandboxes/{sandbox['id']}").json()["state"] == "active"


def test_a_thief_who_renews_first_is_found_out_by_the_owner(stack: Stack, tmp_path: Path) -> None:
    """Whichever of the two comes second: the owner's refusal is what tells of the theft."""
    sandbox = stack.sandbox(launch="single_use")
    with agent(stack, sandbox["launch"]["credential"], tmp_path / "owner") as owner:
        owner.renew()
        shutil.copytree(tmp_path / "owner", tmp_path / "thief")
        age(stack, 11)
        with agent(stack, "", tmp_path / "thief") as thief:
            thief.renew()
            assert thief.renew()["token"]
            age(stack, 11)
            assert "this is a copy" in owner.renew()["said"]
            assert "quarantined" in thief.renew()["said"]


@pytest.mark.parametrize(
    ("on_clone", "state", "worth"), [("revoke", "revoked", 401), ("child", "active", 200)]
)
def test_a_profile_may_say_otherwise(
    make_stack: Callable[..., Stack], tmp_path: Path, on_clone: str, state: str, worth: int
) -> None:
    """`revoke` ends the first with the copy; with `child` both work, each on its own grant."""
    stack = make_stack()
    policy = stack.admin("GET", "/v1/policy").json()
    policy["profiles"]["coding"]["on_clone"] = on_clone
    assert stack.admin("PUT", "/v1/policy", policy, content_type="application/json").status == 200
    sandbox = stack.sandbox(launch="single_use")
    launch = sandbox["launch"]["credential"]
    with (
        agent(stack, launch, tmp_path / "one") as one,
        agent(stack, launch, tmp_path / "two") as two,
    ):
        mine = one.renew()["token"]
        theirs = two.renew()
        if on_clone == "child":
            assert stack.message(theirs["token"]).status == 200
            assert two.renew()["token"] != theirs["token"]
            grants = stack.rows("SELECT * FROM grant_record WHERE parent IS NOT NULL")
            assert len(grants) == 2
        else:
            assert theirs["kind"] == "Revoked"
        call_ = stack.message(mine)
        while worth == 401 and call_.status == 200:
            call_ = stack.message(mine)
        assert call_.status == worth
    assert stack.admin("GET", f"/v1/sandboxes/{sandbox['id']}").json()["state"] == state
    assert stack.incidents(sandbox["id"])["launch_reused"] >= 1


def test_b21_twenty_threads_in_four_processes_live_through_many_tokens(
    stack: Stack, tmp_path: Path
) -> None:
    """B18, B21: with one state directory nobody fails a call, and the broker sees one sandbox."""
    sandbox = stack.sandbox(launch="single_use", token_ttl_seconds=2)
    words = (stack.proxy_url, sandbox["launch"]["credential"], str(tmp_path / "cache"), "5")
    command, pipe = [sys.executable, "-c", CREW, *words], subprocess.PIPE
    crews = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
    for said in begin_together(crews):
        failed, lives = map(int, said.split())
        # One more than wanted where a thread was late to look.
        assert (failed, lives >= 5) == (0, True)
    assert stack.incidents(sandbox["id"]) == {}
    (lineage,) = stack.rows("SELECT * FROM lineage WHERE sandbox = ?", sandbox["id"])
    # Each crew saw five tokens, and each exchange was made for all twenty; a generation that is
    # younger than ten seconds serves for several.
    assert lineage["state"] == "active"
    assert 1 <= lineage["generation"] <= 10
    assert len(stack.rows("SELECT * FROM token WHERE sandbox = ?", sandbox["id"])) <= 10


def stands_for(refresh_token: str) -> str:
    """The id of a renewal: signed twice, one is two texts."""
    payload = refresh_token.split(".")[1]
    return str(json.loads(base64.urlsafe_b64decode(payload + "=="))["jti"])


def renewal(stack: Stack, refresh_token: str) -> Answer:
    """Present a renewal as a stock client does that knows no state directory."""
    body = {"grant_type": "refresh_token", "refresh_token": refresh_token}
    headers = {"content-type": "application/json"}
    return call(stack.proxy_url, "POST", "/v1/oauth/token", json.dumps(body).encode(), headers)


def test_b21_twenty_that_renew_at_the_same_moment_all_go_on(stack: Stack) -> None:
    """Without anything shared between them: one moves the lineage on, all get the next one."""
    sandbox = stack.sandbox(launch="single_use")
    refresh = stack.exchange(sandbox).json()["refresh_token"]
    for expected in (2, 3):
        age(stack, 11)
        gate = threading.Barrier(20)

        def renew(_: int, presented: str = refresh, gate: threading.Barrier = gate) -> Answer:
            gate.wait(10)
            # The proxy passes on so many at once from one address; the others come again.
            while (answer := renewal(stack, presented)).status == 503:
                pass
            return answer

        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(renew, range(20)))
        assert {answer.status for answer in answers} == {200}
        found = [str(answer.json()["refresh_token"]) for answer in answers]
        assert len({stands_for(each) for each in found}) == 1
        refresh = found[0]
        (lineage,) = stack.rows("SELECT * FROM lineage WHERE sandbox = ?", sandbox["id"])
        assert (lineage["state"], lineage["generation"]) == ("active", expected)
    assert stack.incidents(sandbox["id"]) == {}
