"""The settings of the proxy as a server: how much it takes at once, and how it ends.

Read by `settings` as one part of its record; docs/server.md has all limits in one table.
"""

from dataclasses import dataclass

from daypass_core.server import DRAIN_SECONDS
from daypass_core.settings import Reader


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Counts are for each worker, times in seconds.

    `lag_seconds` is how late the event loop may be before new calls are shed; 0: however late.
    """

    proxy_workers: int = 1
    max_connections: int = 10_000
    max_calls: int = 8_000
    sandbox_connections: int = 1_000
    lag_seconds: float = 0.02
    body_seconds: float = 30.0
    write_seconds: float = 30.0
    ready_seconds: float = 0.0
    drain_seconds: float = DRAIN_SECONDS


_USUAL = ServerSettings()


def read_server(reader: Reader) -> ServerSettings:
    """Read them; what is wrong is noted with the reader."""
    usual = _USUAL
    count, seconds = reader.integer, reader.seconds
    return ServerSettings(
        proxy_workers=count("DAYPASS_PROXY_WORKERS", usual.proxy_workers, least=1, most=64),
        max_connections=count("DAYPASS_MAX_CONNECTIONS", usual.max_connections, least=16),
        max_calls=count("DAYPASS_MAX_CALLS", usual.max_calls, least=1),
        sandbox_connections=count(
            "DAYPASS_SANDBOX_CONNECTIONS", usual.sandbox_connections, least=1
        ),
        lag_seconds=seconds("DAYPASS_LAG_SECONDS", usual.lag_seconds, most=10.0),
        body_seconds=seconds("DAYPASS_BODY_SECONDS", usual.body_seconds, least=0.1),
        write_seconds=seconds("DAYPASS_WRITE_SECONDS", usual.write_seconds, least=0.1),
        ready_seconds=seconds("DAYPASS_READY_SECONDS", usual.ready_seconds, most=300.0),
        drain_seconds=seconds("DAYPASS_DRAIN_SECONDS", usual.drain_seconds, least=0.1, most=3600.0),
    )
