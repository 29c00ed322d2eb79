"""A whole daypass as real processes: one broker and one proxy over one database, for tests.

The processes get an empty environment plus their settings, write their logs below the test's
folder, and are stopped with SIGTERM; then the books must be right. The database is a SQLite file
there unless a URL is given; `another_proxy()` puts more proxies on it. On PostgreSQL the URL is the
owner's, who migrates; broker and proxies run as members of their roles.
"""

import http.client
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import psycopg
import psycopg.rows

from tests.servers.books import assert_books_right
from tests.servers.ports import free_port
from tests.servers.ready import ready_file
from tests.servers.record import record
from tests.servers.roles import BROKER, PROXY, as_member
from tests.support import eventually

POLICY = """
profiles:
  coding:
    authorization_details:
      - type: llm_inference
        provider: anthropic
        endpoints: [messages, count_tokens, models]
        models: ["claude-*", "smollm2-135m-instruct"]
    budget_usd: "5.00"
    max_budget_usd: "1000.00"
    lifetime_seconds: 14400
    max_lifetime_seconds: 86400
    token_ttl_seconds: 600
    launch: reusable
tenants:
  acme: {profiles: [coding]}
  globex: {profiles: [coding]}
orchestrators:
  acme-ci: {tenant: acme}
  globex-ci: {tenant: globex}
"""


@dataclass
class Answer:
    """Status, headers (lower-case names) and body of one HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def call(
    url: str,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
) -> Answer:
    """One HTTP request to a loopback origin such as `http://127.0.0.1:8700`."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=timeout)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        lower = {name.lower(): value for name, value in answer.getheaders()}
        found = Answer(answer.status, lower, answer.read())
        record(repr(lower).encode() + found.body)
        return found
    finally:
        connection.close()


def read(database_url: str, query: str, *values: object) -> list[dict[str, Any]]:
    """Read rows of a database, as dictionaries; `?` stands for a value."""
    if database_url.startswith("postgresql"):
        dsn = database_url.replace("+psycopg", "")
        with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
            return connection.execute(query.replace("?", "%s").encode(), values).fetchall()
    path = database_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reading:
        reading.row_factory = sqlite3.Row
        return [dict(row) for row in reading.execute(query, values)]


