"""Whatever bytes come: no traceback, no other header than those checked, an end, one reading.

Generated requests come from pieces that are right, and from pieces that are wrong in one way.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_proxy.providers.anthropic import headers_up
from tests.fakes.connection import Connection
from tests.fakes.guarded import EchoApp
from tests.fakes.watched import CREDENTIALS, Watched
from tests.vectors.raw_requests import Raw, fill, load

BODY = b'{"model":"claude-sonnet-4-5","max_tokens":8,"messages":[{"role":"user","content":"x"}]}'
TOKEN, OTHER = CREDENTIALS["token"].encode(), CREDENTIALS["other"].encode()

RIGHT: dict[str, list[Any]] = {
    "method": [b"POST"],
    "target": [b"/v1/messages", b"/v1/messages?beta=true", b"/v1/messages/count_tokens"],
    "version": [b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0"],
    "end": [b"\r\n"],
    "host": [[b"Host: h"], [b"hOsT:  [::1]:8700 "]],
    "credential": [
        [b"Authorization: Bearer " + TOKEN],
        [b"x-api-key: " + OTHER],
        [b"Authorization: bearer  " + TOKEN + b" ", b"x-api-key: stale"],
    ],
    "more": [
        b"anthropic-version: 2023-06-01", b"anthropic-beta: a-1, oauth-2025-04-20",
        b"anthropic-workspace-id: w", b"X-App: cli", b"X-App: caf\xc3\xa9\t", b"Cookie: a=b",
        b"Connection: keep-alive", b"Connection: x-app, anthropic-version", b"Forwarded: for=1",
        b"Expect: 100-continue", b"X-Upstream-Authorization: " + OTHER, b"Proxy-Connection: close",
    ],
    "framing": [
        ([b"Content-Length: %d" % len(BODY)], BODY),
        ([b"Transfer-Encoding: chunked"], b"%x;a=b\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)),
    ],
}  # fmt: skip
WRONG: dict[str, list[Any]] = {
    "method": [b"GET", b"HEAD", b"PUT", b"post", b"TRACE", b"BREW"],
    "target": [
        b"/v1/self", b"/v1/messages?x=1", b"//v1/messages", b"/v1/messages/../files", b"*",
        b"/v1/%6dessages", b"http://evil/v1/messages", b"/v1/messages#x", b"/v1/messages;x",
    ],
    "version": [b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"ICE/1.0"],
    "end": [b"\n", b"\r", b"\r\r\n"],
    "host": [[], [b"Host: h", b"Host: i"], [b"Host: h/p"], [b"Host:"]],
    "credential": [
        [],
        [b"Authorization: Bearer x"],
        [b"Authorization: Bearer " + TOKEN, b"Authorization: Bearer " + OTHER],
        [b"Authorization: Bearer " + TOKEN, b"api-key: " + OTHER],
    ],
    "more": [
        b"Upgrade: h2c", b"Trailer: x", b"X_App: cli", b"X-A: b\r\n c", b"X A: b", b"X-A: \x00",
        b"X-A: caf\xe9", b"X-A :b", b": b", b"Expect: x", b"Content-Encoding: gzip",
    ],
    "framing": [
        ([b"Transfer-Encoding: chunked"], b"%x\r\n%b\r\n0\r\nX: y\r\n\r\n" % (len(BODY), BODY)),
        ([b"Content-Length: 4", b"Transfer-Encoding: chunked"], BODY),
        ([b"Content-Length: %d" % len(BODY)] * 2, BODY),
        ([b"Content-Length: +4"], BODY),
        ([b"Content-Length: 4"], BODY),
        ([b"Content-Length: 200"], BODY),
        ([], BODY),
    ],
}  # fmt: skip
BEHIND = [
    b"",
    b"\r\n",
    b"\x00",
    b"GET /v1/self HTTP/1.1\r\nHost: h\r\nx-api-key: %b\r\n\r\n" % OTHER,
]


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request that is right, or wrong in at most two of its parts; something may follow it."""
    wrong = draw(st.frozensets(st.sampled_from(sorted(WRONG)), max_size=2))
    part = {
        name: draw(st.sampled_from(WRONG[name] if name in wrong else RIGHT[name])) for name in RIGHT
    }
    more = draw(st.lists(st.sampled_from(RIGHT["more"]), max_size=4))
    framing, body = part["framing"]
    lines = [*part["host"], *part["credential"], *more, part["more"], *framing]
    lines.append(b"Content-Type: application/json")
    first = b" ".join((part["method"], part["target"], part["version"]))
    head = part["end"].join([first, *draw(st.permutations(lines)), b"", b""])
    return bytes(head + body + draw(st.sampled_from(BEHIND)))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A request with a few bytes replaced, removed or put in."""
    data = bytearray(draw(requests()))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data) - 1))
        put = draw(
            st.sampled_from([b"", b"\r", b"\n", b"\r\n", b"\x00", b":", b" ", b"\xff", b"0"])
        )
        data[at : at + draw(st.integers(0, 2))] = put
    return bytes(data)


@st.composite
def segments(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The same bytes cut at a few places."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    edges = [0, *cuts, len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


@contextmanager
def no_errors_logged() -> Iterator[None]:
    """Fail when anything is logged as an error, as uvicorn does with tracebacks."""
    handler = _Errors()
    loggers = [logging.getLogger(), logging.getLogger("uvicorn.error")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert handler.seen == []


@dataclass
class Played:
    """What came of some bytes."""

    statuses: list[int]
    watched: Watched
    scopes: list[dict[str, Any]]


def play(pieces: list[bytes]) -> Played:
    """Let segments arrive at the whole path in memory, then hang up."""

    async def run() -> Played:
        watched = Watched()
        app = EchoApp(reply=watched.application)
        connection = Connection(app)
        connection.feed(pieces)
        await connection.hang_up()
        statuses = [status for status in connection.statuses if status != 100]
        return Played(statuses, watched, app.started)

    with no_errors_logged():
        return asyncio.run(run())


def check_one_reading(played: Played) -> None:
    """What was authenticated and checked is what went up, or nothing went up."""
    watched = played.watched
    assert len(played.scopes) <= 1 or played.statuses[:1] == [200]
    if not watched.sent:
        return
    (sent,), (seen,) = watched.sent, watched.accepted
    query = b"?" + seen.query if seen.query else b""
    assert sent.url.encode() == b"https://api.anthropic.com" + seen.path + query
    assert sent.method == seen.method == "POST"
    assert sent.body == seen.checked
    ours = {b"accept-encoding", b"x-api-key"}
    assert [pair for pair in sent.headers if pair[0] not in ours] == list(headers_up(seen.headers))
    everything = b"".join(value for _, value in sent.headers)
    assert TOKEN not in everything
    assert OTHER not in everything


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_bytes(data: st.DataObject) -> None:
    """Whatever arrives is refused or served, logs no traceback, and leaves nothing behind."""
    raw = data.draw(st.one_of(st.binary(max_size=300), damaged()))
    played = play(data.draw(segments(raw)))
    assert len(played.statuses) <= 2
    for scope in played.scopes:
        headers = scope["headers"]
        assert type(headers) is tuple
        assert [name for name, _ in headers].count(b"host") == 1
        assert not any(b"_" in name or name != name.lower() for name, _ in headers)
    check_one_reading(played)


@settings(max_examples=100, deadline=None)
@given(requests())
def test_what_authentication_saw_goes_up(raw: bytes) -> None:
    """Generated heads: path, query, headers and body that were checked go up, or nothing does."""
    check_one_reading(play([raw]))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_segments_change_nothing(data: st.DataObject) -> None:
    """However the bytes of a connection are cut, it gets the same answers and sends the same up."""
    raw = data.draw(damaged())
    whole, cut = play([raw]), play(data.draw(segments(raw)))
    assert whole.statuses == cut.statuses
    assert whole.watched.who() == cut.watched.who()
    assert [sent.body for sent in whole.watched.sent] == [sent.body for sent in cut.watched.sent]


@settings(max_examples=100, deadline=None)
@given(damaged())
def test_another_parser_reads_the_same(raw: bytes) -> None:
    """Row 7: whatever goes up, h11 reads the same method, target, headers and body out of it."""
    played = play([raw])
    if played.watched.sent:
        compare_with_h11(raw, played)


def compare_with_h11(raw: bytes, played: Played) -> None:
    """Hold the first request against a second, independent parser.

    llhttp takes more empty lines before a request, and more blanks in its first line, which
    RFC 9112 §2.2 and §3 leave to the reader; the corpus has both. Nothing of that line goes up.
    """
    line, mark, rest = raw.lstrip(b"\r\n").partition(b"\r\n")
    other = h11.Connection(h11.SERVER)
    other.receive_data(b" ".join(filter(None, line.split(b" "))) + mark + rest)
    head = other.next_event()
    assert isinstance(head, h11.Request)
    body = b""
    while isinstance(piece := other.next_event(), h11.Data):
        body += bytes(piece.data)
    assert isinstance(piece, h11.EndOfMessage)
    assert piece.headers == []
    seen = played.watched.accepted[0]
    query = b"?" + seen.query if seen.query else b""
    assert (head.method.decode(), head.target) in (
        (seen.method, seen.path + query),
        (seen.method, seen.path + b"?"),
    )
    assert sorted(head.headers) == sorted(map(as_h11, seen.headers))
    assert body == seen.checked


def as_h11(pair: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """A header as h11 writes it: the name of a coding in lower case."""
    name, value = pair
    return name, value.lower() if name == b"transfer-encoding" else value


CORPUS = [raw for raw in load() if raw.upstream is not None]


@pytest.mark.parametrize("raw", CORPUS, ids=[raw.id for raw in CORPUS])
def test_another_parser_reads_the_corpus_the_same(raw: Raw) -> None:
    """Row 7: h11 agrees about every entry of the corpus that goes up."""
    data = b"".join(
        fill(piece if isinstance(piece, str) else piece.get("drip", ""), CREDENTIALS)
        if not (isinstance(piece, dict) and "repeat" in piece)
        else piece["repeat"].encode("latin-1") * piece["times"]
        for piece in raw.send
    )
    played = play([data])
    assert len(played.watched.sent) == 1
    compare_with_h11(data, played)
