"""Ourselves: the real proxy with verification, checks, metering, metrics and log on."""

from importlib.metadata import version

from bench.cases import OTHER_PYTHON
from bench.interpreter import environment
from bench.peers import Target, bearer
from bench.process import BenchError, free_port
from bench.site import Site

CHECKS = "ES256 (verified once, cached), scope, body, revocation; meters, metrics, log"
ROWS: dict[str, tuple[list[str] | None, str]] = {
    "daypass": (["--no-ledger"], CHECKS),
    "daypass, ledger on": (None, CHECKS + "; budget reserved and settled durably"),
    "daypass, minimal": (
        ["--no-ledger", "--minimal"],
        "ES256 (verified once, cached), scope, body, revocation; meters",
    ),
    OTHER_PYTHON: (["--no-ledger"], CHECKS),
}


def start(site: Site, name: str) -> Target:
    """Start one of our rows."""
    port = free_port()
    flags, does = ROWS[name]
    python = site.python
    if name == OTHER_PYTHON:
        if site.other_python is None:
            raise BenchError("there is no other Python here to compare with")
        python = site.other_python
    log = name.replace(", ", "-").replace(" ", "-")
    process = site.start_proxy(log, port, flags, environment(python))
    if not site.token:
        site.take_token(port)
    does = f"{does}; Python {python}"
    return Target(name, version("daypass-proxy"), does, port, process, bearer(site))
