"""One budget, many calls at once: in one process, and in three on PostgreSQL (B06, B07)."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from decimal import Decimal
from typing import Any

import pytest

from tests.servers.books import assert_books_right
from tests.servers.client import RawStream
from tests.servers.load import BODY, COST_NANO, NumberedAnswers, Streams
from tests.servers.postgres import PostgresServer
from tests.servers.stack import POLICY, Answer, Stack
from tests.servers.stub import Pause, Send, StubUpstream, Wait, chunk
from tests.servers.wire import json_answer, message_json, message_stream, sse_answer
from tests.support import eventually

CALLS = 200
FITTING = 40
MODEL = "claude-sonnet-4-5"
OUTPUT_NANO = 15_000
"""What an output token of the model costs."""
NANO_PER_USD = 1_000_000_000

NEVER_TOO_MUCH = {"DAYPASS_LAG_SECONDS": "0"}
"""So many calls at once make the loop of a slow machine late: none may be turned away for that."""

REJECTING = "{profiles: [coding], over_budget: reject}"

Fleet = tuple[Stack, list[str]]
"""A running stack, and the origins of all its proxies."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("sqlite", 1), id="sqlite"),
        pytest.param(("postgres", 1), id="postgres", marks=pytest.mark.postgres),
        pytest.param(("postgres", 3), id="three_on_postgres", marks=pytest.mark.postgres),
    ],
)
def module_fleet(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    module_stub: StubUpstream,
    keys: str,
) -> Iterator[Fleet]:
    """Proxies on one database, the same for every test of the module in turn."""
    kind, proxies = request.param
    with ExitStack() as ending:
        database_url = ""
        if kind == "postgres":
            server: PostgresServer = request.getfixturevalue("postgres_server")
            database_url = server.new_database()
            ending.callback(server.drop_database, database_url)
        policy = POLICY.replace("globex: {profiles: [coding]}", f"globex: {REJECTING}")
        stack = ending.enter_context(
            Stack(
                tmp_path_factory.mktemp("fleet"),
                module_stub.url,
                keys,
                policy=policy,
                database_url=database_url,
                proxy_settings=NEVER_TOO_MUCH,
            )
        )
        more = [stack.another_proxy(f"proxy-{number}") for number in range(2, proxies + 1)]
        yield stack, [stack.proxy_url, *more]


@pytest.fixture
def fleet(module_fleet: Fleet, upstream: StubUpstream) -> Iterator[Fleet]:
    """The fleet, with a stub that has forgotten earlier tests; its books are right after each."""
    upstream.reset()
    yield module_fleet
    stack = module_fleet[0]
    assert_books_right(stack.database_url)
    for name in stack.processes.keys() - {"broker"}:
        assert "ledger_operation_failed" not in stack.log(name)
        assert "ledger_store_failed" not in stack.log(name)


def usd(nano: int) -> str:
    """Return an amount as the broker takes it."""
    return str(Decimal(nano) / NANO_PER_USD)


def together(call: Callable[[int], Answer]) -> Iterator[Answer]:
    """Make all calls at once, and yield each answer as it comes."""
    with ThreadPoolExecutor(CALLS) as pool:
        barrier = threading.Barrier(CALLS)

        def one(number: int) -> Answer:
            barrier.wait()
            return call(number)

        yield from pool.map(one, range(CALLS))


def at_rest(stack: Stack, sandbox: dict[str, Any]) -> list[dict[str, Any]]:
    """The usage rows of a sandbox once nothing of it is open or held."""

    def resting() -> bool:
        account = stack.account(sandbox)
        return (account["reserved_nano"], account["open_calls"]) == (0, 0)

    eventually(resting, timeout=20)
    return stack.usage(sandbox)


