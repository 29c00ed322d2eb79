"""Bodies whose check takes long: spooled as they arrive, judged elsewhere, sent as they came."""

import asyncio
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from daypass_core.problem import Code, Problem, Refusal, refuse
from daypass_core.scope import Detail
from daypass_proxy.body import spool as body_spool
from daypass_proxy.body.spool import SPOOL_ABOVE, Spool, spool_above
from daypass_proxy.body.strict import MEDIUM, SMALL
from daypass_proxy.checkers import pool as body_pool
from daypass_proxy.checkers.pool import SHARE, BodyPool, Worker
from daypass_proxy.checkers.worker import PACKET, READY, Question, Verdict, serve
from daypass_proxy.exchange import GONE_EXTENSION, ClientGone, Exchange
from daypass_proxy.providers import Asked
from daypass_proxy.providers import anthropic as anthropic_module
from daypass_proxy.providers.anthropic import Anthropic
from daypass_proxy.providers.anthropic_body import check_body
from daypass_proxy.providers.scope_check import MAX_MODELS
from tests.fakes.anthropic import JSON, PLAIN, SONNET, detail, refused
from tests.fakes.asgi import Wire, make_exchange, scope
from tests.support import aeventually


class Elsewhere:
    """A place that checks bodies when it may, and knows what it was asked."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.may.set()
        self.bodies: list[bytes] = []
        self.cancelled = 0

    async def check(
        self, sandbox: str, provider: str, body: Spool, detail: Detail, *, max_tokens_needed: bool
    ) -> Asked:
        """Check with the very same function."""
        assert (sandbox, provider) == ("sb_1", "anthropic")
        data = os.pread(body.fd, len(body), 0)
        self.bodies.append(data)
        try:
            await self.may.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return check_body(data, detail, max_tokens_needed=max_tokens_needed)


def body_of(size: int, text: str = "x") -> bytes:
    """A good request of about so many bytes."""
    messages = [{"role": "user", "content": text * (size // len(text))}]
    return json.dumps({**PLAIN, "messages": messages}, separators=(",", ":")).encode()


def never(*args: object, **options: object) -> Asked:
    """Stand for the check where it must not happen."""
    raise AssertionError("checked on the event loop")


@pytest.mark.parametrize(
    "body",
    [body_of(SPOOL_ABOVE), body_of(MEDIUM, "[,"), body_of(SPOOL_ABOVE * 2), b"[" * (SMALL + 1)],
    ids=["large", "commas", "spooled", "brackets"],
)
async def test_row_17_the_loop_checks_no_body_that_could_hold_it(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 17, B43: above the bounds the event loop's thread never parses; the bytes stay."""
    monkeypatch.setattr(anthropic_module, "check_body", never)
    elsewhere = Elsewhere()
    exchange, _ = make_exchange(headers=[JSON], body=[body[:1000], body[1000:]])
    read = await exchange.read_body(len(body), SPOOL_ABOVE)
    assert isinstance(read, Spool) is (len(body) > SPOOL_ABOVE)
    assert len(read) == len(body)
    reading = Anthropic(elsewhere).read(exchange, "messages", read, detail(), "sb_1")
    if body.startswith(b"["):
        with pytest.raises(Refusal, match="invalid_request"):
            await reading
    else:
        call = await reading
        assert (call.body, call.model) == (body, SONNET)
    assert elsewhere.bodies == [body]


async def test_small_bodies_are_checked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is quick goes nowhere else."""
    elsewhere = Elsewhere()
    for body in (body_of(1000, ","), body_of(SPOOL_ABOVE - 1000)):
        exchange, _ = make_exchange(headers=[JSON])
        call = await Anthropic(elsewhere).read(exchange, "messages", body, detail(), "sb_1")
        assert call.body is body
    assert elsewhere.bodies == []


async def test_row_17_without_another_place_a_thread_checks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Row 17: where there are no workers, large bodies are checked all the same, off the loop."""
    body = body_of(SPOOL_ABOVE * 2)
    threads: list[threading.Thread] = []

    def check(*arguments: Any, **options: Any) -> Asked:
        threads.append(threading.current_thread())
        return check_body(*arguments, **options)

    monkeypatch.setattr(anthropic_module, "check_body", check)
    exchange, _ = make_exchange(headers=[JSON], body=body)
    read = await exchange.read_body(len(body), SPOOL_ABOVE)
    call = await Anthropic().read(exchange, "messages", read, detail(), "sb_1")
    assert call.body == body
    spool = Spool.of(b"[" * SPOOL_ABOVE)
    with pytest.raises(Refusal):
        await Anthropic().read(exchange, "messages", spool, detail(), "sb_1")
    assert len(threads) == 2
    assert threading.main_thread() not in threads


