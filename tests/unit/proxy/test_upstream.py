"""The request upstream: of the client only its call goes up; our account stays our matter."""

import asyncio
import base64
import gzip
import logging
import random

import pytest
from msgspec import structs

from daypass_core.problem import Code
from daypass_proxy.ledger import LedgerRefused, Outcome
from daypass_proxy.providers import Provider
from daypass_proxy.streams import CallCut, CutReason
from daypass_proxy.transport import UpstreamBroken, UpstreamUnreachable
from daypass_proxy.upstream import ERROR_BODY_MAX
from tests.canary import CANARY
from tests.fakes.call import BODY, make_call
from tests.fakes.transport import JSON, FakeAnswer
from tests.fakes.upstream import KEY, NEWER, Upstream, error


async def test_request_that_goes_up() -> None:
    """The request has our URL, our key, our encoding, the call's headers and its very bytes."""
    up = Upstream(FakeAnswer([b"{}"], headers=JSON))
    reply = await up.send()
    (request,) = up.transport.requests
    assert request.url == "https://api.example/prefix/v1/messages?beta=true"
    assert request.method == "POST"
    assert request.body is BODY
    assert request.headers == (
        (b"anthropic-version", b"2023-06-01"),
        (b"content-type", b"application/json"),
        (b"accept-encoding", b"identity"),
        (b"x-api-key", KEY.encode()),
    )
    assert reply.answer is not None
    assert up.attempt.http_status == 200
    assert up.attempt.upstream_request_id == "req_upstream"
    assert up.attempt.outcome is None


async def test_credentials_of_a_call_never_go_up() -> None:
    """Whatever a provider module lets through, credential and framing headers are ours alone."""
    up = Upstream(FakeAnswer([b"{}"], headers=JSON))
    smuggled = tuple(
        (name, b"evil")
        for name in (
            b"x-api-key", b"authorization", b"host", b"cookie", b"accept-encoding",
            b"content-length", b"transfer-encoding", b"connection", b"api-key",
        )
    )  # fmt: skip
    up.attempt.call = structs.replace(make_call(), headers=(*smuggled, (b"x-app", b"cli")))
    await up.send()
    names = [name for name, _ in up.transport.requests[0].headers]
    assert names == [b"x-app", b"accept-encoding", b"x-api-key"]
    assert b"evil" not in dict(up.transport.requests[0].headers).values()


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308, 304])
async def test_redirect(status: int) -> None:
    """B03 (b), row 14: a redirect is neither followed nor told; the client gets 502."""
    headers = ((b"location", b"http://evil/v1/messages"), *JSON)
    answer = FakeAnswer([b"moved to http://evil"], status=status, headers=headers)
    up = Upstream(answer)
    problem = await up.refused()
    assert (problem.code, problem.status) == (Code.UPSTREAM_BROKEN, 502)
    assert "evil" not in problem.title + problem.hint
    assert len(up.transport.requests) == 1
    assert up.attempt.outcome is Outcome.UPSTREAM_REFUSED
    assert up.attempt.bill().cost_nano == 0
    assert answer.closed


async def test_key_rotated() -> None:
    """A refused key is read again, and with the newer one the call goes through once more."""
    first = error(401, "authentication_error", "invalid x-api-key")
    up = Upstream(first, FakeAnswer([b"{}"], headers=JSON))
    task = asyncio.create_task(up.send())
    await up.rotate(acme=NEWER)
    reply = await task
    assert reply.status == 200
    assert [dict(r.headers)[b"x-api-key"] for r in up.transport.requests] == [
        KEY.encode(),
        NEWER.encode(),
    ]
    assert first.closed
    assert up.attempt.http_status == 200


async def test_second_attempt_has_its_own_row() -> None:
    """B51: the attempt that was refused is settled at nothing before the next one is held."""
    up = Upstream(error(401, "authentication_error", "no"), FakeAnswer([b"{}"], headers=JSON))
    task = asyncio.create_task(up.send())
    await up.rotate(acme=NEWER)
    await task
    first = up.ledger.settlement
    assert (first.usage_id, first.http_status, first.cost_nano) == ("req_test", 401, 0)
    assert first.outcome is Outcome.UPSTREAM_REFUSED
    (second,) = up.ledger.reservations
    assert (second.usage_id, second.attempt) == ("req_test-2", 2)
    assert up.attempt.held.reservation is second
    assert up.attempt.settlement is None
    await up.attempt.settle()
    assert up.ledger.open_rows == 0


