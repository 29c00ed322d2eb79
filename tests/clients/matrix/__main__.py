"""Run the matrix and print it: `python -m tests.clients.matrix [CLIENT …]`, all clients by default.

Place in the flow: what `make test-clients` starts. Writes every cell to build/clients-matrix.json
and the table to build/clients-matrix.md, and after a run of everything also into the page in docs.
Ends with 1 when a cell is wrong, and says what is.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.clients.matrix.cells import Cell, faults, visit
from tests.clients.matrix.client import Client
from tests.clients.matrix.clients import CLIENTS
from tests.clients.matrix.scenarios import SCENARIOS, Scenario
from tests.clients.matrix.table import TABLE, Key, markdown
from tests.clients.matrix.world import World, world

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "clients-matrix.md"
BUILD = ROOT / "build"
Pairs = Mapping[Key, tuple[Cell, Cell | None]]


def installed(clients: Sequence[Client]) -> tuple[list[Client], dict[str, str]]:
    """The clients that are here now, and why the others are not."""
    missing = {client.name: why for client in clients if (why := _missing(client))}
    return [client for client in clients if client.name not in missing], missing


def _missing(client: Client) -> str:
    try:
        client.install()
    except AssertionError as failed:
        return str(failed)[-300:]
    return ""


def pair(around: World, client: Client, scenario: Scenario) -> tuple[Cell, Cell | None]:
    """A cell, and the same without us where they must be alike."""
    cell = visit(around, client, scenario)
    bare = visit(around, client, scenario, direct=True) if scenario.alike else None
    said = f"{client.name}, {scenario.name}: {cell.requests} requests, {cell.seconds} s\n"
    sys.stderr.write(said)
    return cell, bare


def run(clients: Sequence[Client], scenarios: Sequence[Scenario], lanes: int) -> Pairs:
    """Run all cells, so many at once; the books of the product are right in the end."""
    jobs = [(c, s) for s in scenarios for c in clients if s.mode in c.modes]
    jobs.sort(key=lambda job: not job[1].figure)  # first the clients that wait and try again
    with (
        tempfile.TemporaryDirectory(prefix="dp-") as folder,
        world(Path(folder)) as around,
        ThreadPoolExecutor(lanes) as pool,
    ):
        pairs = list(pool.map(lambda job: pair(around, *job), jobs))
    names = [(client.name, scenario.name) for client, scenario in jobs]
    return dict(zip(names, pairs, strict=True))


def wrong_cells(
    clients: Sequence[Client], scenarios: Sequence[Scenario], pairs: Pairs
) -> dict[Key, list[str]]:
    """What is wrong, by cell."""
    judged = {
        (c.name, s.name): faults(c, s, *pairs[c.name, s.name])
        for c in clients
        for s in scenarios
        if (c.name, s.name) in pairs
    }
    return {key: found for key, found in judged.items() if found}


def write(pairs: Pairs, table: str, *, whole: bool) -> None:
    """Write what was seen; the page only from a whole run."""
    documents = [each.document() for both in pairs.values() for each in both if each is not None]
    BUILD.mkdir(exist_ok=True)
    (BUILD / "clients-matrix.json").write_text(json.dumps(documents, indent=1))
    (BUILD / "clients-matrix.md").write_text(table)
    if whole:
        PAGE.write_text(PAGE.read_text().partition(TABLE)[0] + f"{TABLE}\n\n{table}")


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="tests.clients.matrix", description=__doc__)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help="by the names of the table")
    parser.add_argument("--scenario", action="append", default=[], help="by the names of the table")
    parser.add_argument("--lanes", type=int, default=4, help="clients at once")
    given = parser.parse_args()
    scenarios = [s for s in SCENARIOS if not given.scenario or s.name in given.scenario]
    clients, missing = installed(
        [c for c in CLIENTS if not given.clients or c.name in given.clients]
    )
    pairs = run(clients, scenarios, given.lanes)
    wrong = wrong_cells(clients, scenarios, pairs)
    table = markdown(clients, scenarios, {key: cell for key, (cell, _) in pairs.items()}, wrong)
    for name, why in missing.items():
        table += f"\nNot installed: {name}: {why}\n"
    write(pairs, table, whole=clients == list(CLIENTS) and scenarios == list(SCENARIOS))
    lines = [table, *(f"{': '.join(key)}: {'; '.join(found)}" for key, found in wrong.items())]
    sys.stdout.write("\n".join(lines) + "\n")
    # What is not there or was not named right is no good run.
    return 1 if wrong or missing or not pairs else 0


if __name__ == "__main__":
    sys.exit(main())
