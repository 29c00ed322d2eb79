"""Heads that were kept elsewhere: read back from lines of the broker's log.

Who can write the database can make a chain of his own. He cannot take back what the log has told,
so a head from there that the database does not have is the proof.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from daypass_broker.chain.links import Head

EVENT = "audit_head"


@dataclass(frozen=True, slots=True)
class Signed:
    """A head with the key id and the signature (64 bytes) that it came with."""

    head: Head
    kid: str
    signature: bytes


def read(lines: Iterable[bytes]) -> Iterator[Signed]:
    """Yield the heads among the lines of a log, or of `jq -c 'select(.event == "audit_head")'`.

    What is no head is passed over. Raises ValueError, with the line's number, for one that says it
    is and cannot be read.
    """
    for number, line in enumerate(lines, 1):
        if EVENT.encode() not in line:
            continue
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None  # torn, or of something else that logs into the same file
        if isinstance(said, dict) and said.get("event") == EVENT:
            try:
                yield _signed(said)
            except (KeyError, TypeError, ValueError):
                raise ValueError(f"line {number}: is no whole head") from None


def _signed(said: dict[str, Any]) -> Signed:
    numbers = [said[name] for name in ("first", "upto", "events", "at")]
    texts = [said[name] for name in ("previous", "hash", "kid", "signature")]
    if not all(type(one) is int for one in numbers) or not all(type(one) is str for one in texts):
        raise TypeError
    if not "".join(texts).isascii():
        raise ValueError
    first, upto, events, at = numbers
    previous, hashed, kid, signature = texts
    head = Head(first, upto, events, at, previous, hashed)
    return Signed(head, kid, bytes.fromhex(signature))
