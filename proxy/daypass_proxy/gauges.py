"""What the metrics say of the proxy as it is: looked up when somebody asks, never kept up to date.

`app` calls `watch` once, when all services are there. The readings run in the scrape's thread and
only look; a figure that one moment ago was another is as good.
"""

from collections.abc import Mapping
from importlib.metadata import version

from prometheus_client import ProcessCollector

from daypass_core.log import dropped_lines
from daypass_proxy import metric_specs as specs
from daypass_proxy.keyring_pool import Cause, Use
from daypass_proxy.loop_lag import LoopLag
from daypass_proxy.services import Services


def watch(services: Services, lag: LoopLag) -> None:
    """Let the metrics of these services read their figures."""
    read = services.metrics.board.read
    live_calls, room, view = services.live_calls, services.body_room, services.revocations
    read(specs.OPEN_CALLS, lambda: len(live_calls))
    read(specs.BODY_ROOM, lambda: room.total)
    read(specs.VIEW_AGE, lambda: view.age)
    read(specs.VIEW_VERSION, lambda: view.version)
    _watch_keys(services)
    ledger = services.ledger
    read(specs.LEDGER_READY, lambda: float(ledger.ready))
    read(specs.LEDGER_WAITING, lambda: ledger.waiting)
    read(specs.LOOP_LAG, lambda: lag.worst)
    read(specs.LOG_LINES_DROPPED, dropped_lines)
    read(specs.BUILD_INFO, lambda: {(version("daypass-proxy"),): 1.0})
    ProcessCollector(registry=services.metrics.registry)


def _watch_keys(services: Services) -> None:
    read = services.metrics.board.read
    authenticator, jwks, keyring = services.authenticator, services.jwks, services.keyring
    read(specs.TOKEN_CHECKS, lambda: _by_word(authenticator.checks))
    read(specs.KEY_SET_AGE, lambda: jwks.age)
    read(specs.KEY_SET_READS, lambda: _by_word(jwks.reads))
    read(specs.PROVIDER_KEY_AGE, lambda: keyring.age)
    read(specs.PROVIDER_KEY_READS, lambda: _by_word(keyring.reads))
    uses = keyring.uses
    read(specs.POOL_REQUESTS, lambda: {name: float(use.requests) for name, use in uses.items()})
    read(specs.POOL_FAILOVERS, lambda: {name: float(use.failovers) for name, use in uses.items()})
    read(specs.POOL_COOLDOWNS, lambda: _cooldowns(uses))


def _by_word(counts: dict[str, int]) -> dict[tuple[str, ...], float]:
    return {(word,): float(count) for word, count in counts.items()}


def _cooldowns(uses: Mapping[tuple[str, str], Use]) -> dict[tuple[str, ...], float]:
    return {
        (*name, cause): float(use.cooled[cause]) for name, use in uses.items() for cause in Cause
    }
