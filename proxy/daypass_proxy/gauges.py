"""What the metrics say of the proxy as it is: looked up when somebody asks, never kept up to date.

`app` calls `watch` once, when all services are there. The readings run in the scrape's thread and
only look; a figure that one moment ago was another is as good.
"""

from collections.abc import Mapping
from importlib.metadata import version

from prometheus_client import ProcessCollector

from daypass_core.certificate_end import ends_at
from daypass_core.log import dropped_lines
from daypass_core.metrics import OTHER
from daypass_proxy import metric_specs as specs
from daypass_proxy.checkers.pool import BodyPool
from daypass_proxy.gate import counts
from daypass_proxy.keyring_pool import Cause, Use
from daypass_proxy.loop_lag import LoopLag
from daypass_proxy.services import Services


def watch(services: Services, lag: LoopLag, bodies: BodyPool | None = None) -> None:
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
    gate = services.gate
    read(specs.CALL_LIMIT, lambda: gate.limit)
    read(specs.REQUESTS_IN_FLIGHT, lambda: len(gate.requests))
    read(specs.CALLS_SHED, lambda: {**counts(gate), ("sandbox",): float(room.turned_away)})
    read(specs.LOOP_LAG, lambda: lag.worst)
    tls = services.settings.tls
    read(specs.CERTIFICATE_END, lambda: ends_at(tls.cert if tls else None))
    if bodies is not None:
        read(specs.BODY_WORKERS, lambda: len(bodies.workers))
        read(specs.BODY_CHECK_BYTES, lambda: bodies.waiting)
    read(specs.LOOP_TASKS, lambda: lag.tasks)
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
    read(specs.PROVIDER_KEY_READ_AGE, lambda: _by_key(keyring.ages))
    read(specs.PROVIDER_KEYS, lambda: _by_word(keyring.states))
    read(specs.PROVIDER_KEY_READS, lambda: _by_word(keyring.reads))
    if (vault := services.vault) is not None:
        read(specs.VAULT_LOGINS, lambda: _by_word(vault.logins))
        read(specs.VAULT_TOKEN, lambda: vault.seconds_left)
    uses = keyring.uses
    read(specs.POOL_REQUESTS, lambda: {name: float(use.requests) for name, use in uses.items()})
    read(specs.POOL_FAILOVERS, lambda: {name: float(use.failovers) for name, use in uses.items()})
    read(specs.POOL_COOLDOWNS, lambda: _cooldowns(uses))


MOST_KEYS = 100
"""Of so many keys the age is shown each by itself; of the others that of the oldest."""


def _by_key(ages: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for name, age in ages.items():
        label = (name,) if len(found) < MOST_KEYS else (OTHER,)
        found[label] = max(age, found.get(label, 0.0))
    return found


def _by_word(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(word,): float(count) for word, count in counts.items()}


def _cooldowns(uses: Mapping[tuple[str, str], Use]) -> dict[tuple[str, ...], float]:
    return {
        (*name, cause): float(use.cooled[cause]) for name, use in uses.items() for cause in Cause
    }
