"""Figures of several workers in one text."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from daypass_proxy import sibling
from daypass_proxy.sibling import Siblings, merged, sibling_socket
from tests.support import aeventually


def registry(calls: int, *, more: bool = False) -> CollectorRegistry:
    """What one worker has counted; the names and values are awkward on purpose."""
    found = CollectorRegistry()
    counter = Counter("daypass_calls", "Calls # HELP of all.", ["model"], registry=found)
    counter.labels('a "b" {c} \\ d').inc(calls)
    Gauge("daypass_open_calls", "Open.", registry=found).set(calls)
    Histogram("daypass_added_seconds", "Added.", registry=found, buckets=(1, 2)).observe(calls)
    if more:
        Gauge("daypass_alone", "One has it.", registry=found).set(1)
    return found


@pytest.mark.parametrize(
    ("encode", "read"), [(generate_latest, parse), (generate_openmetrics, parse_openmetrics)]
)
def test_a_merged_text_is_one_exposition(encode: object, read: object) -> None:
    """Each family stands there once, with the samples of all workers under their numbers."""
    texts = [
        (number, encode(registry(number + 1, more=number == 1)).decode())  # type: ignore[operator]
        for number in (0, 1)
    ]
    families = {one.name: one for one in read(merged(texts))}  # type: ignore[operator]
    assert len(families) == len(list(read(merged(texts))))  # type: ignore[operator]
    calls = [one for one in families["daypass_calls"].samples if one.name.endswith("_total")]
    assert [(one.labels["worker"], one.value) for one in calls] == [("0", 1.0), ("1", 2.0)]
    assert calls[0].labels["model"] == 'a "b" {c} \\ d'
    assert {one.labels["worker"] for one in families["daypass_open_calls"].samples} == {"0", "1"}
    assert [one.labels for one in families["daypass_alone"].samples] == [{"worker": "1"}]


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, ...]]:
    """The sockets of two workers."""
    with ExitStack() as stack:
        yield tuple(stack.enter_context(sibling_socket()) for _ in range(2))


async def test_who_does_not_answer_is_missing(
    sockets: tuple[socket.socket, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is stuck, or answers with an error, is left out after a moment."""
    monkeypatch.setattr(sibling, "ANSWER_SECONDS", 0.1)
    own = generate_latest(registry(3)).decode()
    first = Siblings(0, sockets)
    assert 'worker="1"' not in await first.figures(own, "")

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\n\r\nx 1\n")
        writer.close()
        answered.append(writer)

    answered: list[asyncio.StreamWriter] = []
    async with await asyncio.start_unix_server(refuse, sock=sockets[1]):
        text = await first.figures(own, "")
        await aeventually(lambda: len(answered) == 2)  # who gave up before was there as well
    assert 'daypass_open_calls{worker="0"} 3.0' in text
    assert 'worker="1"' not in text
