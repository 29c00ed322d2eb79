"""The whole fleet: PostgreSQL, OpenBao, brokers and proxies, and the two services before them.

Broker, proxy and migration are what the chart renders; values only say where this machine's
servers are, and shorten drains and leases so that a fault takes seconds.
"""

import http.client
import itertools
import json
import secrets
import signal
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Self, cast

from demo.services.openbao import OpenBao
from tests.canary import CANARY
from tests.fleet import chart
from tests.fleet.database import Database
from tests.fleet.load import Loop
from tests.fleet.pod import Container, Pod
from tests.fleet.provider import Provider
from tests.fleet.service import PROPAGATION_SECONDS, Endpoint, Service
from tests.servers import transit
from tests.servers.ca import Authority
from tests.servers.stack import POLICY
from tests.support import eventually

KEY = f"sk-ant-{CANARY}-fleet"
TENANTS = ("acme", "globex")
LEASE_SECONDS = 10
DRAIN_SECONDS = 20
RESTART = 2.0
"""Seconds until a process that has ended is started anew."""
PROXY_NAME = f"{chart.RELEASE}-proxy.{chart.NAMESPACE}.svc"


class Cell:
    """Everything running; a context manager."""

    def __init__(
        self, folder: Path, *, proxies: int = 3, brokers: int = 2, stream_seconds: float = 2.0
    ) -> None:
        self.folder = folder
        self.loop = Loop()
        folder.mkdir(parents=True, exist_ok=True)
        self.database = Database(folder / "postgres.log")
        self.provider = Provider(KEY, stream_seconds)
        self.proxies, self.brokers = Service(), Service()
        self.pods: dict[str, Pod] = {}
        self.counts = {"proxy": proxies, "broker": brokers}
        self.movable_clocks = False
        self._addresses = itertools.count(1)
        # Not those of another fleet on this machine, which listens on the same ports.
        self._network = f"127.{secrets.randbelow(200) + 10}.{secrets.randbelow(250)}"
        self._containers: dict[str, Container] = {}
        self._admin = ""
        self._ending = threading.Event()
        self._keeping = threading.Thread(target=self._keep_running, daemon=True)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._ending.set()
        if self._keeping.is_alive():
            self._keeping.join(10)
        for pod in self.pods.values():
            pod.stop()
        self.loop.run(self.proxies.close())
        self.loop.run(self.brokers.close())
        self.loop.run(self.provider.close())
        if hasattr(self, "bao"):
            self.bao.stop()
        self.database.stop()
        self.loop.close()

    @property
    def tls(self) -> ssl.SSLContext:
        """What clients trust."""
        return ssl.create_default_context(cafile=str(self._authority.file))

    def _start(self) -> None:
        self._authority = Authority(self.folder)
        self.database.start()
        self.bao = OpenBao.start(self.folder / "openbao")
        transit.enable(self.bao)
        self.bao.put("secret/llm/acme", api_key=KEY)
        self.bao.put("secret/llm/globex", api_key=KEY)
        self.loop.run(self.provider.start())
        relay = self.loop.run(self.brokers.relay("127.0.0.1"))
        self._make_logins()
        self._render(f"http://127.0.0.1:{relay}")
        self.execute("migrate", ())
        self.database.run(
            "GRANT daypass_broker TO fleet_broker", "GRANT daypass_proxy TO fleet_proxy"
        )
        (self._policy / "policy.yaml").write_text(POLICY)
        self.execute("broker", ("apply", "/run/policy/policy.yaml"))
        words = ("credential", "create", "--role", "admin", "--json")
        self._admin = json.loads(self.execute("broker", words))["credential"]
        for kind in ("broker", "proxy"):
            for _ in range(self.counts[kind]):
                self.start_pod(kind)
            self.await_ready(kind)
        self._keeping.start()

    def _make_logins(self) -> None:
        self._passwords = {each: secrets.token_urlsafe(12) for each in ("owner", "broker", "proxy")}
        for each, words in self._passwords.items():
            able = "CREATEROLE" if each == "owner" else ""
            self.database.run(f"CREATE ROLE fleet_{each} LOGIN {able} PASSWORD '{words}'")
        self.database.run(
            "ALTER DATABASE daypass OWNER TO fleet_owner",
            "ALTER SCHEMA public OWNER TO fleet_owner",
        )

    def _render(self, broker_url: str) -> None:
        self._policy = self.folder / "policy"
        self._policy.mkdir()
        self._containers = chart.containers(
            self._values(broker_url), self._secrets(), self.folder / "secrets"
        )

    def _values(self, broker_url: str) -> dict[str, Any]:
        return {
            "database": {"port": self.database.port},
            "vault": {
                "address": self.bao.address,
                "auth": "token",
                "broker": {"existingSecret": "vault-broker"},
                "proxy": {"existingSecret": "vault-proxy"},
            },
            "providers": {"anthropicUrl": self.provider.url, "sharedKeys": True},
            "broker": {"replicas": self.counts["broker"], "drainSeconds": DRAIN_SECONDS},
            "proxy": {
                "replicas": self.counts["proxy"],
                "brokerUrl": broker_url,
                "drainSeconds": DRAIN_SECONDS,
                "settings": {"DAYPASS_LEASE_SECONDS": str(LEASE_SECONDS)},
            },
        }

    def _secrets(self) -> dict[str, dict[str, str]]:
        logins = {
            f"{each}-url": self.database.url(f"fleet_{each}", words)
            for each, words in self._passwords.items()
        }
        return {
            "daypass-database": logins,
            "vault-broker": {"token": transit.token(self.bao)},
            "vault-proxy": {"token": self.bao.token_for(["secret/llm/*"])},
            "daypass-proxy-tls": self._certificate(PROXY_NAME),
            "daypass-broker-tls": self._certificate("broker.test.svc"),
        }

    def _certificate(self, name: str) -> dict[str, str]:
        self._authority.server(name)
        pem = (self.folder / f"{name}.pem").read_text()
        return {"tls.crt": pem, "tls.key": pem}

    def execute(self, kind: str, words: tuple[str, ...]) -> str:
        """Run another command in a container of this kind, or its own; return what it printed."""
        known = self._containers[kind]
        command = (*known.command[:-1], *words) if words else known.command
        mounts = {**known.mounts, "/run/policy": self._policy}
        values = {**vars(known), "command": command, "mounts": mounts}
        pod = Pod(f"{kind}-exec", f"{self._network}.250", Container(**values), self.folder)
        pod.log.unlink(missing_ok=True)
        pod.start()
        status = pod.wait(60)
        printed = pod.log.read_text()
        assert status == 0, f"{kind} {words}: {printed}"
        return printed

    def start_pod(self, kind: str) -> Pod:
        """Start one more pod of a kind; it is probed from now on."""
        number = next(self._addresses)
        pod = Pod(
            f"{kind}-{number}",
            f"{self._network}.{number % 200 + 1}",
            self._containers[kind],
            self.folder,
        )
        if self.movable_clocks:
            pod.use_movable_clock()
        self.pods[pod.name] = pod
        pod.start()
        self.loop.run(self._probe(kind, pod))
        return pod

    async def _probe(self, kind: str, pod: Pod) -> None:
        known = pod.container
        self.service(kind).add(Endpoint(pod.name, pod.host, known.port, known.ready, known.live))

    def _keep_running(self) -> None:
        """Start processes that have ended anew after a moment, as a kubelet does."""
        since: dict[str, float] = {}
        while not self._ending.wait(0.2):
            for pod in list(self.pods.values()):
                if pod.running or not pod.wanted:
                    since.pop(pod.name, None)
                    continue
                gone = time.monotonic() - since.setdefault(pod.name, time.monotonic())
                endpoint = self.service(pod.kind).endpoints.get(pod.name)
                if gone > PROPAGATION_SECONDS and endpoint is not None:
                    endpoint.ready = False  # no probe is needed to see that
                if gone > RESTART:
                    del since[pod.name]
                    pod.start()

    def use_movable_clocks(self) -> None:
        """Start everything anew with clocks that can be moved, once."""
        if self.movable_clocks:
            return
        self.movable_clocks = True
        self.database.kill()
        self.database.use_movable_clock()
        self.database.resume()
        for kind in ("broker", "proxy"):
            self.roll(kind)

    def service(self, kind: str) -> Service:
        """The service of a kind."""
        return self.proxies if kind == "proxy" else self.brokers

    def of(self, kind: str) -> list[Pod]:
        """The pods of a kind, oldest first."""
        return [pod for pod in self.pods.values() if pod.name.startswith(f"{kind}-")]

    def await_ready(self, kind: str, timeout: float = 240.0) -> None:
        """Wait until every pod of a kind is ready."""
        endpoints = self.service(kind).endpoints

        def ready() -> bool:
            return all(one.ready for one in endpoints.values())

        eventually(ready, timeout=timeout)

    def retire(self, pod: Pod) -> int:
        """End a pod as a cluster does: SIGTERM, out of its service a moment later; its status."""
        service = self.service(pod.kind)
        pod.wanted = False
        pod.signal(signal.SIGTERM)
        self.loop.run(service.leave(pod.name))
        status = pod.wait(pod.container.grace_seconds)

        async def remove() -> None:
            service.remove(pod.name)

        self.loop.run(remove())
        del self.pods[pod.name]
        return status

    def roll(self, kind: str) -> list[int]:
        """Replace every pod of a kind, a new one first each time; exit statuses of the old."""
        found = []
        for pod in self.of(kind):
            self.start_pod(kind)
            self.await_ready(kind)
            found.append(self.retire(pod))
        return found

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """One request to some broker's admin listener; fails unless it succeeds."""
        pod = next(pod for pod in self.of("broker") if pod.running)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(pod.host, 8701, timeout=30, context=context)
        headers = {
            "authorization": f"Bearer {self._admin}",
            "content-type": "application/json",
        }
        try:
            connection.request(method, path, json.dumps(body).encode(), headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        assert answer.status in (200, 201), content
        return json.loads(content)

    def sandboxes(self, count: int, tenant: str, **fields: object) -> list[dict[str, Any]]:
        """Register sandboxes."""
        body = {"tenant": tenant, "count": count, **fields}
        return cast(list[dict[str, Any]], self.admin("POST", "/v1/sandboxes", body)["sandboxes"])


def uptime() -> str:
    """How busy this machine is."""
    return subprocess.run(["uptime"], capture_output=True, text=True, check=False).stdout.strip()