async def test_where_there_are_no_memory_files_nothing_is_spooled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Elsewhere than on Linux bodies stay in memory, and no worker is tried again and again."""
    started: list[object] = []
    monkeypatch.setattr(body_spool, "AVAILABLE", False)
    monkeypatch.setattr(body_pool, "AVAILABLE", False)
    monkeypatch.setattr(Worker, "start", lambda: started.append(1))
    pool = BodyPool(2)
    pool.start()
    assert not pool._tasks
    await pool.close()
    assert not started
    body = body_of(SPOOL_ABOVE * 2)
    exchange, _ = make_exchange(headers=[JSON], body=body)
    read = await exchange.read_body(len(body), spool_above(len(body)))
    assert isinstance(read, bytes)
    call = await Anthropic().read(exchange, "messages", read, detail(), "sb_1")
    assert call.body == body


async def test_row_17_one_sandbox_has_its_share() -> None:
    """Row 17: a sandbox above its share of what waits is refused at once; others wait as before."""
    body = body_of(1000)
    pool = BodyPool(0, max_waiting=SHARE * len(body))

    def ask(sandbox: str) -> "asyncio.Task[Asked]":
        spool = Spool.of(body)
        checking = pool.check(sandbox, "anthropic", spool, detail(), max_tokens_needed=True)
        return asyncio.create_task(checking)

    asked = [ask(sandbox) for sandbox in ("sb_1", "sb_1", "sb_2")]
    await aeventually(lambda: asked[1].done())
    with pytest.raises(Refusal, match="rate_limited"):
        await asked[1]
    assert pool.waiting == 2 * len(body)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert pool.waiting == 0
    assert not pool._waiting_of


async def test_who_hangs_up_gives_up_the_place() -> None:
    """B30 (b): a client that leaves while its body waits for its check takes no further part."""
    elsewhere = Elsewhere()
    elsewhere.may.clear()
    acts: list[Any] = []
    asgi = scope("POST", b"/v1/messages", headers=[JSON])
    asgi["extensions"][GONE_EXTENSION] = acts.append
    wire = Wire([])
    exchange = Exchange(asgi, wire.receive, wire.send, request_id="req_test", started=0.0)
    reading = asyncio.create_task(
        Anthropic(elsewhere).read(exchange, "messages", Spool.of(body_of(10)), detail(), "sb_1")
    )
    await aeventually(lambda: acts and elsewhere.bodies)
    acts[0]()
    with pytest.raises(ClientGone):
        await reading
    assert elsewhere.cancelled == 1


async def test_a_cancelled_call_stays_cancelled() -> None:
    """A shutdown that cancels a call during its check is not taken for the client's end."""
    elsewhere = Elsewhere()
    elsewhere.may.clear()
    exchange, _ = make_exchange(headers=[JSON])
    reading = asyncio.create_task(
        Anthropic(elsewhere).read(exchange, "messages", Spool.of(body_of(10)), detail(), "sb_1")
    )
    await aeventually(lambda: elsewhere.bodies)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert elsewhere.cancelled == 1


# -- spools


async def test_a_sealed_spool_is_fixed() -> None:
    """Row 31: once shared nobody changes it, also by its descriptor; its bytes come back once."""
    spool = Spool.of(b"abc")
    spool.seal()
    for change in (lambda: os.pwrite(spool.fd, b"x", 0), lambda: os.ftruncate(spool.fd, 1)):
        with pytest.raises(PermissionError):
            change()
    with pytest.raises(Refusal):
        spool.write(b"d")
    descriptor = spool.fd
    assert await spool.take() == b"abc"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def open_files() -> Iterator[tuple[int, int]]:
    """Device and inode of what is open in this process, whose other threads go on meanwhile."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found = os.stat(f"/proc/self/fd/{name}")
            yield found.st_dev, found.st_ino


def test_a_spool_ends_with_its_object() -> None:
    """A body that is given up leaves no descriptor behind (case B31)."""
    files = set()
    for _ in range(10):
        spool = Spool.of(b"x")
        found = os.fstat(spool.fd)
        files.add((found.st_dev, found.st_ino))
    assert files & set(open_files())
    del spool
    assert not files & set(open_files())


async def test_without_memory_the_answer_is_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor for a body is 503, not 500."""

    def refuse_all(*args: object) -> int:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse_all)
    exchange, _ = make_exchange(body=[b"x" * 5, b"x" * 5])
    with pytest.raises(Refusal) as caught:
        await exchange.read_body(20, 8)
    assert caught.value.problem.code is Code.OVERLOADED