@dataclass
class Stack:
    """One broker and one proxy; a context manager. `database_url` names an empty database."""

    folder: Path
    upstream_url: str
    keys: str  # value of DAYPASS_ANTHROPIC_KEYS
    policy: str = POLICY
    proxy_settings: Mapping[str, str] = field(default_factory=dict)
    broker_settings: Mapping[str, str] = field(default_factory=dict)
    admin_credential: str = ""
    database_url: str = ""
    openai_keys: str = ""
    """Value of DAYPASS_OPENAI_KEYS; the stub speaks that API too."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.database_url = self.database_url or f"sqlite:///{self.folder / 'daypass.db'}"
        self.proxy_socket = self.folder / "p.sock"
        self.broker_socket = self.folder / "b.sock"
        self.proxy_port, self.admin_port = free_port(), free_port()
        self.proxy_url = f"http://127.0.0.1:{self.proxy_port}"
        self.admin_url = f"http://127.0.0.1:{self.admin_port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._members: dict[str, str] = {}

    @property
    def common(self) -> dict[str, str]:
        """Settings that broker and proxy share."""
        return {
            "PATH": os.defpath,
            "DAYPASS_ISSUER": self.proxy_url,
            "DAYPASS_LOG_LEVEL": "debug",
        }

    def database_of(self, role: str) -> str:
        """The URL of the database for a member of a role."""
        if role not in self._members:  # asked once: later the server may be away
            self._members[role] = as_member(self.database_url, role)
        return self._members[role]

    @property
    def broker_environment(self) -> dict[str, str]:
        """All settings of the broker."""
        return self.common | {
            "DAYPASS_DATABASE_URL": self.database_of(BROKER),
            "DAYPASS_BROKER_INTERNAL": f"unix:{self.broker_socket}",
            "DAYPASS_BROKER_ADMIN": f"127.0.0.1:{self.admin_port}",
            "DAYPASS_BROKER_KEYS_DIR": str(self.folder / "keys"),
            "DAYPASS_PUBLIC_URL": self.proxy_url,
            "DAYPASS_MIN_TOKEN_TTL": "2",
            **self.broker_settings,
        }

    @property
    def proxy_environment(self) -> dict[str, str]:
        """All settings of the proxy."""
        return self.common | {
            "DAYPASS_DATABASE_URL": self.database_of(PROXY),
            "DAYPASS_PROXY_LISTEN": f"127.0.0.1:{self.proxy_port},unix:{self.proxy_socket}",
            "DAYPASS_BROKER_URL": f"unix:{self.broker_socket}",
            "DAYPASS_ANTHROPIC_URL": self.upstream_url,
            "DAYPASS_ANTHROPIC_KEYS": self.keys,
            **self._openai,
            **self.proxy_settings,
        }

    @property
    def _openai(self) -> dict[str, str]:
        url = f"{self.upstream_url}/v1"
        keys = {"DAYPASS_OPENAI_URL": url, "DAYPASS_OPENAI_KEYS": self.openai_keys}
        return keys if self.openai_keys else {}

    def __enter__(self) -> Self:
        try:
            (self.folder / "policy.yaml").write_text(self.policy)
            self.admin_credential = self._make_ready()
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: object = None, *exc: object) -> None:
        self.stop()
        if kind is None:
            assert_books_right(self.database_url)

    def _make_ready(self) -> str:
        """Make the database ready for the services; return the admin's credential."""
        file = self.folder / "daypass.db"
        if self.database_url != f"sqlite:///{file}":
            return self._by_commands()
        kind = (self.policy, self.broker_environment["DAYPASS_MIN_TOKEN_TTL"])
        return ready_file(file, kind, self._by_commands)

    def _by_commands(self) -> str:
        self.owner_command("migrate")
        credential = self.new_credential("admin")
        self.broker_command("apply", str(self.folder / "policy.yaml"))
        return credential

    def broker_command(self, *words: str) -> str:
        """Run one command of the broker and return what it printed."""
        return self._command(words, self.broker_environment)

    def owner_command(self, *words: str) -> str:
        """Do as `broker_command` with the login that owns the database."""
        return self._command(words, self.common | {"DAYPASS_DATABASE_URL": self.database_url})

    def _command(self, words: Sequence[str], environment: Mapping[str, str]) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "daypass_broker", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def new_credential(self, role: str, *more: str) -> str:
        """Make a credential and return its text."""
        out = self.broker_command("credential", "create", "--role", role, *more, "--json")
        return cast(str, json.loads(out)["credential"])

    def start(self) -> None:
        """Start both at once; the proxy is asked second, when there are keys for it to read."""
        self._spawn_broker()
        self.spawn_proxy()
        self._await_ready("broker", self.admin_url)
        self._await_ready("proxy", self.proxy_url)

    def start_broker(self) -> None:
        """Start the broker and wait until it is ready."""
        self._spawn_broker()
        self._await_ready("broker", self.admin_url)

    def start_proxy(self) -> None:
        """Start the proxy and wait until it is ready."""
        self.spawn_proxy()
        self._await_ready("proxy", self.proxy_url)

    def _spawn_broker(self) -> None:
        self._spawn("broker", ["-m", "daypass_broker", "serve"], self.broker_environment)

    def spawn_proxy(self) -> None:
        """Start the proxy, whatever becomes of it."""
        self._spawn("proxy", ["-m", "daypass_proxy", "serve"], self.proxy_environment)

    def another_proxy(self, name: str) -> str:
        """Start a further proxy on the same database and return its origin."""
        port = free_port()
        environment = self.proxy_environment | {"DAYPASS_PROXY_LISTEN": f"127.0.0.1:{port}"}
        self._spawn(name, ["-m", "daypass_proxy", "serve"], environment)
        self._await_ready(name, f"http://127.0.0.1:{port}")
        return f"http://127.0.0.1:{port}"

    def log(self, name: str) -> str:
        """What one process has logged so far, in whole lines: one may be half-way to the file."""
        text = (self.folder / f"{name}.log").read_text(errors="replace")
        return text[: text.rfind("\n") + 1]

    def complete_log(self, name: str) -> str:
        """The log of broker or proxy with all that came before: it is in order, and comes late."""
        if name == "broker":
            last = self.admin("GET", "/v1/policy")
        else:
            last = call(self.proxy_url, "GET", "/v1/self")
        eventually(lambda: last.headers["request-id"] in self.log(name), timeout=20)
        return self.log(name)

    def _spawn(self, name: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *arguments], env=environment, stdout=log, stderr=log
            )

    def _await_ready(self, name: str, url: str) -> None:
        def ready() -> bool:
            assert self.processes[name].poll() is None, f"{name} ended: {self.log(name)[-3000:]}"
            try:
                return call(url, "GET", "/readyz", timeout=2).status == 200
            except (OSError, http.client.HTTPException):
                return False

        eventually(ready, timeout=90)

    def stop_process(self, name: str, with_signal: int = signal.SIGTERM) -> int:
        """End one process and return its exit status."""
        process = self.processes.pop(name)
        process.send_signal(with_signal)
        try:
            return process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise

    def stop(self) -> None:
        """End every process."""
        for name in reversed(list(self.processes)):
            self.stop_process(name)

    def admin(
        self,
        method: str,
        path: str,
        body: object = None,
        credential: str | None = None,
        url: str | None = None,
        **extra: str,
    ) -> Answer:
        """One request to the admin listener, by default as admin; `url` is another broker's."""
        headers = {"authorization": f"Bearer {credential or self.admin_credential}"}
        headers |= {name.replace("_", "-"): value for name, value in extra.items()}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["content-type"] = "application/json"
        return call(url or self.admin_url, method, path, data, headers)

    def sandbox(self, tenant: str = "acme", **fields: object) -> dict[str, Any]:
        """Register a sandbox."""
        answer = self.admin("POST", "/v1/sandboxes", {"tenant": tenant, **fields})
        assert answer.status == 201, answer.body
        return cast(dict[str, Any], answer.json())

    def exchange(self, sandbox: Mapping[str, Any], url: str | None = None) -> Answer:
        """Ask for an access token at the proxy or another, as the official SDKs do."""
        body = {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": sandbox["launch"]["credential"],
            "federation_rule_id": sandbox["environment"]["ANTHROPIC_FEDERATION_RULE_ID"],
            "organization_id": sandbox["environment"]["ANTHROPIC_ORGANIZATION_ID"],
        }
        headers = {"content-type": "application/json"}
        body_bytes = json.dumps(body).encode()
        return call(url or self.proxy_url, "POST", "/v1/oauth/token", body_bytes, headers)

    def access_token(self, sandbox: Mapping[str, Any]) -> str:
        """An access token of a sandbox."""
        answer = self.exchange(sandbox)
        assert answer.status == 200, answer.body
        return cast(str, answer.json()["access_token"])

    def message(self, token: str, **fields: object) -> Answer:
        """One `POST /v1/messages` with sane fields unless given."""
        body = {
            "model": "claude-sonnet-4-5",
            "max_tokens": 64,
            "messages": [{"role": "user", "content": "hi"}],
        } | fields
        headers = {
            "authorization": f"Bearer {token}",
            "content-type": "application/json",
            "anthropic-version": "2023-06-01",
        }
        return call(self.proxy_url, "POST", "/v1/messages", json.dumps(body).encode(), headers)

    def post(self, token: str, path: str, body: object) -> Answer:
        """One POST of a JSON body with an access token."""
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        return call(self.proxy_url, "POST", path, json.dumps(body).encode(), headers)

    def usage(self, sandbox: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The usage rows of one sandbox, oldest first, as they stand in the database."""
        query = "SELECT * FROM usage WHERE sandbox = ? ORDER BY started_at, id"
        return self.rows(query, sandbox["id"])

    def account(self, sandbox: Mapping[str, Any]) -> dict[str, Any]:
        """The account row of one sandbox."""
        (row,) = self.rows("SELECT * FROM account WHERE sandbox = ?", sandbox["id"])
        return row

    def incidents(self, subject: str) -> dict[str, int]:
        """How often each kind of incident was counted for one subject."""
        query = "SELECT kind, SUM(count) AS count FROM incident WHERE subject = ? GROUP BY kind"
        return {row["kind"]: row["count"] for row in self.rows(query, subject)}

    def rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        """Read from the database without going through the services; `?` stands for a value."""
        return read(self.database_url, query, *values)

    def settled(self, sandbox: Mapping[str, Any], count: int = 1) -> list[dict[str, Any]]:
        """The usage rows of one sandbox once there are `count` and all of them are settled."""

        def rows() -> list[dict[str, Any]] | None:
            found = self.usage(sandbox)
            done = len(found) == count and all(row["state"] == "settled" for row in found)
            return found if done else None

        return eventually(rows, timeout=20) or []
