"""Every target by name, and how it is started."""

from collections.abc import Sequence
from functools import partial

from bench.cases import OTHER_PYTHON
from bench.install import say
from bench.peers import Start, Target, daypass, envoy, haproxy, litellm, nginx, portkey
from bench.process import BenchError
from bench.site import REAL_KEY, Site

OURS = tuple(daypass.ROWS)
STARTS: dict[str, Start] = {name: partial(daypass.start, name=name) for name in OURS} | {
    "nginx": nginx.start,
    "haproxy": haproxy.start,
    "haproxy+es256": haproxy.start_verifying,
    "envoy+cache": envoy.start,
    "portkey": portkey.start,
    "litellm": litellm.start,
}
QUICK = ("daypass", "nginx", "haproxy+es256")


def start_all(site: Site, names: Sequence[str], *, must: bool = False) -> list[Target]:
    """Start these; a peer that cannot be had is left out and said, unless `must`."""
    started: list[Target] = []
    for name in names:
        say(f"starting {name}")
        try:
            started.append(STARTS[name](site))
        except BenchError as error:
            if must or (name in OURS and name != OTHER_PYTHON):
                raise
            say(f"without {name}: {error}")
    return started


def direct(site: Site) -> Target:
    """The upstream itself: what a request costs without anything between."""
    return Target("direct", "", "the upstream alone", site.upstream_port, None,
                  [f"x-api-key: {REAL_KEY}"])  # fmt: skip
