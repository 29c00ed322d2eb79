"""A real OpenBao as a team runs it: data on disk, TLS, audit, seals; and what may log in to it.

`demo.services.openbao` is the quick one in memory. This one outlives `kill` and `restart`, which
leaves it sealed, as a crash does.
"""

import json
import secrets
import ssl
import urllib.request
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from daypass_core.vault_settings import VaultSettings
from demo.services.openbao import SELF_PATHS, START_SECONDS, OpenBao, binary
from demo.services.process import ServiceError, ServiceProcess
from tests.servers.ca import Authority
from tests.servers.cluster import Cluster, Pod
from tests.servers.issuer import Issuer, SigningPair
from tests.servers.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
POLICIES = ROOT / "deploy" / "vault"


class DurableBao(OpenBao):
    """An OpenBao on disk, with a KV mount at `secret` and an audit log."""

    def __init__(self, directory: Path, authority: Authority | None = None) -> None:
        """Start it, initialise and unseal it; with an authority it speaks TLS."""
        directory.mkdir(parents=True, exist_ok=True)
        self.port, cluster_port = free_port(), free_port()
        self.audit_log = directory / "audit.log"
        self.root_token, self._unseal_key = "", ""
        self._directory = directory
        scheme = "http" if authority is None else "https"
        self.address = f"{scheme}://127.0.0.1:{self.port}"
        handlers: list[Any] = [urllib.request.ProxyHandler({})]
        tls = "tls_disable = true"
        if authority is not None:
            authority.server("127.0.0.1")
            pem = authority.file.parent / "127.0.0.1.pem"
            tls = f'tls_cert_file = "{pem}"\n  tls_key_file = "{pem}"'
            trust = ssl.create_default_context(cafile=authority.file)
            handlers.append(urllib.request.HTTPSHandler(context=trust))
        self._opener = urllib.request.build_opener(*handlers)
        (directory / "data").mkdir(exist_ok=True)
        self._config = directory / "bao.hcl"
        self._config.write_text(f"""
storage "raft" {{
  path = "{directory / "data"}"
  node_id = "one"
  performance_multiplier = 1
}}
listener "tcp" {{
  address = "127.0.0.1:{self.port}"
  cluster_address = "127.0.0.1:{cluster_port}"
  {tls}
}}
api_addr = "{self.address}"
cluster_addr = "https://127.0.0.1:{cluster_port}"
audit "file" "file" {{
  options {{
    file_path = "{self.audit_log}"
  }}
}}
""")
        self._process = self._spawn()
        try:
            self._begin()
        except BaseException:
            self.stop()
            raise

    def restart(self, *, unseal: bool = True) -> None:
        """Start it again on its data, after `kill` or `stop`."""
        self._process = self._spawn()
        self._process.wait_until(lambda: self._says(503), START_SECONDS)
        if unseal:
            self.unseal()

    def unseal(self) -> None:
        """Undo `seal`, and wait until it is the active node."""
        super().unseal()
        self._process.wait_until(self._takes_logins, START_SECONDS)

    @property
    def killed(self) -> bool:
        """Whether it does not run."""
        return not self._process.running()

    def audited(self) -> list[dict[str, Any]]:
        """Every whole line of the audit log."""
        lines = self.audit_log.read_text().split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def policy(self, name: str, text: str) -> None:
        """Write a policy."""
        self.request("PUT", f"sys/policies/acl/{name}", {"policy": text})

    def _spawn(self) -> ServiceProcess:
        command = [str(binary()), "server", f"-config={self._config}"]
        return ServiceProcess("openbao", command, self._directory, environment={})

    def _begin(self) -> None:
        self._process.wait_until(lambda: self._says(501), START_SECONDS)
        made = self.request("PUT", "sys/init", {"secret_shares": 1, "secret_threshold": 1})
        self.root_token, self._unseal_key = made["root_token"], made["keys_base64"][0]
        self.unseal()
        self.request("POST", "sys/mounts/secret", {"type": "kv", "options": {"version": "2"}})
        self._process.wait_until(self._takes_reads, START_SECONDS)

    def _takes_logins(self) -> bool:
        """Say whether it can store tokens again: that comes a moment after reads."""
        try:
            self.request("POST", "auth/token/create", {"ttl": "60s"})
        except (OSError, ServiceError):
            return False
        return True

    def _says(self, status: int) -> bool:
        try:
            self.request("GET", "sys/health")
        except ServiceError as error:
            return f"→ {status} " in str(error)
        except OSError:
            return False
        return status == 200


