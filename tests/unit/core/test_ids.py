"""Identifiers."""

import os
import re
from concurrent.futures import ThreadPoolExecutor

from daypass_core.ids import new_id


def test_form() -> None:
    """An id is its prefix and 26 lower-case base32 characters."""
    assert re.fullmatch(r"sbx_[a-z2-7]{26}", new_id("sbx"))


def test_different_each_time() -> None:
    """A thousand ids are a thousand different ids."""
    assert len({new_id("tok") for _ in range(1000)}) == 1000


def test_every_letter_is_as_likely() -> None:
    """No position of an id prefers a letter: each of the 32 turns up in all 26."""
    ids = [new_id("tok")[4:] for _ in range(2000)]
    assert all(len({one[place] for one in ids}) == 32 for place in range(26))


def test_forked_child_gives_out_its_own() -> None:
    """What a process has drawn ahead is not given out by its forked child a second time."""
    new_id("tok")  # draws ahead
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, new_id("tok").encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 100).decode()
    os.close(read)
    os.close(write)
    assert theirs not in {new_id("tok") for _ in range(200)}
    assert re.fullmatch(r"tok_[a-z2-7]{26}", theirs)


def test_threads_share_none() -> None:
    """Threads that draw at the same time never get the same id."""
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: new_id("tok"), range(4000)))
    assert len(set(found)) == 4000
