"""What is measured: each case is one kind of request, sent in one way."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bench.bodies import write_body
from bench.load import Load

Unit = Literal["request", "event"]


@dataclass(frozen=True)
class Case:
    """`word` is what the upstream answers, `size` the bytes of the request, `about` its title.

    `slow` is how the load changes for targets that need tens of milliseconds for a request.
    `without` names targets that take no part. `rounds` bounds the rounds.
    """

    name: str
    about: str
    unit: Unit
    word: str
    how: Load
    size: int = 1000
    kind: str = "text"
    slow: Load | None = None
    without: tuple[str, ...] = ()
    rounds: int = 5

    def load(self, bodies: Path, *, slow: bool = False, warm: float = 0) -> Load:
        """The load with its body written; at least `warm` seconds of warm-up."""
        how = self.slow if slow and self.slow is not None else self.how
        body = write_body(bodies, self.word, self.size, self.kind)
        return replace(how, body=body, warm=max(how.warm, warm))


CLOSED = Load(None, connections=16)
CLOSED_SLOW = Load(None, connections=8, seconds=3)
STREAMS = Load(None, connections=200, ramp=400, settle=20, seconds=2.5)
STREAMS_SLOW = Load(None, connections=40, ramp=20, settle=40, seconds=3, warm=1)
BODIES = Load(None, connections=8)
BODIES_SLOW = Load(None, connections=4, seconds=4)
STEADY = Load(None, connections=16, rate=100, seconds=3)
STEADY_SLOW = Load(None, connections=16, rate=10, seconds=4, warm=1)
OTHER_PYTHON = "daypass, other Python"
FEWER = ("haproxy", "daypass, minimal", OTHER_PYTHON)

CASES = {
    case.name: case
    for case in (
        Case("json1k", "1 kB there and back, 16 connections", "request", "json1k", CLOSED,
             slow=CLOSED_SLOW),
        Case("sse50", "55 events at once, 16 connections", "request", "burst50", CLOSED,
             slow=CLOSED_SLOW, without=("haproxy", OTHER_PYTHON)),
        Case("paced", "200 streams, 10 events/s each (slow ones 40)", "event", "paced3000x100",
             STREAMS, slow=STREAMS_SLOW, rounds=2, without=("haproxy", OTHER_PYTHON)),
        Case("body50k", "50 kB of conversation up", "request", "json1k", BODIES, 50_000,
             slow=BODIES_SLOW, rounds=2, without=FEWER),
        Case("body1m", "1 MB of conversation up", "request", "json1k", BODIES, 1_000_000,
             slow=BODIES_SLOW, rounds=2, without=FEWER[1:]),
        Case("image1m", "1 MB of base64 up", "request", "json1k", BODIES, 1_000_000, "base64",
             slow=BODIES_SLOW, rounds=2, without=FEWER[1:]),
        Case("latency", "100 requests/s, open loop (slow ones 10/s)", "request", "json1k", STEADY,
             slow=STEADY_SLOW, rounds=2, without=FEWER),
    )
}  # fmt: skip
QUICK = ("json1k", "sse50", "paced", "body50k")
WITH_DIRECT = ("latency",)
"""Cases that also ask the upstream itself, so that what a target adds can be said."""
