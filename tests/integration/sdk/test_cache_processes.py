"""The token cache between processes: shared, and freed by whoever is killed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from daypass import TokenProvider, Unavailable
from daypass._renewal import Time
from tests.support import begin_together
from tests.unit.sdk.token_server import LAUNCH, TokenServer

# Waits for a line, then asks for a token in 5 threads at once; prints what they got.
ASK = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from daypass import TokenProvider
url, launch, cache, rejected = sys.argv[1:]
tokens = TokenProvider(url, launch=launch, cache=cache)
gate = threading.Barrier(5)
def ask(_):
    gate.wait(10)
    return tokens.token(rejected=rejected or None)
print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(5) as pool:
    print(*sorted(set(pool.map(ask, range(5)))))
"""
# Takes the lock as a renewal does and holds it.
HOLD = """
import sys
from pathlib import Path
from daypass._cache import TokenCache
with TokenCache(Path(sys.argv[1])).locked(5) as mine:
    print(mine, flush=True)
    sys.stdin.readline()
"""


def start(script: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """A process of its own, with pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def tell(process: subprocess.Popen[str]) -> str:
    """Let a waiting process go on, and give what it says in the end."""
    out, _ = process.communicate("go\n", timeout=30)
    assert process.returncode == 0
    return out.strip()


def ask_in_four_processes(server: TokenServer, cache: Path, rejected: str = "") -> set[str]:
    """Twenty callers in four processes at once."""
    asking = [start(ASK, server.url, LAUNCH, cache, rejected) for _ in range(4)]
    return set(begin_together(asking))


@pytest.mark.parametrize("single_use", [False, True])
def test_four_processes_with_five_threads_cause_one_exchange(
    server: TokenServer, tmp_path: Path, single_use: bool
) -> None:
    """B21: all twenty get a token, the broker is asked once, and sees no clone."""
    server.single_use = single_use
    cache = tmp_path / "cache.json"
    assert ask_in_four_processes(server, cache) == {"token-1"}
    assert server.exchanges == 1
    # The same again after a 401 for all of them.
    assert ask_in_four_processes(server, cache, "token-1") == {"token-2"}
    assert server.exchanges == 2
    assert server.incidents == []


def test_a_killed_process_leaves_no_lock_behind(server: TokenServer, tmp_path: Path) -> None:
    """B21: who is killed in the middle of a renewal does not block the others."""
    cache = tmp_path / "cache.json"
    holder = start(HOLD, cache)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert TokenProvider(server.url, launch=LAUNCH, cache=cache).token() == "token-1"


def test_a_lock_that_is_held_for_ever_is_reported(server: TokenServer, tmp_path: Path) -> None:
    """A stopped process that holds the lock is named by its lock file, after 35 s."""
    cache = tmp_path / "cache.json"
    holder = start(HOLD, cache)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    passed = [0.0]

    def sleep(seconds: float) -> None:
        passed[0] += seconds

    try:
        clock = Time(monotonic=lambda: passed[0], sleep=sleep)
        tokens = TokenProvider(server.url, launch=LAUNCH, cache=cache, clock=clock)
        with pytest.raises(Unavailable, match=r"see which process holds .*cache\.json\.lock"):
            tokens.token()
    finally:
        tell(holder)
    assert 35 <= passed[0] < 36
