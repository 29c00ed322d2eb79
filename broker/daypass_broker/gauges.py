"""What the metrics say of the broker as it is: looked up when somebody asks, never kept up to date.

`app` calls `watch` once, when all services are there. The readings run in the scrape's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

from prometheus_client import ProcessCollector

from daypass_broker import metric_specs as specs
from daypass_broker.census import Census, Counted
from daypass_broker.keys import Purpose, SigningUnavailable
from daypass_broker.services import Services
from daypass_core.certificate_end import ends_at
from daypass_core.log import dropped_lines
from daypass_core.metrics import Reading


def watch(services: Services, census: Census) -> None:
    """Let the metrics of these services read their figures."""
    read, settings = services.metrics.board.read, services.settings

    def counted(look: Callable[[Counted], Reading]) -> Callable[[], Reading]:
        return lambda: None if census.latest is None else look(census.latest)

    read(specs.STORE_AGE, lambda: census.store_age)
    read(specs.KEY_USABLE, lambda: _usable(services))
    read(specs.KEY_AGE, counted(lambda found: _ages(found, services.clock.now())))
    read(specs.SANDBOXES, counted(lambda found: {(k,): v for k, v in found.sandboxes.items()}))
    read(specs.REVOCATIONS, counted(lambda found: found.revocations))
    read(specs.REVOCATION_VERSION, counted(lambda found: found.revocation_version))
    read(specs.AUDIT_EVENTS, counted(lambda found: found.audit_events))
    read(specs.AUDIT_UNSEALED, counted(lambda found: found.unsealed_ms / 1000))
    read(specs.HELD, counted(lambda found: found.held_nano))
    read(specs.OVERDRAFT, counted(lambda found: found.overdraft_nano))
    read(specs.OPEN_CALLS, counted(lambda found: found.open_calls))
    read(specs.CERTIFICATE_END, lambda: ends_at(settings.tls_cert))
    read(specs.LOG_LINES_DROPPED, dropped_lines)
    read(specs.BUILD_INFO, lambda: {(version("daypass-broker"),): 1.0})
    ProcessCollector(registry=services.metrics.registry)


def _usable(services: Services) -> dict[tuple[str, ...], float]:
    return {(purpose.value,): float(_signs(services, purpose)) for purpose in Purpose}


def _signs(services: Services, purpose: Purpose) -> bool:
    try:
        services.keys.active(purpose)
    except SigningUnavailable:
        return False
    return True


def _ages(found: Counted, now: float) -> dict[tuple[str, ...], float]:
    return {(purpose,): now - since / 1000 for purpose, since in found.key_since.items()}
