"""The policies that the repository ships: everything that is needed works, nothing beyond does."""

import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import daypass_migrations
from daypass_broker import db
from daypass_broker.keys import Purpose
from daypass_broker.signing import Signer
from daypass_broker.transit import Transit
from daypass_core.secret import Secret
from daypass_core.vault import Vault, VaultRefused
from daypass_core.vault_settings import Auth, VaultSettings
from demo.services.openbao import OpenBao, binary
from tests.servers.ca import Authority
from tests.servers.cluster import Cluster
from tests.servers.issuer import SigningPair, sign
from tests.servers.vault import PROXY_POD, ROOT, approle, public_pem, refuses, shipped
from tests.support import make_claims
from tests.unit.broker.key_time import Ring

pytestmark = pytest.mark.openbao

README = ROOT / "deploy" / "vault" / "README.md"
CLUSTER = "https://cluster.example.com:6443"
SIGNING = ("daypass-access", "daypass-launch", "daypass-renewal")
BEYOND_PROXY = [
    ("LIST", "secret/metadata/llm", None),
    ("GET", "secret/metadata/llm/acme", None),
    ("POST", "secret/data/llm/acme", {"data": {"api_key": "planted"}}),
    ("DELETE", "secret/data/llm/acme", None),
    ("POST", "secret/delete/llm/acme", {"versions": [1]}),
    ("PUT", "secret/destroy/llm/acme", {"versions": [1]}),
    ("GET", "secret/data/llm/acme/nested", None),
    ("GET", "secret/data/other", None),
    ("GET", "secret/config", None),
    ("POST", "auth/token/create", {}),
    ("POST", "auth/token/renew-self", {}),
    ("POST", "auth/approle/role/proxy/secret-id", {}),
    ("GET", "sys/mounts", None),
    ("GET", "sys/policies/acl/proxy", None),
    ("PUT", "sys/policies/acl/proxy", {"policy": 'path "*" { capabilities = ["sudo"] }'}),
    ("GET", "cubbyhole/x", None),
    ("POST", "transit/sign/daypass-access", {"input": "aGk="}),
    ("POST", "sys/tools/random/8", {}),
]
BEYOND_BROKER = [
    ("POST", "transit/keys/daypass-access/config", {"exportable": True}),
    ("POST", "transit/keys/daypass-access/config", {"deletion_allowed": True}),
    ("POST", "transit/keys/daypass-access/trim", {"min_available_version": 1}),
    ("DELETE", "transit/keys/daypass-access", None),
    ("GET", "transit/export/signing-key/daypass-access", None),
    ("GET", "transit/backup/daypass-access", None),
    ("POST", "transit/keys/daypass-other", {"type": "ecdsa-p256"}),
    ("POST", "transit/keys/daypass-access", {"type": "ecdsa-p256", "exportable": True}),
    ("POST", "transit/keys/daypass-access", {"type": "rsa-2048"}),
    ("POST", "transit/encrypt/daypass-access", {"plaintext": "aGk="}),
    ("POST", "transit/sign/other", {"input": "aGk="}),
    ("LIST", "transit/keys", None),
    ("GET", "secret/data/llm/acme", None),
    ("POST", "auth/token/create", {}),
    ("GET", "sys/mounts", None),
]


@pytest.fixture(scope="module")
def bao(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBao]:
    """One server with the two policies, a key to read, a transit engine, and a key of others."""
    with OpenBao.start(tmp_path_factory.mktemp("openbao")) as server:
        server.put("secret/llm/acme", api_key="sk-of-acme")
        server.request("POST", "sys/mounts/transit", {"type": "transit"})
        server.request("POST", "transit/keys/other", {"type": "ecdsa-p256"})
        for name in ("proxy", "broker"):
            server.request("PUT", f"sys/policies/acl/{name}", {"policy": shipped(name)})
        yield server


def token(bao: OpenBao, policy: str) -> str:
    """A token with one policy and no other."""
    asked = {"policies": [policy], "no_default_policy": True, "ttl": "1h"}
    return str(bao.request("POST", "auth/token/create-orphan", asked)["auth"]["client_token"])


def test_the_proxy_reads_its_keys(bao: OpenBao, tmp_path: Path) -> None:
    """With proxy.hcl a proxy logs in, reads a key and knows how long its token lives."""
    file = tmp_path / "token"
    file.write_text(token(bao, "proxy"))
    for settings in (
        approle(bao, tmp_path, "proxy", token_no_default_policy=True, token_ttl="1h"),
        VaultSettings(bao.address, token_file=file),
    ):
        vault = Vault(settings)
        vault.reach()
        assert vault.read("secret", "llm/acme", "api_key") == Secret("sk-of-acme")
        assert 3500 < (vault.seconds_left or 0) <= 3600
        with pytest.raises(VaultRefused):
            vault.read("secret", "other", "api_key")
        vault.close()