async def test_second_attempt_may_be_refused() -> None:
    """B51: where the budget has gone meanwhile nothing is sent again, and nothing stays held."""
    up = Upstream(error(401, "authentication_error", "no"))
    up.ledger.refusal = LedgerRefused("overloaded")
    task = asyncio.create_task(up.refused())
    await up.rotate(acme=NEWER)
    assert (await task).code is Code.RATE_LIMITED
    assert len(up.transport.requests) == 1
    await up.attempt.settle()
    assert up.ledger.settlement.http_status == 401


async def test_no_second_attempt_without_a_client() -> None:
    """A client that left while the first attempt was refused does not cause another."""
    up = Upstream(error(401, "authentication_error", "no"))

    async def send() -> None:
        with pytest.raises(CallCut):
            await up.send()

    task = asyncio.create_task(send())
    await up.transport.arrived.wait()
    up.attempt.client_gone()
    await up.rotate(acme=NEWER)
    await task
    assert len(up.transport.requests) == 1
    await up.attempt.settle()
    assert up.ledger.settlement.cost_nano == 0


async def test_key_refused(caplog: pytest.LogCaptureFixture) -> None:
    """An upstream 401 is our matter: 502, an error in the log, no second try with the same key."""
    up = Upstream(error(401, "authentication_error", f"invalid x-api-key {KEY}"))
    problem = await up.refused()
    assert (problem.code, problem.status) == (Code.UPSTREAM_REFUSED_KEY, 502)
    assert len(up.transport.requests) == 1
    assert up.vault.reads["llm/acme"] == 2
    assert up.attempt.bill().cost_nano == 0
    assert ("upstream_refused_key", logging.ERROR) in [
        (record.message, record.levelno) for record in caplog.records
    ]


async def test_newer_key_refused_too() -> None:
    """One retry, never a loop."""
    refusal = "authentication_error"
    up = Upstream(error(401, refusal, "no"), error(401, refusal, "no"))
    task = asyncio.create_task(up.refused())
    await up.rotate(acme=NEWER)
    assert (await task).code is Code.UPSTREAM_REFUSED_KEY
    assert len(up.transport.requests) == 2


@pytest.mark.parametrize(
    "answer",
    [
        error(402, "billing_error", "credits are used up"),
        error(400, "invalid_request_error", "Your credit balance is too low to access the API."),
        error(400, "invalid_request_error", "You have reached your specified API usage limits."),
        error(400, "invalid_request_error", "This workspace has reached its spend limit."),
        error(429, "billing_error", "limit"),
        # LiteLLM's, of the key's own budget; and what some servers say in one word.
        error(400, "budget_exceeded", "Budget has been exceeded! Current cost: 2", code="400"),
        FakeAnswer([b'{"error":"insufficient_quota"}'], status=429, headers=JSON),
        error(429, "rate_limit_error", "x", details={"error_code": "enforced_spend_limit_reached"}),
    ],
)
async def test_our_bill(answer: FakeAnswer) -> None:
    """Answers about our credit or spend limit are 502 and do not tell a sandbox of our account."""
    problem = await Upstream(answer).refused()
    assert (problem.code, problem.status) == (Code.UPSTREAM_REFUSED_KEY, 502)
    assert "credit" not in problem.title


@pytest.mark.parametrize(
    "answer",
    [
        error(400, "invalid_request_error", "messages: your usage limit text is quoted here"),
        error(403, "permission_error", "not for you"),
        error(404, "not_found_error", "model: x"),
        error(413, "request_too_large", "too large"),
        error(429, "rate_limit_error", "slow down", ((b"retry-after", b"7"), *JSON)),
        error(500, "api_error", "oops"),
        error(529, "overloaded_error", "busy", ((b"x-should-retry", b"true"), *JSON)),
        FakeAnswer([b"not json \xff", b"\x00 at all"], status=503, headers=()),
        FakeAnswer([b""], status=418, headers=JSON),
    ],
)
async def test_error_passes_unmodified(answer: FakeAnswer) -> None:
    """Any other error passes with its status, headers and bytes, and costs nothing."""
    body = b"".join(step for step in answer._steps if isinstance(step, bytes))
    up = Upstream(answer)
    reply = await up.send()
    assert (reply.status, reply.headers, reply.body) == (answer.status, answer.headers, body)
    assert reply.answer is None
    assert answer.closed
    assert up.attempt.outcome is Outcome.UPSTREAM_REFUSED
    assert up.attempt.bill().cost_nano == 0


