"""Many clients that stream at the same time through whatever happens, and what they saw of it.

The provider's answers carry a number each, as its `request-id`, so that what a client saw can be
found again among the usage rows.
"""

import itertools
import random
import threading
from collections import Counter
from collections.abc import Sequence

from tests.servers.client import RawStream
from tests.servers.stub import Pause, Recorded, Script, Send, Step, chunk
from tests.servers.wire import head, message_stream

MODEL = "claude-sonnet-4-5"
BODY: dict[str, object] = {
    "model": MODEL,
    "max_tokens": 64,
    "stream": True,
    "messages": [{"role": "user", "content": "x"}],
}
COST_NANO = 25 * 3_000 + 15 * 15_000
"""What each whole answer costs: 25 input tokens at 3 USD a million, 15 output tokens at 15."""
_HEAD = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("transfer-encoding", "chunked"),
    ("connection", "close"),
)


class NumberedAnswers:
    """Answers for a stub: a stream of some events, `pause` seconds between two of them."""

    def __init__(self, pause: float = 0.02) -> None:
        self._numbers = itertools.count()
        self._pause = pause

    def __call__(self, recorded: Recorded) -> Script:
        """Return the script of one answer."""
        name = ("request-id", f"req_stub_{next(self._numbers)}")
        steps: list[Step] = [Send(head(200, [*_HEAD, name]))]
        for event in message_stream(MODEL):
            steps += [chunk(event), Pause(self._pause)]
        return [*steps, Send(b"0\r\n\r\n")]


class Streams:
    """Clients in threads of their own, each with one stream after the other; a context manager.

    They are shared out among the proxies at `urls`. A stream that is refused or torn is followed by
    the next after a moment, with `restless` at once. With `abort`, a client hangs up after a random
    number of events of each answer, none of them and all of them included.
    """

    def __init__(
        self,
        urls: Sequence[str],
        token: str,
        clients: int = 50,
        *,
        abort: bool = False,
        restless: bool = False,
    ) -> None:
        self.completed: set[str] = set()
        self.statuses: Counter[int] = Counter()
        self.aborted: Counter[int] = Counter()
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._token, self._abort = token, abort
        self._rest = 0.0 if restless else 0.05
        self._threads = [
            threading.Thread(target=self._run, args=(urls[n % len(urls)], random.Random(n)))
            for n in range(clients)
        ]

    def __enter__(self) -> "Streams":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    @property
    def done(self) -> int:
        """How many streams came to the end that their client wanted."""
        return len(self.completed) + self.aborted.total()

    def wait_for(self, more: int, timeout: float = 90.0) -> None:
        """Block until so many more streams are done."""
        with self._changed:
            wanted = self.done + more
            if not self._changed.wait_for(lambda: self.done >= wanted, timeout):
                raise AssertionError(f"{self.done} streams of {wanted}; answers: {self.statuses}")

    def _run(self, url: str, choose: random.Random) -> None:
        while not self._ending.is_set():
            try:
                served = self._stream(url, choose)
            except OSError:
                served = False
            if not served:
                self._ending.wait(self._rest)

    def _stream(self, url: str, choose: random.Random) -> bool:
        stream = RawStream.post(url, self._token, BODY)
        events = choose.randrange(len(message_stream(MODEL)) + 1) if self._abort else None
        try:
            while not stream.complete and (events is None or stream.body.count(b"\n\n") < events):
                if not stream.read_some():
                    break
        finally:
            stream.close()
        if not stream.head:
            return events == 0 and self._note(aborted=0)
        with self._changed:
            self.statuses[stream.status] += 1
        if stream.status != 200:
            return False
        if events is not None and not stream.complete:
            return stream.body.count(b"\n\n") >= events and self._note(aborted=events)
        return stream.complete and self._note(completed=stream.header("request-id"))

    def _note(self, completed: str = "", aborted: int | None = None) -> bool:
        with self._changed:
            if completed:
                self.completed.add(completed)
            if aborted is not None:
                self.aborted[aborted] += 1
            self._changed.notify_all()
        return True