async def test_a_spool_has_the_bounds_of_any_body() -> None:
    """Row 17: spooled or not, more than the limit is 413."""
    exchange, _ = make_exchange(body=[b"x" * 5] * 5)
    with pytest.raises(Refusal) as caught:
        await exchange.read_body(20, 8)
    assert caught.value.problem.code is Code.REQUEST_TOO_LARGE
    torn, _ = make_exchange(body=[b"x" * 5] * 3, whole=False)
    with pytest.raises(ClientGone):
        await torn.read_body(20, 8)


# -- a worker, as a thread


def ask(*bodies: bytes, allowed: Detail | None = None) -> list[Verdict]:
    """Ask a worker that shares nothing but its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=serve, args=(theirs,))
    thread.start()
    verdicts = []
    with theirs, ours:
        assert ours.recv(PACKET) == READY
        for body in bodies:
            spool = Spool.of(body)
            spool.seal()
            question = Question("anthropic", len(body), True, allowed or detail())
            socket.send_fds(ours, [msgspec.json.encode(question)], [spool.fd])
            verdicts.append(msgspec.json.decode(ours.recv(PACKET), type=Verdict))
        ours.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    return verdicts


def test_a_worker_answers_as_the_check_does() -> None:
    """A verdict carries what was asked for, or the refusal whole; nothing of the document."""
    good = body_of(SPOOL_ABOVE + 1)
    bad = json.dumps({**PLAIN, "model": "claude-opus-5"}).encode()
    twice = b'{"model":"a","model":"b"}' + b" " * SPOOL_ABOVE
    answers = ask(good, bad, twice, good)
    assert answers[0].asked == check_body(good, detail(), max_tokens_needed=True)
    assert answers[3] == answers[0]
    for body, answer in ((bad, answers[1]), (twice, answers[2])):
        with pytest.raises(Refusal) as caught:
            check_body(body, detail(), max_tokens_needed=True)
        assert answer == Verdict(problem=caught.value.problem)


def test_a_worker_knows_the_whole_scope() -> None:
    """Features, domains and caps reach the worker as they stand in the token."""
    allowed = detail("url_sources", domains=("docs.test",), cap=10)
    source = {"type": "url", "url": "https://docs.test/a"}
    content = [{"type": "image", "source": source}]
    ask_for = {**PLAIN, "max_tokens": 10, "messages": [{"role": "user", "content": content}]}
    good, over = json.dumps(ask_for).encode(), json.dumps({**ask_for, "max_tokens": 11}).encode()
    answers = ask(good, over, allowed=allowed)
    assert answers[0].asked == Asked((SONNET,), 10, False, 1, 0, writers=1, hour_cache=False)
    assert answers[1].problem is not None
    assert answers[1].problem.field == "max_tokens"
    assert ask(good)[0].problem is not None


def test_every_problem_crosses_the_socket() -> None:
    """A refusal arrives with status, hint and advice unchanged."""
    for code in Code:
        verdict = Verdict(problem=refuse(code, "title", hint="hint", field="f").problem)
        assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict
    assert msgspec.json.decode(b"{}", type=Verdict) == Verdict()
    assert Problem.of(Code.OVERLOADED).retry_after


def test_the_models_of_a_body_are_bounded() -> None:
    """Row 32: a body names a bounded number of models, so what is priced and told is bounded."""
    many = [{"model": f"claude-sonnet-{i}"} for i in range(MAX_MODELS)]
    assert refused({"fallbacks": many}).field == f"fallbacks[{MAX_MODELS - 1}].model"