@pytest.mark.parametrize(
    "said",
    [KEY, KEY[: len(KEY) // 2] + "...", base64.b64encode(KEY.encode()).decode()],
)
async def test_error_that_holds_the_key(said: str, caplog: pytest.LogCaptureFixture) -> None:
    """Row 15: an error body with our key in it is withheld; only its hash is logged."""
    up = Upstream(error(500, "api_error", f"internal: used {said}"))
    problem = await up.refused()
    assert problem.status == 502
    assert [record.message for record in caplog.records] == ["upstream_leaked_key"]
    assert CANARY not in str([record.__dict__ for record in caplog.records])


async def test_coded_error_that_holds_the_key() -> None:
    """Row 15: compression does not hide the key; a coding we cannot read is withheld too."""
    headers = ((b"content-encoding", b"gzip"), *JSON)
    packed = FakeAnswer([gzip.compress(KEY.encode())], status=500, headers=headers)
    assert (await Upstream(packed).refused()).status == 502
    harmless = FakeAnswer([gzip.compress(b"oops")], status=500, headers=headers)
    assert (await Upstream(harmless).send()).status == 500
    unreadable = FakeAnswer([b"x"], status=500, headers=((b"content-encoding", b"br"), *JSON))
    assert (await Upstream(unreadable).refused()).status == 502


async def test_coded_error_that_is_large() -> None:
    """Row 16: what a small error body unpacks to is looked into up to 4 MiB, and withheld beyond:
    everybody waits meanwhile."""
    noise = random.Random(1).randbytes(1024) + bytes(60 * 1024)
    headers = ((b"content-encoding", b"gzip"), *JSON)
    for count, status in ((50, 500), (100, 502)):
        packed = gzip.compress(noise * count)
        up = Upstream(FakeAnswer([packed], status=500, headers=headers))
        if status == 500:
            assert (await up.send()).body == packed
        else:
            assert (await up.refused()).code is Code.UPSTREAM_BROKEN


@pytest.mark.parametrize("size", [1, 7, 20])
async def test_key_split_over_chunks(size: int) -> None:
    """Row 15: a key that comes in pieces is found all the same."""
    body = f'{{"error":{{"message":"used {KEY}"}}}}'.encode()
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    assert (await Upstream(FakeAnswer(pieces, status=500, headers=JSON)).refused()).status == 502


@pytest.mark.parametrize("status", [201, 202, 204, 206, 299])
async def test_other_success(status: int) -> None:
    """Row 15: a success that no call of ours is answered with is not relayed unsearched: 502."""
    answer = FakeAnswer([KEY.encode()], status=status, headers=JSON)
    up = Upstream(answer)
    assert (await up.refused()).code is Code.UPSTREAM_BROKEN
    assert answer.closed
    bill = up.attempt.bill()
    assert (bill.outcome, bill.estimated) == (Outcome.UPSTREAM_BROKEN, True), "it may be billed"


@pytest.mark.parametrize("status", [400, 403, 404, 408, 409, 413, 422, 429, 500, 503, 504, 529])
async def test_no_second_try(status: int) -> None:
    """B51: whatever the provider says but 401, it is asked once; the client decides."""
    headers = ((b"x-should-retry", b"true"), (b"retry-after", b"0"), *JSON)
    up = Upstream(error(status, "api_error", "x", headers), FakeAnswer([b"{}"], headers=JSON))
    assert (await up.send()).status == status
    assert len(up.transport.requests) == 1
    assert up.vault.reads["llm/acme"] == 1


@pytest.mark.parametrize("failure", [UpstreamUnreachable("reset"), UpstreamBroken("not HTTP")])
async def test_no_second_try_after_a_failure(failure: Exception) -> None:
    """B51: a call that left and got no answer is not sent again: it may have been billed."""
    up = Upstream(failure, FakeAnswer([b"{}"], headers=JSON))
    await up.refused()
    assert len(up.transport.requests) == 1


@pytest.mark.parametrize("status", [200, 500])
async def test_header_that_holds_the_key(status: int) -> None:
    """Row 15: no header with our key goes down; an error answer that has one is withheld whole."""
    headers = ((b"anthropic-debug", KEY.encode()), *JSON)
    up = Upstream(FakeAnswer([b"{}"], status=status, headers=headers))
    if status == 200:
        assert (await up.send()).headers == JSON
    else:
        assert (await up.refused()).status == 502


@pytest.mark.parametrize("status", [200, 500])
async def test_request_id_that_holds_the_key(status: int) -> None:
    """Row 15: the id that is booked and logged is one that may go down, or none."""
    headers = ((b"content-type", b"application/json"), (b"request-id", KEY.encode()))
    up = Upstream(FakeAnswer([b"{}"], status=status, headers=headers))
    if status == 200:
        await up.send()
    else:
        await up.refused()
    assert up.attempt.upstream_request_id is None
    assert up.attempt.bill().upstream_request_id is None


async def test_endless_error() -> None:
    """An error body without end is not read without end."""
    piece = b"x" * 65536
    answer = FakeAnswer([piece] * (ERROR_BODY_MAX // 65536 + 2), status=500, headers=JSON)
    assert (await Upstream(answer).refused()).code is Code.UPSTREAM_BROKEN
    assert answer.closed


async def test_error_that_breaks() -> None:
    """An error answer that breaks off is 502 and costs nothing."""
    up = Upstream(FakeAnswer([b"{", UpstreamBroken("reset")], status=500, headers=JSON))
    assert (await up.refused()).code is Code.UPSTREAM_BROKEN
    assert up.attempt.bill().cost_nano == 0


async def test_unreachable() -> None:
    """A provider that cannot be connected to is 529 with a short retry-after, at no cost."""
    up = Upstream()
    up.transport.connects = False
    problem = await up.refused()
    assert (problem.status, problem.code) == (529, Code.UPSTREAM_UNREACHABLE)
    assert problem.retry_after is not None
    assert problem.retry_after <= 10
    bill = up.attempt.bill()
    assert (bill.outcome, bill.cost_nano, bill.estimated) == (Outcome.UNREACHABLE, 0, False)


async def test_no_answer() -> None:
    """A call that left and got no answer is 529, and booked as estimated: it may be billed."""
    up = Upstream(UpstreamUnreachable("ServerDisconnectedError"))
    assert (await up.refused()).status == 529
    bill = up.attempt.bill()
    assert (bill.outcome, bill.estimated) == (Outcome.UPSTREAM_BROKEN, True)
    assert bill.cost_nano > 0


async def test_answer_that_is_not_http() -> None:
    """An answer that is not HTTP is 502."""
    assert (await Upstream(UpstreamBroken("not HTTP")).refused()).status == 502


async def test_no_key() -> None:
    """Without a key nothing is sent: 503."""
    up = Upstream()
    del up.vault.secrets["acme"]
    assert (await up.refused()).code is Code.KEY_UNAVAILABLE
    assert up.transport.requests == []
    assert up.attempt.bill().cost_nano == 0


async def test_key_gone_after_refusal() -> None:
    """A key that is refused and then found deleted leaves nothing to bill."""
    up = Upstream(error(401, "authentication_error", "no"))
    task = asyncio.create_task(up.refused())
    await up.rotate()
    assert (await task).code is Code.UPSTREAM_REFUSED_KEY
    assert up.attempt.bill().cost_nano == 0


async def test_marked_while_the_key_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """B08: a call that was cut sends nothing, though its task was not woken for it yet."""
    up = Upstream(FakeAnswer([b"{}"], headers=JSON))
    ring = up.services.keyring
    read = ring.header_for

    async def header_for(tenant: str, provider: Provider) -> tuple[bytes, bytes]:
        up.attempt.live.reason = CutReason.REVOKED
        return await read(tenant, provider)

    monkeypatch.setattr(ring, "header_for", header_for)
    with pytest.raises(CallCut):
        await up.send()
    assert up.transport.requests == []
    assert not up.attempt.sent


async def test_cut_before_the_answer() -> None:
    """B30 (b): a cut while the provider thinks ends the wait at once."""
    up = Upstream()
    up.transport.gate.clear()
    task = asyncio.create_task(up.send())
    await up.transport.arrived.wait()
    up.attempt.live.cut(CutReason.CLIENT_GONE)
    with pytest.raises(CallCut):
        await task
    up.attempt.note_cut(CutReason.CLIENT_GONE)
    bill = up.attempt.bill()
    assert bill.estimated
    assert bill.usage.output_tokens is None
    assert bill.usage.input_tokens
