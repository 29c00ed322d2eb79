"""Where a bench runs: its folder, the fake upstream, the real broker, and one real access token."""

import http.client
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.process import LOAD_CORE, PROXY_CORE, BenchError, Process, free_port

if TYPE_CHECKING:
    from bench.interpreter import Interpreter

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "bench"
REAL_KEY = "sk-ant-real-0123456789abcdef"
AUDIENCE = "daypass-proxy"
PARTS = ("core", "proxy", "broker", "migrations")
# A budget that no run can spend, and a token that outlives one.
POLICY = """
profiles:
  bench:
    authorization_details:
      - type: llm_inference
        provider: anthropic
        endpoints: [messages, count_tokens, models]
        models: ["claude-*"]
    budget_usd: "900000000.00"
    max_budget_usd: "900000000.00"
    lifetime_seconds: 14400
    max_lifetime_seconds: 86400
    token_ttl_seconds: 3600
    launch: reusable
tenants:
  acme: {profiles: [bench]}
orchestrators:
  acme-ci: {tenant: acme}
"""


class Site:
    """Upstream and broker, and every process started on top of them; use as a context manager."""

    def __init__(
        self,
        folder: Path,
        upstream_program: Path,
        python: "Interpreter",
        other_python: "Interpreter | None" = None,
        tree: Path = ROOT,
    ) -> None:
        """`tree` is the checkout whose broker and proxy run, the proxy on `python`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._import_from = [tree / part for part in PARTS] + [ROOT]
        self.folder = folder
        self.bodies = folder / "bodies"
        self.bodies.mkdir(exist_ok=True)
        self.upstream_port, self.admin_port = free_port(), free_port()
        self.issuer = f"http://127.0.0.1:{free_port()}"
        self._upstream_program = upstream_program
        self.python, self.other_python = python, other_python
        self._processes: list[Process] = []
        self.token = ""
        self.jwks: dict[str, Any] = {}

    def __enter__(self) -> "Site":
        try:
            self.start("upstream", [self._upstream_program, self.upstream_port], core=LOAD_CORE)
            self._processes[-1].wait_port(self.upstream_port)
            self._start_broker()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self, name: str, command: list[Any], **more: Any) -> Process:
        """Start a process that ends with the site."""
        process = Process(name, [str(w) for w in command], self.folder / f"{name}.log", **more)
        self._processes.append(process)
        return process

    def end(self, process: Process) -> None:
        """Stop one process before the others."""
        self._processes.remove(process)
        process.stop()

    def stop(self) -> None:
        """End everything."""
        while self._processes:
            self._processes.pop().stop()

    @property
    def _common(self) -> dict[str, str]:
        return {
            "PYTHONPATH": ":".join(str(folder) for folder in self._import_from),
            "PYTHONDONTWRITEBYTECODE": "1",
            "DAYPASS_ISSUER": self.issuer,
            "DAYPASS_DATABASE_URL": f"sqlite:///{self.folder / 'daypass.db'}",
        }

    @property
    def _broker_environment(self) -> dict[str, str]:
        return self._common | {
            "PATH": "/usr/bin:/bin",
            "DAYPASS_BROKER_INTERNAL": f"unix:{self.folder / 'b.sock'}",
            "DAYPASS_BROKER_ADMIN": f"127.0.0.1:{self.admin_port}",
            "DAYPASS_BROKER_KEYS_DIR": str(self.folder / "keys"),
            "DAYPASS_PUBLIC_URL": self.issuer,
        }

    def start_proxy(self, name: str, port: int, flags: list[str] | None, python: Path) -> Process:
        """Start a proxy; `flags` are those of bench.proxy_main, None is the product as it is."""
        key = self.folder / "key.secret"
        key.write_text(REAL_KEY)
        key.chmod(0o600)
        settings = self._common | {
            "DAYPASS_PROXY_LISTEN": f"127.0.0.1:{port}",
            "DAYPASS_BROKER_URL": f"unix:{self.folder / 'b.sock'}",
            "DAYPASS_ANTHROPIC_URL": f"http://127.0.0.1:{self.upstream_port}",
            "DAYPASS_ANTHROPIC_KEYS": f"*=file://{key}",
            "DAYPASS_SHARED_KEYS": "1",
            # One sandbox stands for all here.
            "DAYPASS_SANDBOX_CONNECTIONS": "100000",
            "DAYPASS_PROXY_METRICS_LISTEN": f"unix:{self.folder / f'{port}.metrics'}",
        }
        program = ["daypass_proxy"] if flags is None else ["bench.proxy_main", *flags]
        command = [python, "-m", *program, "serve"]
        process = self.start(name, command, core=PROXY_CORE, environment=settings)
        process.wait_port(port)
        return process

    def _broker(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "daypass_broker", *words],
            env=self._broker_environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode:
            raise BenchError(f"the broker refused {words}: {done.stdout}{done.stderr}")
        return done.stdout

    def _start_broker(self) -> None:
        self._broker("migrate")
        made = self._broker("credential", "create", "--role", "admin", "--json")
        self._credential = str(json.loads(made)["credential"])
        policy = self.folder / "policy.yaml"
        policy.write_text(POLICY)
        self._broker("apply", str(policy))
        command = [sys.executable, "-m", "daypass_broker", "serve"]
        broker = self.start("broker", command, core=LOAD_CORE, environment=self._broker_environment)
        broker.wait_port(self.admin_port)

    def take_token(self, proxy_port: int) -> None:
        """Register a sandbox, exchange its launch credential at the proxy, read the key set."""
        bearer = {"authorization": f"Bearer {self._credential}"}
        self._sandbox = call(self.admin_port, "/v1/sandboxes", {"tenant": "acme"}, bearer)
        self.renew_token(proxy_port)
        self.jwks = _jwks(self.folder / "b.sock")

    def renew_token(self, proxy_port: int) -> None:
        """Take a token that lives another hour."""
        environment = self._sandbox["environment"]
        exchange = {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": self._sandbox["launch"]["credential"],
            "federation_rule_id": environment["ANTHROPIC_FEDERATION_RULE_ID"],
            "organization_id": environment["ANTHROPIC_ORGANIZATION_ID"],
        }
        self.token = str(call(proxy_port, "/v1/oauth/token", exchange)["access_token"])


def call(port: int, path: str, body: object, headers: dict[str, str] | None = None) -> Any:
    """POST JSON to a loopback port; raises BenchError unless the answer is 2xx."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        sent = {"content-type": "application/json"} | (headers or {})
        connection.request("POST", path, json.dumps(body), sent)
        answer = connection.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise BenchError(f"{path} on port {port} answered {answer.status}: {data[:500]!r}")
        return json.loads(data)
    finally:
        connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("broker", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def _jwks(broker_socket: Path) -> dict[str, Any]:
    connection = _UnixConnection(broker_socket)
    try:
        connection.request("GET", "/.well-known/jwks.json")
        found: dict[str, Any] = json.loads(connection.getresponse().read())
        return found
    finally:
        connection.close()