def shipped(name: str) -> str:
    """The text of a policy that the repository ships."""
    return (POLICIES / f"{name}.hcl").read_text(encoding="utf-8")


def reading(*paths: str) -> str:
    """A policy that reads these ("secret/data/llm/acme") and lets a token know itself."""
    rules = {**dict.fromkeys(paths, "read"), **SELF_PATHS}
    return "\n".join(
        f'path "{path}" {{ capabilities = ["{word}"] }}' for path, word in rules.items()
    )


def approle(
    bao: OpenBao, folder: Path, policy: str, *, name: str = "proxy", **role: object
) -> VaultSettings:
    """Let a policy log in by AppRole; return the settings, with the secret id in a file."""
    enable(bao, "approle")
    bao.request("POST", f"auth/approle/role/{name}", {"token_policies": [policy], **role})
    role_id = bao.request("GET", f"auth/approle/role/{name}/role-id")["data"]["role_id"]
    file = folder / f"{name}.secret-id"
    new_secret_id(bao, file, name)
    return VaultSettings(bao.address, role_id=role_id, secret_id_file=file)


def new_secret_id(bao: OpenBao, file: Path, name: str = "proxy") -> str:
    """Put a new secret id into the file; return its accessor, by which it can be destroyed."""
    made = bao.request("POST", f"auth/approle/role/{name}/secret-id")["data"]
    replace(file, made["secret_id"])
    return str(made["secret_id_accessor"])


def jwt(bao: OpenBao, issuer: Issuer, policy: str, **role: object) -> None:
    """Let a policy log in with tokens of an issuer, whose keys are told beforehand."""
    enable(bao, "jwt")
    keys = [public_pem(issuer.pairs[name]) for name in ("ES256", "RS256")]
    bao.request("POST", "auth/jwt/config", {"jwt_validation_pubkeys": keys})
    bao.request("POST", "auth/jwt/role/proxy", {
        "role_type": "jwt", "bound_audiences": ["vault"], "user_claim": "sub",
        "bound_subject": "daypass-proxy", "token_policies": [policy], **role,
    })  # fmt: skip


def kubernetes(bao: OpenBao, cluster: Cluster, ca: Path, policy: str, **role: object) -> None:
    """Let a policy log in with service-account tokens, which a cluster reviews."""
    enable(bao, "kubernetes")
    cluster.allowed.add("reviewer")
    bao.request("POST", "auth/kubernetes/config", {
        "kubernetes_host": cluster.url, "kubernetes_ca_cert": ca.read_text(),
        "token_reviewer_jwt": "reviewer", "disable_local_ca_jwt": True,
    })  # fmt: skip
    bao.request("POST", "auth/kubernetes/role/proxy", {
        "bound_service_account_names": ["daypass-proxy"], "audience": "vault",
        "bound_service_account_namespaces": ["daypass"], "token_policies": [policy], **role,
    })  # fmt: skip


PROXY_POD = Pod("daypass-proxy-0", "pod-uid-1", "daypass", "daypass-proxy")


def enable(bao: OpenBao, method: str) -> None:
    """Mount an auth method, unless it is."""
    if f"{method}/" not in bao.request("GET", "sys/auth")["data"]:
        bao.request("POST", f"sys/auth/{method}", {"type": method})


def replace(file: Path, text: str) -> None:
    """Put another content into a file as agents do: written beside it, then renamed."""
    beside = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    beside.write_text(text)
    beside.chmod(0o600)
    beside.rename(file)


def swap(link: Path, text: str) -> None:
    """Put another content behind a symlink as kubelets do: a new folder, then the link to it."""
    folder = link.parent / f"..{secrets.token_hex(4)}"
    folder.mkdir()
    (folder / link.name).write_text(text)
    beside = link.parent / f".{secrets.token_hex(4)}"
    beside.symlink_to(folder / link.name)
    beside.rename(link)


def refuses(bao: OpenBao, token: str, method: str, path: str, body: object = None) -> bool:
    """Say whether this is refused to a token, as a matter of policy."""
    try:
        bao.request(method, path, body, token=token)
    except ServiceError as error:
        return "→ 403 " in str(error)
    return False


def public_pem(pair: SigningPair) -> str:
    """The public half of an issuer's key."""
    public = pair.private.public_key()
    return str(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())
