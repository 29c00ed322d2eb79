"""A small part of the matrix of clients and answers, and that the whole of it says what is wrong.

The rest is `make test-clients`: it takes too long for every run of the tests.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.clients.matrix.cells import Cell, faults, visit
from tests.clients.matrix.clients import CLIENTS
from tests.clients.matrix.figures import FIGURES
from tests.clients.matrix.scenarios import SCENARIOS
from tests.clients.matrix.world import World, world

BY_NAME = {client.name: client for client in CLIENTS}
COLUMNS = {scenario.name: scenario for scenario in SCENARIOS}
FEW = ("openai-py 3.x, chat", "@anthropic-ai/sdk", "Claude Code")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "clients-matrix.md"


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The product in front of the matrix's provider."""
    with world(tmp_path_factory.mktemp("matrix")) as one:
        yield one


@pytest.mark.sdk
@pytest.mark.parametrize("client", FEW)
def test_a_client_works_as_without_us(around: World, client: str) -> None:
    """A turn with a tool is the same requests, exit code and text through us as directly."""
    scenario, one = COLUMNS["tool turn"], BY_NAME[client]
    cell = visit(around, one, scenario)
    assert faults(one, scenario, cell, visit(around, one, scenario, direct=True)) == []
    assert cell.requests == 2


@pytest.mark.sdk
@pytest.mark.parametrize("client", FEW)
def test_a_client_does_not_repeat_a_torn_stream(around: World, client: str) -> None:
    """A provider that breaks off mid-stream costs no more requests than are known."""
    scenario, one = COLUMNS["cut mid-stream"], BY_NAME[client]
    cell = visit(around, one, scenario)
    assert faults(one, scenario, cell, None) == [], cell
    assert cell.code is not None
    assert cell.sentence or cell.answered


def a_cell(**fields: object) -> Cell:
    """A cell of a client that asked once and ended with our sentence."""
    usual = Cell(
        client="Codex",
        scenario="model refused",
        direct=False,
        requests=1,
        times=[0.0],
        others=[],
        statuses=[400],
        code=1,
        answered=False,
        sentence=True,
        seconds=1.0,
        text="",
        tail="",
    )
    return replace(usual, **fields)  # type: ignore[arg-type]


def test_a_client_that_asks_too_often_is_a_fault() -> None:
    """One request more than its figure is told; the figure itself is not."""
    client, scenario = BY_NAME["Codex"], COLUMNS["rate"]
    most = FIGURES["codex"]["429"]
    enough = a_cell(requests=most, times=[float(each) for each in range(most)])
    assert faults(client, scenario, enough, None) == []
    more = a_cell(requests=most + 1, times=[float(each) for each in range(most + 1)])
    assert faults(client, scenario, more, None) != []


def test_a_client_that_goes_on_is_a_fault() -> None:
    """A request after 60 s is one, unless the client ended by itself."""
    client, scenario = BY_NAME["Codex"], COLUMNS["rate"]
    late = a_cell(requests=2, times=[0.0, 61.0])
    assert faults(client, scenario, late, None) == []
    assert faults(client, scenario, replace(late, code=None), None) != []


def test_a_client_that_never_asked_is_a_fault() -> None:
    """One that ends before its first request was not refused by us."""
    client, scenario = BY_NAME["Codex"], COLUMNS["rate"]
    silent = a_cell(requests=0, times=[], statuses=[])
    assert faults(client, scenario, silent, None) == ["never asked"]


def test_a_difference_to_the_provider_alone_is_a_fault() -> None:
    """More requests, others, another exit code or text than directly: each is told."""
    client, scenario = BY_NAME["Codex"], COLUMNS["stream"]
    good = a_cell(code=0, answered=True, text="Hello")
    assert faults(client, scenario, good, good) == []
    for change in ({"requests": 2}, {"others": ["GET /x"]}, {"code": 1}, {"text": "Hell"}):
        assert faults(client, scenario, replace(good, **change), good) != []


def test_every_client_has_figures_and_a_row_on_the_page() -> None:
    """The page's table has every client and column; every client has a figure for every column."""
    page = PAGE.read_text(encoding="utf-8")
    head = page.partition("| client |")[2].partition("\n")[0]
    assert [name.strip() for name in head.split("|")[:-1]] == list(COLUMNS)
    for client in CLIENTS:
        assert f"\n| {client.name} |" in page
        assert {each.figure for each in SCENARIOS} - {""} <= FIGURES[client.figures].keys()
