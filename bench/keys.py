"""`python -m bench.keys`: what an access token costs with keys in files and in a real OpenBao.

A whole stack on SQLite; clients exchange launch credentials at the proxy, so an issuance is the
request through both services, its commit, and with keys in a vault two signatures there (one before
the commit, so that nothing is recorded that cannot be signed). Figures are printed, never judged.
"""

import json
import platform
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.results import machine
from demo.services.openbao import OpenBao
from tests.servers.stack import Stack
from tests.servers.transit import enable, token

SANDBOXES = 24
EXCHANGES = 20
"""Of each sandbox; its bucket holds 60."""


def main() -> None:
    """Measure both stores, alone and with four clients at once."""
    print(json.dumps(machine(platform.python_version())))
    print("| keys in | clients | issuances a second | p50 ms | p99 ms |\n|---|--:|--:|--:|--:|")
    with (
        tempfile.TemporaryDirectory(prefix="dp-") as name,
        OpenBao.start(Path(name) / "openbao") as bao,
    ):
        folder = Path(name)
        enable(bao)
        measure("files", folder / "file", {})
        measure("OpenBao transit", folder / "transit", in_vault(bao, folder))


def in_vault(bao: OpenBao, folder: Path) -> dict[str, str]:
    """Settings of a broker that signs in this vault."""
    file = folder / "broker.token"
    file.write_text(token(bao))
    file.chmod(0o600)
    return {
        "DAYPASS_SIGNING": "transit",
        "DAYPASS_TRANSIT_KEY": f"daypass-{secrets.token_hex(4)}",
        "DAYPASS_VAULT_ADDR": bao.address,
        "DAYPASS_VAULT_TOKEN_FILE": str(file),
    }


def measure(name: str, folder: Path, settings: Mapping[str, str]) -> None:
    """Print a row for one client and one for four."""
    key = folder.with_suffix(".key")
    key.write_text("sk-ant-unused")
    key.chmod(0o600)
    with Stack(
        folder, "http://127.0.0.1:9", f"acme=file://{key}", broker_settings=settings
    ) as stack:
        for clients in (1, 4):
            sandboxes = [stack.sandbox() for _ in range(SANDBOXES)]
            stack.access_token(sandboxes[0])
            took = list[float]()
            shares = [sandboxes[i::clients] for i in range(clients)]
            threads = [threading.Thread(target=exchange, args=(stack, s, took)) for s in shares]
            started = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = time.perf_counter() - started
            took.sort()
            p50, p99 = statistics.median(took), took[int(len(took) * 0.99)]
            rate = len(took) / seconds
            print(f"| {name} | {clients} | {rate:.0f} | {p50 * 1e3:.1f} | {p99 * 1e3:.1f} |")


def exchange(stack: Stack, sandboxes: Sequence[Mapping[str, Any]], took: list[float]) -> None:
    """Exchange each sandbox's launch credential again and again."""
    for _ in range(EXCHANGES):
        for sandbox in sandboxes:
            started = time.perf_counter()
            stack.access_token(sandbox)
            took.append(time.perf_counter() - started)


if __name__ == "__main__":
    main()
