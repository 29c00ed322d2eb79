"""Two brokers and two proxies over one PostgreSQL database, and watchers that say when one refuses.

Each proxy passes token requests on to a broker of its own; the brokers share their signing keys, as
they would a volume. `Watch` asks one proxy again and again with one token, on one connection, and
notes when the first refusal came back.
"""

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.servers.ports import free_port
from tests.servers.stack import Answer, Stack
from tests.servers.stub import StubUpstream

PAUSE_SECONDS = 0.001
"""Between two questions of a watcher."""


@dataclass
class Fleet(Stack):
    """A stack and its double; `proxies` and `brokers` are the origins of each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.second_proxy, self.second_admin = free_port(), free_port()
        self.second_socket = self.folder / "b2.sock"

    @property
    def proxies(self) -> tuple[str, str]:
        """Origins of the proxies."""
        return self.proxy_url, f"http://127.0.0.1:{self.second_proxy}"

    @property
    def brokers(self) -> tuple[str, str]:
        """Origins of the brokers' admin listeners."""
        return self.admin_url, f"http://127.0.0.1:{self.second_admin}"

    def start(self) -> None:
        """Start the brokers, then the proxies."""
        self.start_broker()
        self.start_proxy()

    def start_broker(self) -> None:
        """Start both brokers; the first makes the keys that the second finds."""
        super().start_broker()
        environment = self.broker_environment | {
            "DAYPASS_BROKER_INTERNAL": f"unix:{self.second_socket}",
            "DAYPASS_BROKER_ADMIN": f"127.0.0.1:{self.second_admin}",
        }
        self._spawn("broker2", ["-m", "daypass_broker", "serve"], environment)
        self._await_ready("broker2", self.brokers[1])

    def start_proxy(self) -> None:
        """Start both proxies."""
        super().start_proxy()
        environment = self.proxy_environment | {
            "DAYPASS_PROXY_LISTEN": f"127.0.0.1:{self.second_proxy}",
            "DAYPASS_BROKER_URL": f"unix:{self.second_socket}",
        }
        self._spawn("proxy2", ["-m", "daypass_proxy", "serve"], environment)
        self._await_ready("proxy2", self.proxies[1])

    def sandboxes(self, count: int, tenant: str = "acme", **fields: object) -> list[dict[str, Any]]:
        """Register many sandboxes, a hundred in each request."""
        made: list[dict[str, Any]] = []
        while len(made) < count:
            body = {"tenant": tenant, "count": min(100, count - len(made)), **fields}
            answer = self.admin("POST", "/v1/sandboxes", body)
            assert answer.status == 201, answer.body
            made += answer.json()["sandboxes"]
        return made

    def revoke(self, scope: str, ident: str | None, *, broker: int = 0, **fields: object) -> Answer:
        """Revoke at one of the brokers; fails unless it is confirmed."""
        body = {"scope": scope, **({"ident": ident} if ident else {}), **fields}
        answer = self.admin("POST", "/v1/revocations", body, url=self.brokers[broker])
        assert answer.status == 201, answer.body
        return answer

    def revoke_silently(self, sandbox: Mapping[str, Any]) -> None:
        """Store the revocation of a sandbox and let the notification of it be lost."""
        with self.database() as connection:
            connection.execute("UPDATE revocation_version SET version = version + 1")
            connection.execute(
                "INSERT INTO revocation SELECT 'rev_' || version, 'sandbox', %s, NULL,"
                " 9999999999, '', 'test', 0, version FROM revocation_version",
                (sandbox["id"],),
            )

    def listeners(self) -> set[int]:
        """The connections on which the proxies wait for notifications, by their server's pids."""
        with self.database() as connection:
            found = connection.execute(
                "SELECT pid FROM pg_stat_activity"
                " WHERE application_name = 'daypass-revocations' AND datname = current_database()"
            )
            return {pid for (pid,) in found.fetchall()}

    def end_listeners(self) -> set[int]:
        """End these connections; return which they were."""
        ended = self.listeners()
        with self.database() as connection:
            for pid in ended:
                connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
        return ended

    @contextlib.contextmanager
    def database(self) -> Iterator[psycopg.Connection]:
        """A connection of the owner; commits."""
        with psycopg.connect(self.database_url.replace("+psycopg", "")) as connection:
            yield connection


@dataclass
class Watch:
    """One proxy asked again and again until it refuses; a context manager.

    Times are `time.perf_counter()`: when the last question was put that was still answered with
    200, and when the answer came that refused.
    """

    url: str
    token: str
    path: str = "/v1/models"
    last_accepted: float = 0.0
    refused_at: float = 0.0
    status: int = 0
    accepted: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _begun: threading.Event = field(default_factory=threading.Event)
    _refused: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._ask_on, daemon=True)
        self._thread.start()
        assert self._begun.wait(10), "the token was never accepted"
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def wait(self, timeout: float) -> None:
        """Wait for the refusal; fails when it does not come."""
        assert self._refused.wait(timeout), f"{self.url} still accepts after {timeout} s"

    def _ask_on(self) -> None:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=10)
        headers = {"authorization": f"Bearer {self.token}"}
        try:
            while not self._stop.is_set():
                asked = time.perf_counter()
                connection.request("GET", self.path, headers=headers)
                answer = connection.getresponse()
                answer.read()
                if answer.status == 200:
                    self.last_accepted, self.accepted = asked, self.accepted + 1
                    self._begun.set()
                elif self._begun.is_set():
                    self.refused_at, self.status = time.perf_counter(), answer.status
                    self._refused.set()
                    return
                time.sleep(PAUSE_SECONDS)
        finally:
            connection.close()


def keys_below(folder: Any, stub: StubUpstream) -> str:
    """Write the provider keys that a stub takes, one for each tenant, and return the setting."""
    for key in stub.keys:
        (folder / f"{key.rpartition('-')[2]}.secret").write_text(key)
    return f"*=file://{folder}/{{tenant}}.secret"
