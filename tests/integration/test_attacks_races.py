"""Attacks on moments: hanging up, not reading, racing a revocation or a restart."""

import json
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.servers.client import RawStream
from tests.servers.stack import Stack
from tests.servers.stub import Script, Send, Stall, StubUpstream, Wait, chunk
from tests.servers.wire import json_answer, message_json, message_start, sse_answer, text_delta
from tests.support import eventually

MODEL = "claude-sonnet-4-5"
BODY: dict[str, object] = {
    "model": MODEL,
    "max_tokens": 64,
    "stream": True,
    "messages": [{"role": "user", "content": "x" * 2000}],
}
START = message_start(MODEL, {"input_tokens": 500, "output_tokens": 1})


@pytest.fixture
def sandbox(stack: Stack) -> dict[str, Any]:
    """A fresh sandbox."""
    return stack.sandbox()


def request(token: str, body: dict[str, object] = BODY) -> bytes:
    """One call as raw bytes."""
    data = json.dumps(body).encode()
    head = (
        "POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def hang_up(sock: socket.socket, *, hard: bool) -> None:
    """Close, with a reset when `hard`."""
    if hard:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def settled(stack: Stack, sandbox: dict[str, Any]) -> list[dict[str, Any]]:
    """The usage rows of a sandbox, once none is open and nothing is held."""
    eventually(lambda: all(row["state"] == "settled" for row in stack.usage(sandbox)), timeout=20)
    assert stack.account(sandbox)["reserved_nano"] == 0
    return stack.usage(sandbox)


def test_hanging_up_at_any_moment_is_booked(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, Any]
) -> None:
    """B05, row 27: wherever a client hangs up, what the provider saw is booked, nothing is held."""
    token = stack.access_token(sandbox)
    assert stack.message(token).status == 200
    chance = random.Random(7)
    whole = request(token)
    for number in range(150):
        sock = socket.create_connection(("127.0.0.1", stack.proxy_port), 10)
        cut = chance.randrange(1, len(whole)) if number % 3 == 0 else len(whole)
        sock.sendall(whole[:cut])
        if number % 3 == 2:
            sock.recv(chance.randrange(1, 700))
        hang_up(sock, hard=chance.random() < 0.5)
    rows = settled(stack, sandbox)
    paid = [row for row in rows if row["cost_nano"]]
    assert len(paid) >= len(upstream.requests)
    assert stack.account(sandbox)["spent_nano"] == sum(row["cost_nano"] for row in rows)
    assert stack.message(token).status == 200


def test_the_first_call_of_a_tenant_may_hang_up(make_stack: Callable[..., Stack]) -> None:
    """Who hangs up while the tenant's key is first read takes it from nobody else."""
    stack = make_stack()
    token = stack.access_token(stack.sandbox())
    for _ in range(20):
        sock = socket.create_connection(("127.0.0.1", stack.proxy_port), 10)
        sock.sendall(request(token))
        hang_up(sock, hard=True)
    assert stack.message(token).status == 200


def test_a_document_is_not_free_for_who_hangs_up(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, Any]
) -> None:
    """B05: a document sent and not waited for costs by its size, not nothing."""
    source = {"type": "base64", "media_type": "application/pdf", "data": "A" * 400_000}
    content = [{"type": "document", "source": source}]
    upstream.next([Stall()])
    body = BODY | {"messages": [{"role": "user", "content": content}]}
    stream = RawStream.send(stack.proxy_url, request(stack.access_token(sandbox), body))
    upstream.wait_for(1)
    stream.close()
    (row,) = settled(stack, sandbox)
    assert row["input_tokens"] >= 20_000
    assert row["estimated"] == 1


FLOOD: Script = [
    Send(sse_answer()),
    chunk(START),
    *(chunk(text_delta("word " * 20_000)) for _ in range(100)),
    Stall(),
]


def test_who_does_not_read_is_cut_all_the_same(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, Any]
) -> None:
    """A client that stops reading does not hold up its own revocation or settlement."""
    upstream.next(FLOOD)
    token = stack.access_token(sandbox)
    stream = RawStream.send(stack.proxy_url, request(token))
    (seen,) = upstream.wait_for(1)
    stream.until(START)
    stack.admin("POST", "/v1/revocations", {"scope": "sandbox", "ident": sandbox["id"]})
    assert seen.peer_gone.wait(15), "sooner than who does not read is given up"
    (row,) = settled(stack, sandbox)
    assert row["outcome"] == "cut_revoked"
    assert row["cost_nano"] > 0
    stream.close()


