"""Calls of the real stack as the provider bills them, and the books that must say the same."""

from collections.abc import Iterator
from typing import Any, cast

from tests.servers.client import RawStream
from tests.servers.stack import Stack
from tests.servers.stub import Pause, Script, Send, chunk
from tests.servers.wire import MESSAGE_STOP, message_delta, message_start, sse_answer, text_delta
from tests.support import eventually

MODEL = "claude-sonnet-4-5"  # 3.00 in, 15.00 out; 3 and 15 micro-dollars a token
IN, OUT = 3_000, 15_000
BODY: dict[str, object] = {
    "model": MODEL,
    "max_tokens": 64_000,
    "stream": True,
    "messages": [{"role": "user", "content": "hi"}],
}
END = Send(b"0\r\n\r\n")
START = message_start(MODEL, {"input_tokens": 1000, "output_tokens": 1})


def bill(output: int, inputs: int = 1000) -> int:
    """What the provider takes, in nano-dollars."""
    return inputs * IN + output * OUT


def stream_of(events: int, output: int, size: int = 40) -> Script:
    """A stream of so many texts, and what it says it wrote."""
    texts = [chunk(text_delta("x" * size)) for _ in range(events)]
    rest = [chunk(message_delta({"output_tokens": output})), chunk(MESSAGE_STOP), END]
    return [Send(sse_answer()), chunk(START), *texts, *rest]


def post(stack: Stack, sandbox: dict[str, Any], **fields: object) -> RawStream:
    """Begin one call."""
    return RawStream.post(stack.proxy_url, stack.access_token(sandbox), BODY | fields)


def at_rest(stack: Stack, sandbox: dict[str, Any], rows: int) -> dict[str, Any]:
    """The account once so many calls are settled: nothing is held, all is the sum of its rows."""
    found = eventually(lambda: settled(stack, sandbox, rows), timeout=30.0)
    account = stack.account(sandbox)
    assert account["reserved_nano"] == account["tokens_reserved"] == account["open_calls"] == 0
    assert account["spent_nano"] == sum(row["cost_nano"] for row in found)
    return account


def settled(stack: Stack, sandbox: dict[str, Any], rows: int) -> list[dict[str, Any]]:
    """The rows of a sandbox, or none while one of them is open."""
    found = stack.usage(sandbox)
    done = len(found) == rows and all(row["state"] == "settled" for row in found)
    return found if done else []


class Writing:
    """A provider that writes while it is read, a token a byte, and counts what it wrote."""

    def __init__(self, most: int = 64_000, seconds: float = 0.0) -> None:
        self.wrote = 0
        self._most = most
        self._seconds = seconds

    def script(self) -> Script:
        """An answer that goes on until somebody hangs up."""
        return cast(Script, self._steps())

    def _steps(self) -> Iterator[object]:
        yield Send(sse_answer())
        yield chunk(START)
        while self.wrote < self._most:
            self.wrote += 20
            yield chunk(text_delta("x" * 20))
            if self._seconds:
                yield Pause(self._seconds)
        yield chunk(message_delta({"output_tokens": self._most}))
        yield chunk(MESSAGE_STOP)
        yield END
