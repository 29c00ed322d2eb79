"""Heads that were kept elsewhere: read back from lines of the broker's log.

Who can write the database can make a chain of his own. He cannot take back what the log has told,
so a head from there that the database does not have is the proof.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from daypass_broker.chain.links import Signed

EVENT = "audit_head"


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
            continue  # torn, or of something else that logs into the same file
        if isinstance(said, dict) and said.get("event") == EVENT:
            try:
                yield Signed.of(said)
            except ValueError as error:
                raise ValueError(f"line {number}: is no whole head: {error}") from None