def test_who_reads_slowly_keeps_nobody_waiting(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, Any]
) -> None:
    """Row 18: twenty clients that do not read leave other calls as fast as before."""
    upstream.next(*[FLOOD] * 20)
    token = stack.access_token(sandbox)
    streams = [RawStream.send(stack.proxy_url, request(token)) for _ in range(20)]
    upstream.wait_for(20)
    began = time.monotonic()
    other = stack.access_token(stack.sandbox("globex"))
    assert stack.message(other).status == 200
    assert time.monotonic() - began < 10, "no wait for those: they have 30 s to read"
    for stream in streams:
        stream.close()
    settled(stack, sandbox)


@contextmanager
def hammering(work: Callable[[], None], threads: int) -> Iterator[None]:
    """Do `work` over and over in several threads."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            work()

    running = [threading.Thread(target=loop) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in running:
            thread.join()


@pytest.mark.parametrize("end", ["sandbox", "grant", "tenant", "ended"])
def test_a_revocation_wins_every_race(stack: Stack, end: str) -> None:
    """No call and no exchange that begins after a revocation was stored and seen succeeds."""
    sandbox = stack.sandbox("globex")
    (grant,) = stack.rows("SELECT id FROM grant_record WHERE sandbox = ?", sandbox["id"])
    token = stack.access_token(sandbox)
    tokens, calls, exchanges = {token}, [0.0], [0.0]

    def call_on() -> None:
        began = time.monotonic()
        if stack.message(token).status == 200:
            calls.append(began)

    def exchange_on() -> None:
        began = time.monotonic()
        answer = stack.exchange(sandbox)
        if answer.status == 200:
            exchanges.append(began)
            tokens.add(answer.json()["access_token"])

    with hammering(call_on, 2), hammering(exchange_on, 2):
        eventually(lambda: len(calls) > 2 and len(exchanges) > 2, timeout=20)
        if end == "ended":
            answer = stack.admin("DELETE", f"/v1/sandboxes/{sandbox['id']}")
        else:
            ident = {"sandbox": sandbox["id"], "grant": grant["id"], "tenant": "globex"}[end]
            order = {"scope": end, "ident": ident, "not_before": "now"}
            answer = stack.admin("POST", "/v1/revocations", order)
        stored = time.monotonic()
        assert answer.status in (200, 201)
        eventually(lambda: stack.message(token).status == 401)
        seen = time.monotonic()
    assert max(exchanges) < stored
    assert max(calls) < seen
    assert {stack.message(one).status for one in tokens} == {401}


def test_a_call_in_admission_is_cut_too(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, Any]
) -> None:
    """Calls that are just being admitted when the revocation comes do not slip through it."""
    upstream.always([Wait("never"), Send(json_answer(200, message_json(MODEL)))])
    token = stack.access_token(sandbox)
    streams = [RawStream.send(stack.proxy_url, request(token)) for _ in range(30)]
    stack.admin("POST", "/v1/revocations", {"scope": "sandbox", "ident": sandbox["id"]})
    for stream in streams:
        stream.rest()
        assert stream.status == 401
    rows = settled(stack, sandbox)
    assert {row["outcome"] for row in rows} <= {"cut_revoked"}


def test_a_single_use_credential_works_once_whatever_restarts(
    make_stack: Callable[..., Stack],
) -> None:
    """A restart of the broker forgets no use: the second one is refused, and an incident."""
    stack = make_stack()
    sandbox = stack.sandbox(launch="single_use")
    token = stack.access_token(sandbox)
    stack.stop_process("broker", signal.SIGKILL)
    stack.start_broker()
    again = stack.exchange(sandbox)
    assert (again.status, again.json()["error"]) == (400, "invalid_grant")
    eventually(lambda: any("launch_reused" in kind for kind in stack.incidents(sandbox["id"])))
    assert stack.message(token).status == 200


def test_a_single_use_credential_works_once_for_many_at_once(stack: Stack) -> None:
    """Of eight exchanges of one single-use credential at the same moment one gets a token."""
    sandbox = stack.sandbox(launch="single_use")
    found: list[int] = []
    barrier = threading.Barrier(8)

    def one() -> None:
        barrier.wait()
        found.append(stack.exchange(sandbox).status)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [200] + [400] * 7


def test_a_proxy_that_restarts_alone_admits_nobody_it_cannot_check(
    make_stack: Callable[..., Stack], upstream: StubUpstream
) -> None:
    """With the broker gone a fresh proxy has no keys: 503 for every token, never a guess."""
    stack = make_stack()
    token = stack.access_token(stack.sandbox())
    stack.stop_process("proxy")
    stack.stop_process("broker")
    stack._spawn("proxy", ["-m", "daypass_proxy", "serve"], stack.proxy_environment)

    def answer() -> int | None:
        try:
            return stack.message(token).status
        except OSError:
            return None

    assert eventually(answer, timeout=20) == 503
    assert upstream.requests == []
    stack.start_broker()
    eventually(lambda: stack.message(token).status == 200, timeout=20)
