"""Metrics in plain integers show the same as prometheus_client's own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from daypass_core.metrics import OTHER, Board, Capped, Kind, Spec

CALLS = Spec(Kind.COUNTER, "daypass_things_total", "Things.", ("kind",))
SIZE = Spec(Kind.HISTOGRAM, "daypass_size_bytes", "Sizes.", (), (1.0, 2.0, 4.0))
NOW = Spec(Kind.GAUGE, "daypass_now", "Now.", ("part",))


@pytest.fixture
def board() -> Board:
    """A board with a registry of its own."""
    return Board(CollectorRegistry())


def shown(board: Board) -> list[str]:
    """The lines of samples."""
    lines = generate_latest(board.registry).decode().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_counters(board: Board) -> None:
    """A child is the same for the same labels, and its value is shown under them."""
    board.count(CALLS, "a").value += 2
    board.count(CALLS, "a").value += 1
    board.count(CALLS, "b")
    assert shown(board) == [
        'daypass_things_total{kind="a"} 3.0',
        'daypass_things_total{kind="b"} 0.0',
    ]


def test_every_metric_comes_with_its_help(board: Board) -> None:
    """Help and type are in the exposition."""
    board.count(CALLS, "a")
    text = generate_latest(board.registry).decode()
    assert "# HELP daypass_things_total Things.\n# TYPE daypass_things_total counter" in text


@given(st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0])))
@settings(max_examples=50, deadline=None)
def test_histograms_are_those_of_prometheus(values: list[float]) -> None:
    """Buckets, sum and count are what prometheus_client makes of the same values."""
    board, reference = Board(CollectorRegistry()), CollectorRegistry()
    theirs = Histogram(SIZE.name, SIZE.help, buckets=SIZE.buckets, registry=reference)
    ours = board.spread(SIZE)
    for value in values:
        ours.observe(value)
        theirs.observe(value)
    lines = generate_latest(reference).decode().splitlines()
    expected = [line for line in lines if not line.startswith("#") and "_created" not in line]
    assert shown(board) == expected


def test_readings(board: Board) -> None:
    """What is read at scrape time may be one value, several, or nothing."""
    board.read(NOW, lambda: {("x",): 1, ("y",): 2})
    board.read(Spec(Kind.GAUGE, "daypass_age_seconds", "Age."), lambda: None)
    board.read(Spec(Kind.GAUGE, "daypass_open", "Open."), lambda: 7)
    assert shown(board) == ['daypass_now{part="x"} 1.0', 'daypass_now{part="y"} 2.0',
                            "daypass_open 7.0"]  # fmt: skip


def test_wrong_children(board: Board) -> None:
    """A child of the wrong kind, or with the wrong number of labels, is an error at once."""
    for make in (lambda: board.count(CALLS), lambda: board.count(SIZE), lambda: board.spread(NOW)):
        with pytest.raises(ValueError, match="is a"):
            make()


@pytest.mark.parametrize(
    ("kind", "name", "help_text", "labels", "buckets"),
    [
        (Kind.COUNTER, "daypass_calls", "No unit.", (), ()),
        (Kind.GAUGE, "daypass_calls_total", "A gauge.", (), ()),
        (Kind.GAUGE, "other_calls", "Foreign.", (), ()),
        (Kind.GAUGE, "daypass_Calls", "Case.", (), ()),
        (Kind.GAUGE, "daypass_calls", "", (), ()),
        (Kind.GAUGE, "daypass_calls", "Label.", ("Kind",), ()),
        (Kind.GAUGE, "daypass_calls", "Buckets.", (), (1.0,)),
        (Kind.HISTOGRAM, "daypass_calls", "No buckets.", (), ()),
        (Kind.HISTOGRAM, "daypass_calls", "Order.", (), (2.0, 1.0)),
    ],
)
def test_the_grammar_binds(
    kind: Kind, name: str, help_text: str, labels: tuple[str, ...], buckets: tuple[float, ...]
) -> None:
    """A name, label or help against the grammar cannot be declared."""
    with pytest.raises(ValueError, match=name):
        Spec(kind, name, help_text, labels, buckets)


def test_capped() -> None:
    """After so many different values all new ones are one; those known stay themselves."""
    capped = Capped(2)
    assert [capped(value) for value in "abacab"] == ["a", "b", "a", OTHER, "a", "b"]
