"""Clients that call at a steady rate whatever happens, each for a sandbox of its own.

Used where something must cost nobody a call: a rotation, an outage. A context manager; what was not
answered with 200 is in `failed`.
"""

import base64
import http.client
import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from tests.servers.stack import Answer, Stack
from tests.support import eventually

BODY = json.dumps(
    {
        "model": "claude-sonnet-4-5",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "hi"}],
    }
).encode()


def kid_of(token: str) -> str:
    """The key id in the header of a token."""
    part = token.split(".")[0]
    header = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return str(header["kid"])


class Steady:
    """`rate` calls a second in all; each client takes a new token after every `token_calls`.

    From one address eight may ask for a token at the same time, so more clients would be refused.
    """

    def __init__(
        self, stack: Stack, *, clients: int = 6, rate: float = 100, token_calls: int | None = 16
    ) -> None:
        self._stack = stack
        self._pause = clients / rate
        self._token_calls = token_calls
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.calls = 0
        self.failed: list[str] = []
        self.clients = clients
        self.kids: dict[str, str] = {}
        """By sandbox: the key of its newest token that was good for a call."""
        sandboxes = [stack.sandbox() for _ in range(clients)]
        self._threads = [
            threading.Thread(target=self._client, args=[sandbox, i * self._pause / clients])
            for i, sandbox in enumerate(sandboxes)
        ]

    def __enter__(self) -> "Steady":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def started(self) -> None:
        """Wait until every client has made a call."""
        eventually(lambda: self.failed or len(self.kids) == self.clients, timeout=30)
        assert self.failed == []

    def all_use(self, kid: str) -> bool:
        """Whether every client's newest token is signed by this key."""
        return set(self.kids.values()) == {kid}

    def _client(self, sandbox: Mapping[str, Any], offset: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._stack.proxy_port, timeout=30)
        due, token, left = time.monotonic() + offset, "", 0
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due += self._pause
            try:
                if not token or left == 0:
                    token, left = self._stack.access_token(sandbox), self._token_calls or -1
                left -= 1
                answer = self._call(connection, token)
                problem = "" if answer.status == 200 else f"{answer.status} {answer.body!r}"
            except (OSError, http.client.HTTPException, AssertionError) as error:
                connection.close()
                problem = repr(error)
            with self._lock:
                self.calls += 1
                if problem:
                    self.failed.append(problem)
                else:
                    self.kids[sandbox["id"]] = kid_of(token)
        connection.close()

    @staticmethod
    def _call(connection: http.client.HTTPConnection, token: str) -> Answer:
        headers = {
            "authorization": f"Bearer {token}",
            "content-type": "application/json",
            "anthropic-version": "2023-06-01",
        }
        connection.request("POST", "/v1/messages", BODY, headers)
        answer = connection.getresponse()
        return Answer(answer.status, {}, answer.read())
