"""What becomes of a call that may need more than is left: clamp, cutoff, reject; and bound B."""

import json
from concurrent.futures import ThreadPoolExecutor

from tests.servers.billed import BODY, OUT, Writing, at_rest, bill, post, stream_of
from tests.servers.client import RawStream
from tests.servers.stack import Stack
from tests.servers.stub import StubUpstream
from tests.servers.wire import MESSAGE_STOP


def test_clamp(stack: Stack, upstream: StubUpstream) -> None:
    """Policy clamp: max_tokens is lowered to what is left, and nothing else of the body."""
    sandbox = stack.sandbox(budget_usd="0.10", over_budget="clamp")
    upstream.next(stream_of(1, 5))
    stream = post(stack, sandbox)
    stream.rest()
    assert stream.status == 200
    (row,) = stack.settled(sandbox)
    sent = json.loads(upstream.requests[0].body)
    assert sent == BODY | {"max_tokens": sent["max_tokens"]}
    assert 1024 <= sent["max_tokens"] < 64_000
    assert len(upstream.requests[0].body) == int(upstream.requests[0].header("content-length")[0])
    assert row["reserved_nano"] == 0 or row["reserved_nano"] <= 100_000_000


def test_cutoff_lowers_what_comes_whole(stack: Stack, upstream: StubUpstream) -> None:
    """Policy cutoff: an answer that does not stream cannot be cut, so it is asked for less."""
    sandbox = stack.sandbox(budget_usd="0.10")
    assert stack.message(stack.access_token(sandbox), max_tokens=64_000).status == 200
    assert 1024 <= json.loads(upstream.requests[0].body)["max_tokens"] < 64_000


def test_cutoff_lowers_thinking_without_a_budget(stack: Stack, upstream: StubUpstream) -> None:
    """Policy cutoff: a stream that may think all of its answer is asked for what is left.

    Only the digits of its max_tokens change. It is admitted, comes whole, and costs no more than
    its budget though the provider bills all that it was asked for.
    """
    sandbox = stack.sandbox(budget_usd="0.10")
    adaptive = {"type": "adaptive"}
    # Text of more bytes than there are tokens left, so a hold that grew would have it cut.
    upstream.always(lambda asked: stream_of(200, json.loads(asked.body)["max_tokens"]))
    stream = post(stack, sandbox, thinking=adaptive)
    stream.rest()
    assert (stream.status, MESSAGE_STOP in stream.body) == (200, True)
    (sent,) = upstream.requests
    most = json.loads(sent.body)["max_tokens"]
    assert 1_024 <= most < 8_000
    assert sent.body == json.dumps(BODY | {"max_tokens": most, "thinking": adaptive}).encode()
    (row,) = stack.settled(sandbox)
    assert (row["outcome"], row["stream"], row["output_tokens"]) == ("complete", 1, most)
    account = at_rest(stack, sandbox, 1)
    assert account["spent_nano"] == bill(most) <= account["ceiling_nano"]
    assert account["overdraft_nano"] == 0


def test_reject(stack: Stack, upstream: StubUpstream) -> None:
    """Policy reject: what may cost more than is left does not go up; what cannot, does."""
    sandbox = stack.sandbox(budget_usd="0.10", over_budget="reject")
    token = stack.access_token(sandbox)
    assert stack.message(token, max_tokens=64_000).status == 402
    assert stack.message(token, max_tokens=1_000).status == 200
    assert json.loads(upstream.requests[0].body)["max_tokens"] == 1_000


def test_a_long_stream_is_extended(stack: Stack, upstream: StubUpstream) -> None:
    """Policy cutoff: a stream of 30 kB grows on a budget that could not hold it whole at first."""
    sandbox = stack.sandbox(budget_usd="0.60")
    upstream.next(stream_of(750, 7_500))
    stream = post(stack, sandbox)
    stream.rest()
    assert MESSAGE_STOP in stream.body
    (row,) = stack.settled(sandbox)
    assert (row["outcome"], row["estimated"], row["output_tokens"]) == ("complete", 0, 7_500)
    assert at_rest(stack, sandbox, 1)["spent_nano"] == bill(7_500)


def test_cut_within_the_bound(stack: Stack, upstream: StubUpstream) -> None:
    """Policy cutoff: a stream is cut where its budget ends; the provider's bill is within bound B.

    The provider here writes 4,000 tokens a second, and each byte is one. It may have written what
    was under way when the connection closed, and no more.
    """
    sandbox = stack.sandbox(budget_usd="0.05")
    writing = Writing(seconds=0.005)
    upstream.next(writing.script())
    stream = post(stack, sandbox)
    stream.rest()
    assert stream.status == 200
    error = json.loads(stream.body.rpartition(b"data: ")[2])["error"]
    assert error["type"] == "billing_error"
    assert stream.complete, "told in the provider's words, and ended"
    upstream.requests[0].peer_gone.wait(5)
    (row,) = stack.settled(sandbox)
    assert (row["outcome"], row["estimated"], row["input_tokens"]) == ("cut_budget", 1, 1000)
    passed = stream.body.count(b'"text_delta"') * 20
    assert row["output_tokens"] >= passed // 4
    assert bill(passed) <= 50_000_000
    in_flight = writing.wrote - passed
    assert in_flight <= 24_000, "six seconds at this pace, of sixteen"
    assert bill(writing.wrote) <= 50_000_000 + in_flight * OUT
    assert bill(passed) > 40_000_000, "what is left is used, but for the last slice"
    account = at_rest(stack, sandbox, 1)
    assert account["spent_nano"] <= account["ceiling_nano"]


def test_two_streams_share_what_is_left(stack: Stack, upstream: StubUpstream) -> None:
    """Streams of one budget are cut one by one; all together, at four bytes a token, within it.

    A stream that was cut is booked at that, and what it held beyond is there for the others.
    """
    sandbox = stack.sandbox(budget_usd="0.10")
    upstream.always(lambda _: Writing(seconds=0.002).script())
    token = stack.access_token(sandbox)
    with ThreadPoolExecutor(4) as pool:
        streams = list(pool.map(lambda _: whole(stack, token), range(4)))
    passed = [stream.body.count(b'"text_delta"') * 20 for stream in streams if stream.status == 200]
    assert len(passed) >= 2
    assert sum(bill(text // 4) for text in passed) <= 100_000_000
    account = at_rest(stack, sandbox, len(passed))
    assert account["spent_nano"] <= account["ceiling_nano"]


def whole(stack: Stack, token: str) -> RawStream:
    """One call to its end."""
    stream = RawStream.post(stack.proxy_url, token, BODY)
    stream.rest()
    return stream
