"""A thousand valid requests, sent direct and through the proxy in single bytes: nothing differs.

Bodies are equal byte for byte both ways; headers differ only as docs/reference/headers.md says.
Every byte of a request and of an answer is a write of its own on a socket with TCP_NODELAY.
"""

import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import pytest

from tests.canary import CANARY
from tests.servers.client import RawStream
from tests.servers.headers_page import Pairs, Rules
from tests.servers.spelled import Spelled, answer, make
from tests.servers.stack import Stack
from tests.servers.stub import Recorded, Script, Send, StubUpstream

SEED, COUNT, CONNECTIONS = 3, 1_000, 8
KEY = f"sk-ant-{CANARY}-acme"
UP, DOWN = Rules.of("Up"), Rules.of("Down")


class Provider(StubUpstream):
    """A stub whose answers depend on the request alone, and leave in single bytes when told to."""

    single_bytes = False

    def _script(self, recorded: Recorded) -> Script:
        assert recorded.header("x-api-key") == [KEY]
        script = answer(recorded)
        if not self.single_bytes:
            return script
        return [
            Send(bytes([byte])) for step in script if isinstance(step, Send) for byte in step.data
        ]


@dataclass
class Seen:
    """What both ends got of one request."""

    up: Recorded
    status: int
    headers: Pairs
    body: bytes


@pytest.fixture
def provider() -> Iterator[Provider]:
    """The provider of this test."""
    server = Provider([KEY])
    with server:
        yield server


def test_a_thousand_requests(make_stack: Callable[..., Stack], provider: Provider) -> None:
    """Direct and through us in 1-byte segments, bytes are equal both ways."""
    requests = [make(number, SEED) for number in range(COUNT)]
    assert len({request.body for request in requests}) > COUNT * 0.95
    direct = exchange_all(provider, requests, provider.url, ("x-api-key", KEY), single=False)
    stack = make_stack(upstream_url=provider.url)
    credential = ("Authorization", f"Bearer {stack.access_token(stack.sandbox())}")
    through = exchange_all(provider, requests, stack.proxy_url, credential, single=True)
    assert len(direct) == len(through) == COUNT
    for request in requests:
        compare(request, direct[request.number], through[request.number], provider)
    kinds = {(seen.status, dict(seen.headers)["content-type"]) for seen in through.values()}
    assert len(kinds) >= 8


def exchange_all(
    provider: Provider,
    requests: list[Spelled],
    url: str,
    credential: tuple[str, str],
    *,
    single: bool,
) -> dict[int, Seen]:
    """Send every request over a few connections at once; return what was seen, by number."""
    provider.reset()
    provider.single_bytes = single
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        parts = [requests[start::CONNECTIONS] for start in range(CONNECTIONS)]
        streams = pool.map(lambda part: exchange(part, url, credential, single), parts)
        answers = {number: stream for part in streams for number, stream in part.items()}
    up = {int(seen.header("x-claude-code-session-id")[0]): seen for seen in provider.requests}
    assert len(provider.requests) == len(up) == len(requests)
    return {number: seen(up[number], stream) for number, stream in answers.items()}


def seen(up: Recorded, stream: RawStream) -> Seen:
    """Take an answer apart."""
    lines = stream.head.decode("utf-8").split("\r\n")[1:]
    headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
    return Seen(up, stream.status, headers, stream.body)


def exchange(
    part: list[Spelled], url: str, credential: tuple[str, str], single: bool
) -> dict[int, RawStream]:
    """Send requests one after another, on one connection as long as it is kept."""
    done: dict[int, RawStream] = {}
    stream = connect(url)
    for request in part:
        data = request.on_wire(url.removeprefix("http://"), credential)
        if single:
            for at in range(len(data)):
                stream.sock.send(data[at : at + 1])
        else:
            stream.sock.sendall(data)
        stream.until(lambda _, stream=stream: stream.complete)  # type: ignore[misc]
        done[request.number] = RawStream(stream.sock, stream.received)
        stream.received = b""
        if b"connection: close" in done[request.number].head.lower():
            stream.close()
            stream = connect(url)
    with closing(stream):
        return done


def connect(url: str) -> RawStream:
    """A connection that sends each write at once."""
    stream = RawStream.send(url, b"", timeout=60.0)
    stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def compare(request: Spelled, direct: Seen, through: Seen, provider: Provider) -> None:
    """Hold both ways against each other and against the documented differences."""
    assert through.up.body == direct.up.body == request.body
    assert (through.up.method, through.up.target) == (direct.up.method, direct.up.target)
    expected = [pair for pair in UP.passed(direct.up.headers) if pair[0] != "anthropic-beta"]
    passed = [pair for pair in UP.passed(through.up.headers) if pair[0] != "anthropic-beta"]
    assert passed == expected
    assert through.up.header("anthropic-beta") == betas(direct.up)
    assert UP.unexplained(through.up.headers) == []
    assert sorted(UP.added(through.up.headers)) == [
        ("accept-encoding", "identity"),
        ("content-length", str(len(request.body))),
        ("host", provider.url.removeprefix("http://")),
        ("x-api-key", KEY),
    ]
    assert (through.status, through.body) == (direct.status, direct.body)
    assert DOWN.passed(through.headers) == DOWN.passed(direct.headers)
    assert DOWN.unexplained(through.headers) == []
    streamed = dict(direct.headers)["content-type"] == "text/event-stream"
    framing = ["date", "transfer-encoding"] if streamed else ["content-length", "date"]
    added = dict(DOWN.added(through.headers))
    if streamed:
        assert (added.pop("cache-control"), added.pop("x-accel-buffering")) == ("no-cache", "no")
    if through.up.target.partition("?")[0] == "/v1/messages":
        assert re.fullmatch(r"[0-9]+\.[0-9]{2,9}", added.pop("daypass-remaining-usd"))
    assert sorted(added) == framing


def betas(up: Recorded) -> list[str]:
    """The documented value of anthropic-beta: without the flags of an OAuth credential."""
    kept = [
        flag for flag in ",".join(up.header("anthropic-beta")).split(",") if "oauth-" not in flag
    ]
    return [",".join(kept).strip()] if any(kept) else []
