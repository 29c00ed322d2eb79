"""One scripted answer of a provider on its way through the real relay to a client in memory."""

import asyncio
import json

from daypass_proxy.attempt import Attempt, Reply
from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.ledger import Outcome
from daypass_proxy.providers.anthropic import Anthropic
from daypass_proxy.relay import relay
from daypass_proxy.transport import UpstreamRequest
from tests.fakes.call import MODEL, make_attempt, make_call
from tests.fakes.clock import FakeClock
from tests.fakes.exchange import FakeClient
from tests.fakes.ledger import FakeLedger
from tests.fakes.transport import STREAM, FakeAnswer, Step
from tests.servers.wire import (
    message_start,
    message_stream,
    text_delta,
)

START = message_start(MODEL, {"input_tokens": 1000, "output_tokens": 1})
WHOLE = message_stream(MODEL, ["안녕 ", "😀", "é", "x" * 100_000])
PROVIDER = Anthropic()


class Run:
    """One answer on its way to one client."""

    def __init__(
        self,
        *steps: Step,
        headers: HeaderPairs = STREAM,
        in_buffer: bytes = b"",
        endpoint: str = "messages",
        max_output_tokens: int = 100,
        output_tokens: int | None = None,
    ) -> None:
        """`output_tokens` are held of those asked for, all when None."""
        self.client = FakeClient()
        self.answer = FakeAnswer(steps, headers=headers, in_buffer=in_buffer)
        call = make_call(endpoint=endpoint, max_output_tokens=max_output_tokens)
        self.attempt: Attempt = make_attempt(FakeLedger(), call, output_tokens=output_tokens)
        self.attempt.request = UpstreamRequest("POST", "http://up", (), b"{}", sent=True)
        self.attempt.http_status = 200
        self.clock = FakeClock()

    async def relay(self) -> "Run":
        """Relay the answer to its end."""
        reply = Reply(self.answer.status, self.answer.headers, self.answer)
        await relay(reply, self.attempt, self.client.exchange, PROVIDER, self.clock)
        return self

    def start(self) -> "asyncio.Task[Run]":
        """Relay in a task of its own."""
        return asyncio.create_task(self.relay())

    @property
    def said(self) -> dict[str, str]:
        """The error object of the event that ends the answer."""
        head, _, data = self.client.body.rpartition(b"event: error\ndata: ")
        assert head == b"" or head.endswith(b"\n\n"), head[-40:]
        assert data.endswith(b"\n\n")
        error: dict[str, str] = json.loads(data)["error"]
        return error


def torn(*steps: Step, in_buffer: bytes = b"") -> Run:
    """Return a run whose upstream says the start, one text and then these steps."""
    return Run(START, text_delta("Hello"), *steps, in_buffer=in_buffer)


def check_torn(run: Run) -> None:
    """Check what holds for every answer that did not come whole."""
    assert run.answer.closed
    assert run.client.finished or run.client.aborted
    bill = run.attempt.bill()
    assert bill.outcome is not Outcome.COMPLETE
    assert bill.estimated
    assert bill.usage.input_tokens == 1000
