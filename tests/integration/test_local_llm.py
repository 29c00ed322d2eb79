"""The real LLM of the demo and the tests: it demands its key, and its counters are its usage."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types import Message

from daypass_proxy.estimate import TEMPLATE_TOKENS
from daypass_proxy.text_tokens import most_tokens
from demo.services.llm import CUT_SLACK_TOKENS, Counters, LocalLlm
from tests.fakes.texts import TEXTS
from tests.servers.client import RawStream

pytestmark = pytest.mark.llm

KEY = "sk-ant-local-test-7f3a9c"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLlm]:
    """One server for the tests of this file."""
    with LocalLlm.start(tmp_path_factory.mktemp("llm"), KEY) as server:
        yield server


@pytest.fixture
def client(llm: LocalLlm) -> Iterator[anthropic.Anthropic]:
    """The official client with the server's own key."""
    with anthropic.Anthropic(base_url=llm.url, api_key=KEY, max_retries=0) as official:
        yield official


def ask(text: str) -> list[anthropic.types.MessageParam]:
    """One user message."""
    return [{"role": "user", "content": text}]


def as_counters(usage: anthropic.types.Usage) -> Counters:
    """What an answer's usage should have added to the server's counters."""
    return Counters(usage.input_tokens, usage.cache_read_input_tokens or 0, usage.output_tokens, 0)


@pytest.mark.parametrize("key", ["sk-ant-wrong", KEY[:-1]])
def test_no_answer_without_its_key(llm: LocalLlm, key: str) -> None:
    """A wrong or shortened key is answered 401 and generates nothing."""
    before = llm.counters()
    with (
        anthropic.Anthropic(base_url=llm.url, api_key=key, max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(model=llm.model, max_tokens=4, messages=ask("hello"))
    assert llm.counters() == before


def test_its_key_is_not_left_lying_about(llm: LocalLlm) -> None:
    """The key is on no command line, in no environment and not in the log."""
    for name in ("cmdline", "environ"):
        assert KEY.encode() not in Path(f"/proc/{llm.pid}/{name}").read_bytes()
    assert KEY not in llm.log.read_text()


def test_a_plain_answer_is_counted_as_it_says(llm: LocalLlm, client: anthropic.Anthropic) -> None:
    """Usage of a plain answer equals the growth of the counters, also when cached."""
    usages = []
    for _ in range(2):
        before = llm.counters()
        answer = client.messages.create(
            model=llm.model, max_tokens=8, messages=ask("Name one river in France.")
        )
        assert llm.counters().since(before) == as_counters(answer.usage)
        assert not answer.usage.cache_creation_input_tokens
        usages.append(answer.usage)
    first, again = map(as_counters, usages)
    assert again.prompt_tokens == 1, "the last token of a known prompt is always evaluated again"
    assert again.prompt_tokens + again.cached_tokens == first.prompt_tokens + first.cached_tokens, (
        "a prompt has the same length from the cache"
    )


def test_a_streamed_answer_is_counted_as_it_says(
    llm: LocalLlm, client: anthropic.Anthropic
) -> None:
    """Usage of a streamed answer, start and end put together, equals the growth of the counters."""
    before = llm.counters()
    with client.messages.stream(
        model=llm.model, max_tokens=8, messages=ask("Name three colours of the sea.")
    ) as stream:
        usage = stream.get_final_message().usage
    assert llm.counters().since(before) == as_counters(usage)


def test_counting_tokens_counts_nothing(llm: LocalLlm, client: anthropic.Anthropic) -> None:
    """count_tokens moves no counter and says the length the answer's usage adds up to."""
    question = ask("How long is a piece of string?")
    before = llm.counters()
    counted = client.messages.count_tokens(model=llm.model, messages=question).input_tokens
    assert llm.counters() == before
    usage = client.messages.create(model=llm.model, max_tokens=1, messages=question).usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted


@pytest.mark.parametrize("kind", TEXTS)
def test_a_prompt_is_no_longer_than_its_bound(
    llm: LocalLlm, client: anthropic.Anthropic, kind: str
) -> None:
    """The model's own tokenizer finds no more tokens in any text than a quote would hold for it."""
    text = TEXTS[kind] * 5
    counted = client.messages.count_tokens(model=llm.model, messages=ask(text)).input_tokens
    bound = most_tokens(json.dumps(text, ensure_ascii=False).encode(), enough=10**9)
    assert counted <= bound + TEMPLATE_TOKENS
    assert counted > len(text) // 20, "it was counted at all"


DELTA = b"event: content_block_delta"


def test_a_cut_stream_is_counted_as_far_as_it_got(llm: LocalLlm) -> None:
    """Of a stream its client leaves, the prompt counts and each token up to a little after."""
    before = llm.counters()
    body = {"model": llm.model, "max_tokens": 400, "stream": True}
    stream = RawStream.post(llm.url, KEY, body | {"messages": ask("Tell a story of a whale.")})
    stream.until(lambda received: received.count(DELTA) >= 6)
    # A client that was held up has been sent more than it looked at.
    stream.sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while stream.read_some():
            pass
    stream.close()
    prompt = as_counters(Message.model_validate(first_event(stream.body)["message"]).usage)
    deltas = stream.body.count(DELTA)
    counted = llm.idle_counters().since(before)
    assert (counted.prompt_tokens, counted.cached_tokens) == (
        prompt.prompt_tokens,
        prompt.cached_tokens,
    )
    assert prompt.predicted_tokens == 0
    assert deltas <= counted.predicted_tokens <= deltas + 2 * CUT_SLACK_TOKENS


def first_event(body: bytes) -> dict[str, Any]:
    """What the first event of a stream says."""
    line = next(line for line in body.split(b"\n") if line.startswith(b"data: "))
    event: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
    assert event["type"] == "message_start"
    return event


def test_a_stopped_server_is_gone(tmp_path: Path) -> None:
    """Leaving the block ends the process; stopping twice does no harm."""
    with LocalLlm.start(tmp_path, KEY) as server:
        pid = server.pid
    assert not Path(f"/proc/{pid}").exists()
    server.stop()
