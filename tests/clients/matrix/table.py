"""The matrix as Markdown: `markdown`."""

from collections.abc import Collection, Mapping, Sequence

from tests.clients.matrix.cells import Cell
from tests.clients.matrix.client import Client
from tests.clients.matrix.scenarios import Scenario

Key = tuple[str, str]
TABLE = "## The last run"
"""The heading in docs under which the table stands."""


def markdown(
    clients: Sequence[Client],
    scenarios: Sequence[Scenario],
    cells: Mapping[Key, Cell],
    wrong: Collection[Key],
) -> str:
    """One row a client, one column a scenario; a cell with something wrong is marked."""
    head = ["client", *(scenario.name for scenario in scenarios)]
    lines = [_line(head), _line(["---"] * len(head))]
    for client in clients:
        row = [client.name]
        for scenario in scenarios:
            key = (client.name, scenario.name)
            words = _words(cells[key]) if key in cells else "-"
            row.append(f"**{words} !**" if key in wrong else words)
        lines.append(_line(row))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _words(cell: Cell) -> str:
    exchanges = sum(each.endswith("/oauth/token") for each in cell.others)
    words = [f"{cell.requests} + {exchanges}x" if exchanges else str(cell.requests)]
    words.append("goes on" if cell.code is None else f"exit {cell.code}")
    words += ["answer"] if cell.answered else []
    words += ["says why"] if cell.sentence else []
    return ", ".join(words)