def test_b06_as_many_are_admitted_as_fit(fleet: Fleet, upstream: StubUpstream) -> None:
    """B06: under `reject`, of 200 calls at once exactly those reach the provider that fit whole."""
    stack, urls = fleet
    probe = stack.sandbox("globex")
    assert message(urls[0], stack.access_token(probe)).status == 200
    (row,) = stack.settled(probe)
    ceiling = FITTING * row["reserved_nano"] + row["reserved_nano"] // 2
    sandbox = stack.sandbox("globex", budget_usd=usd(ceiling))
    token = stack.access_token(sandbox)
    upstream.reset()
    # Nobody settles before everybody was answered or admitted: that would make room again.
    upstream.always([Wait("all"), Send(json_answer(200, message_json(MODEL)))])
    statuses: Counter[int] = Counter()
    refused = threading.Semaphore(0)

    def call(number: int) -> Answer:
        answer = message(urls[number % len(urls)], token)
        if answer.status != 200:
            refused.release()
        return answer

    def open_the_gate() -> None:
        for _ in range(CALLS - FITTING):
            refused.acquire(timeout=30)
        upstream.release("all")

    opening = threading.Thread(target=open_the_gate)
    opening.start()
    statuses.update(answer.status for answer in together(call))
    opening.join()
    assert statuses == {200: FITTING, 429: CALLS - FITTING}
    assert len(upstream.requests) == FITTING
    rows = at_rest(stack, sandbox)
    assert [row["outcome"] for row in rows] == ["complete"] * FITTING
    assert stack.account(sandbox)["spent_nano"] <= ceiling


def test_b07_streams_of_one_budget_end_within_it(fleet: Fleet, upstream: StubUpstream) -> None:
    """B07: of 200 streams that all want more than is left, none is paid for beyond the ceiling.

    But for what the provider wrote until it noticed that it was cut: an event of each cut stream.
    """
    stack, urls = fleet
    text = "word " * 80
    events = message_stream(MODEL, texts=[text] * 20, final_usage={"output_tokens": 20 * 100})
    steps = [step for event in events for step in (chunk(event), Pause(0.01))]
    upstream.always([Send(sse_answer()), *steps, Send(b"0\r\n\r\n")])
    ceiling = NANO_PER_USD // 5
    sandbox = stack.sandbox(budget_usd=usd(ceiling))
    token = stack.access_token(sandbox)

    def call(number: int) -> Answer:
        stream = RawStream.post(urls[number % len(urls)], token, BODY | {"max_tokens": 8192})
        stream.rest()
        assert stream.complete
        return Answer(stream.status, {}, stream.body)

    answers = list(together(call))
    assert {answer.status for answer in answers} <= {200, 402, 429}
    rows = at_rest(stack, sandbox)
    assert len(rows) == len(upstream.requests) == sum(one.status == 200 for one in answers) > 0
    cut = sum(row["outcome"] == "cut_budget" for row in rows)
    assert cut == sum(b"billing_error" in one.body for one in answers if one.status == 200) > 0
    bound = cut * len(text) * OUTPUT_NANO
    assert stack.account(sandbox)["spent_nano"] <= ceiling + bound


def test_b33_who_hammers_keeps_nobody_of_its_tenant_out(
    fleet: Fleet, upstream: StubUpstream
) -> None:
    """B33: while a sandbox calls as fast as it can, another one of its tenant is served."""
    stack, urls = fleet
    upstream.always(NumberedAnswers(pause=0.0))
    hammering = stack.sandbox(budget_usd="0.01")
    calm = stack.sandbox()
    token = stack.access_token(calm)
    with Streams(urls, stack.access_token(hammering), clients=60, restless=True) as streams:
        eventually(lambda: streams.statuses[402] > 100, timeout=30)
        answers = [message(urls[n % len(urls)], token) for n in range(30)]
        assert {answer.status for answer in answers} == {200}
    assert len(stack.settled(calm, 30)) == 30


def test_b32_clients_gone_at_every_event_are_billed_once(
    fleet: Fleet, upstream: StubUpstream
) -> None:
    """B32: whatever event a client leaves at, its call has one row, one bill, and no hold left."""
    stack, urls = fleet
    upstream.always(NumberedAnswers(pause=0.005))
    sandbox = stack.sandbox(budget_usd="1000.00")
    events = len(message_stream(MODEL))
    with Streams(urls, stack.access_token(sandbox), abort=True) as streams:
        eventually(
            lambda: set(streams.aborted) >= set(range(events)) and streams.done >= CALLS, timeout=60
        )
    seen = len(upstream.requests)
    rows = at_rest(stack, sandbox)
    assert len(rows) >= seen
    answers = [row["upstream_request_id"] for row in rows if row["upstream_request_id"]]
    assert len(answers) == len(set(answers))
    # Answers are read to their end within the drain, so each is known to the token.
    answered = [row for row in rows if row["upstream_request_id"]]
    assert {row["cost_nano"] for row in answered if not row["estimated"]} == {COST_NANO}
    assert all(row["cost_nano"] > 0 for row in answered)


def message(url: str, token: str) -> Answer:
    """One call without a stream."""
    stream = RawStream.post(url, token, {**BODY, "stream": False})
    stream.rest()
    return Answer(stream.status, {}, stream.body)