@pytest.mark.parametrize(("method", "path", "body"), BEYOND_PROXY)
def test_nothing_beyond_for_the_proxy(bao: OpenBao, method: str, path: str, body: object) -> None:
    """With proxy.hcl this is refused, to a token that can read the key."""
    held = token(bao, "proxy")
    assert not refuses(bao, held, "GET", "secret/data/llm/acme")
    assert refuses(bao, held, method, path, body)


def test_the_broker_makes_signs_and_rotates(bao: OpenBao, tmp_path: Path) -> None:
    """With broker.hcl a broker makes its three keys, signs with each, and rotates each."""
    url = f"sqlite:///{tmp_path / 'daypass.db'}"
    daypass_migrations.upgrade(url)
    engine: sa.Engine = db.connect(url)
    login = approle(bao, tmp_path, "broker", name="broker", token_no_default_policy=True)
    vault = Vault(login)
    ring = Ring(
        engine, {"transit": Transit(vault, "transit", "daypass")}, options={"make_in": "transit"}
    )
    Signer(ring.keys).check(*Purpose)
    for purpose in Purpose:
        ring.rotate(purpose)
    ring.after(600)
    Signer(ring.keys).check(*Purpose)
    claims = make_claims(key_id=ring.kid(), now=ring.time.ms // 1000)
    assert Signer(ring.keys).sign_access(claims)
    for name in SIGNING:
        assert bao.request("GET", f"transit/keys/{name}")["data"]["latest_version"] == 2
    engine.dispose()
    vault.close()


@pytest.mark.parametrize(("method", "path", "body"), BEYOND_BROKER)
def test_nothing_beyond_for_the_broker(bao: OpenBao, method: str, path: str, body: object) -> None:
    """With broker.hcl this is refused, to a token that can sign: no key is ever exportable."""
    held = token(bao, "broker")
    for name in SIGNING:
        bao.request("POST", f"transit/keys/{name}", {"type": "ecdsa-p256"})
    assert not refuses(bao, held, "POST", "transit/sign/daypass-access", {"input": "aGk="})
    assert refuses(bao, held, method, path, body)


def test_the_commands_of_the_readme(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every command of deploy/vault/README.md is accepted, in order, and its role can log in."""
    for name in ("proxy", "broker"):
        (tmp_path / f"{name}.hcl").write_text(shipped(name))
    pair = SigningPair("RS256", "one")
    authority = Authority(tmp_path)
    (tmp_path / "ca.crt").write_text(authority.file.read_text())
    (tmp_path / "issuer.pem").write_text(public_pem(pair))
    (tmp_path / "reviewer.jwt").write_text("reviewer\n")
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) == 17
    said: dict[str, str] = {}
    with (
        Cluster(authority) as cluster,
        OpenBao.start(tmp_path_factory.mktemp("openbao")) as bao,
    ):
        cluster.allowed = {"reviewer"}
        bao.request("DELETE", "sys/mounts/secret")  # only a server for development begins with one
        environment = {"BAO_ADDR": bao.address, "BAO_TOKEN": bao.root_token, "HOME": str(tmp_path)}
        for command in commands:
            program, *words = shlex.split(command.replace(CLUSTER, cluster.url))
            assert program == "bao"
            done = subprocess.run(
                [binary(), *words], cwd=tmp_path, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{command}: {done.stderr}"
            said[words[-1]] = done.stdout
        for settings in (
            by_approle(bao, said, tmp_path / "secret-id"),
            by_jwt(bao, pair, tmp_path / "jwt"),
            by_kubernetes(bao, cluster, tmp_path / "token"),
        ):
            vault = Vault(settings)
            assert vault.read("secret", "llm/acme", "api_key") == Secret("sk-ant-of-acme")
            vault.close()


def by_approle(bao: OpenBao, said: dict[str, str], file: Path) -> VaultSettings:
    """What the README has one write down of its AppRole."""
    path = "auth/approle/role/daypass-proxy"
    file.write_text(said[f"{path}/secret-id"])
    return VaultSettings(bao.address, role_id=said[f"{path}/role-id"], secret_id_file=file)


def by_jwt(bao: OpenBao, pair: SigningPair, file: Path) -> VaultSettings:
    """A service account's token, as the README's role wants it."""
    now = int(time.time())
    claims = {"sub": "system:serviceaccount:daypass:daypass-proxy", "aud": "vault", "exp": now + 60}
    file.write_text(sign(pair, {"alg": "RS256"}, claims | {"iat": now}))
    return VaultSettings(bao.address, role="daypass-proxy", jwt_file=file)


def by_kubernetes(bao: OpenBao, cluster: Cluster, file: Path) -> VaultSettings:
    """A pod's token for Vault alone, which the API server itself would not take."""
    cluster.add(PROXY_POD)
    known = {
        "namespace": PROXY_POD.namespace,
        "pod": {"name": PROXY_POD.name, "uid": PROXY_POD.uid},
        "serviceaccount": {"name": PROXY_POD.account, "uid": PROXY_POD.account_uid},
    }
    file.write_text(cluster.token(PROXY_POD, ["vault"], time.time(), **{"kubernetes.io": known}))
    return VaultSettings(bao.address, auth=Auth.KUBERNETES, role="daypass-proxy", jwt_file=file)
