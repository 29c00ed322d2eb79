"""Ourselves: the real proxy with verification, checks, metering, metrics and log on."""

from importlib.metadata import version

from bench.peers import Target, bearer
from bench.process import free_port
from bench.site import Site

CHECKS = "ES256 (verified once, cached), scope, body, revocation; meters, metrics, log"
ROWS: dict[str, tuple[list[str] | None, str]] = {
    "daypass": (["--no-ledger"], CHECKS),
    "daypass, ledger on": (None, CHECKS + "; budget reserved and settled durably"),
    "daypass, minimal": (
        ["--no-ledger", "--minimal"],
        "ES256 (verified once, cached), scope, body, revocation; meters",
    ),
}


def start(site: Site, name: str) -> Target:
    """Start one of our rows."""
    port = free_port()
    flags, does = ROWS[name]
    process = site.start_proxy(name.replace(", ", "-").replace(" ", "-"), port, flags)
    if not site.token:
        site.take_token(port)
    return Target(name, version("daypass-proxy"), does, port, process, bearer(site))
