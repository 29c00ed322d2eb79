"""The corpus of raw requests against the whole path in memory: what authentication saw goes up.

`tests/integration/test_raw_corpus.py` plays the same files against the real proxy as it starts.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from daypass_proxy.guard import Limits
from tests.fakes.guarded import Client, EchoApp, serving
from tests.fakes.watched import CREDENTIALS, PROVIDER_KEY, Watched
from tests.support import aeventually
from tests.vectors.raw_requests import Raw, fill, load

CORPUS = load()
PROBE = b"GET /livez HTTP/1.1\r\nHost: proxy.test\r\n\r\n"


def test_the_corpus_is_large() -> None:
    """There are far more than sixty entries, and none has the name of another."""
    assert len(CORPUS) >= 300
    assert len({raw.id for raw in CORPUS}) == len(CORPUS)


@pytest.mark.parametrize("raw", CORPUS, ids=[raw.id for raw in CORPUS])
async def test_raw_request(raw: Raw, caplog: pytest.LogCaptureFixture) -> None:
    """Rows 1-18: each entry is answered as written, by whom as written, and goes up as checked.

    None of them is an error of ours: no traceback is logged.
    """
    watched = Watched()
    app = EchoApp(reply=watched.application)
    async with serving(app, Limits(**raw.limits)) as server:  # type: ignore[arg-type]
        begin = raw.send[0] if isinstance(raw.send[0], str) else ""
        client = await server.connect(fill(begin, CREDENTIALS))
        try:
            with suppress(ConnectionError):
                async for piece in pieces(raw.send[1:] if begin else raw.send, client):
                    await client.send(piece)
            await check_answer(raw, client)
            expected = [raw.accepted] if raw.accepted else []
            await aeventually(lambda: watched.who() == expected)
        finally:
            client.close()
    check_sent(raw, watched)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def pieces(send: Sequence[Any], client: Client) -> AsyncIterator[bytes]:
    """The bytes to write, one write each."""
    for piece in send:
        if isinstance(piece, str):
            yield fill(piece, CREDENTIALS)
        elif "drip" in piece:
            for byte in fill(piece["drip"], CREDENTIALS):
                yield bytes([byte])
        elif "await" in piece:
            assert await client.status() == piece["await"]
            assert await client.reader.readline() == b"\r\n"
        elif "end" in piece:
            client.writer.write_eof()
        else:
            for _ in range(piece["times"] // 1000):
                yield fill(piece["repeat"], {}) * 1000
            yield fill(piece["repeat"], {}) * (piece["times"] % 1000)


async def check_answer(raw: Raw, client: Client) -> None:
    """One answer of the right kind, and the connection in the right state after it."""
    if raw.status is None:
        assert await client.ended() == b""
        return
    try:
        status, headers, body = await answer(raw, client)
    except (ConnectionError, asyncio.IncompleteReadError):
        if raw.may_cut:
            return
        raise
    assert status == raw.status
    check_words(raw, status, headers, body)
    if raw.connection == "closed":
        assert headers["connection"] == "close" or raw.status == 200
        with suppress(ConnectionError):
            assert await client.ended() == b"", "a second answer"
    elif raw.connection == "open":
        assert "connection" not in headers
        await client.send(PROBE)
        assert (await client.response())[0] == 200


async def answer(raw: Raw, client: Client) -> tuple[int, dict[str, str], bytes]:
    """The final answer; an interim one before it only where the entry says so."""
    head = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), 10)
    if raw.interim is None and head.startswith(b"HTTP/1.1 100 "):
        head = await client.reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    assert len(headers) == len(lines), "a header was answered twice"
    size = 0 if raw.head else int(headers["content-length"])
    return int(first.split()[1]), headers, await client.reader.readexactly(size)


def check_words(raw: Raw, status: int, headers: dict[str, str], body: bytes) -> None:
    """B50: every refusal is a JSON error in the caller's dialect, with an id."""
    if status < 400 or raw.head:
        return
    assert headers["content-type"] == "application/json"
    document: dict[str, Any] = json.loads(body)
    if raw.error == "oauth":
        assert document["error"] == "invalid_request"
        return
    assert document["type"] == "error"
    assert document["error"]["type"] == (raw.error or document["error"]["type"])
    assert document["request_id"] == headers["request-id"]


def check_sent(raw: Raw, watched: Watched) -> None:
    """The provider got what the entry says, which is what was authenticated and checked."""
    if raw.upstream is None:
        assert watched.sent == []
        return
    (sent,) = watched.sent
    (seen,) = watched.accepted
    assert sent.method == raw.upstream.method == seen.method
    assert sent.url == f"https://api.anthropic.com{raw.upstream.target}"
    query = b"?" + seen.query if seen.query else b""
    # The one path that another stands for.
    path = b"/v1/messages" if seen.path == b"/messages" else seen.path
    assert raw.upstream.target.encode() == path + query
    assert sent.body == seen.checked == fill(raw.upstream.body, CREDENTIALS)
    headers = dict(sent.headers)
    assert len(headers) == len(sent.headers)
    assert headers[b"x-api-key"] == PROVIDER_KEY.encode()
    for name, value in raw.upstream.headers.items():
        assert headers[name.encode()] == value.encode("latin-1")
    for name in raw.upstream.absent:
        assert name.encode() not in headers
    everything = repr(sent.headers) + sent.url
    assert not [text for text in CREDENTIALS.values() if text in everything]
