"""Reading provider keys from a real OpenBao: logins, rotations, outages."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from daypass_core.secret import Secret
from daypass_core.vault import (
    Vault,
    VaultMissing,
    VaultRefused,
    VaultUnavailable,
)
from daypass_core.vault_settings import VaultSettings
from demo.services.openbao import OpenBao
from tests.fakes.clock import FakeClock

pytestmark = pytest.mark.openbao

KEY = "sk-real-key-of-acme"


@pytest.fixture(scope="module")
def bao(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBao]:
    """One server with two keys and an AppRole that may read one of them."""
    with OpenBao.start(tmp_path_factory.mktemp("openbao")) as server:
        server.put("secret/llm/acme", api_key=KEY, empty="")
        server.put("secret/llm/globex", api_key="sk-real-key-of-globex")
        rule = 'path "secret/data/llm/acme" { capabilities = ["read"] }'
        server.request("PUT", "sys/policies/acl/proxy", {"policy": rule})
        server.request("POST", "sys/auth/approle", {"type": "approle"})
        role = {"token_policies": ["proxy"], "token_ttl": "100s", "token_max_ttl": "1h"}
        server.request("POST", "auth/approle/role/proxy", role)
        yield server


@pytest.fixture
def open_vaults() -> Iterator[list[Vault]]:
    """Close every reader of a test."""
    vaults: list[Vault] = []
    yield vaults
    for vault in vaults:
        vault.close()


@pytest.fixture
def vault(bao: OpenBao, open_vaults: list[Vault]) -> Vault:
    """A reader with a token that reads acme's key only."""
    token = Secret(bao.token_for(["secret/llm/acme"]))
    open_vaults.append(Vault(VaultSettings(bao.address, token=token)))
    return open_vaults[-1]


def approle(bao: OpenBao, monotonic: FakeClock) -> Vault:
    """A reader that logs in by AppRole."""
    role_id = bao.request("GET", "auth/approle/role/proxy/role-id")["data"]["role_id"]
    secret_id = bao.request("POST", "auth/approle/role/proxy/secret-id")["data"]["secret_id"]
    settings = VaultSettings(bao.address, role_id=role_id, secret_id=Secret(secret_id))
    return Vault(settings, monotonic.monotonic)


def logins(bao: OpenBao) -> int:
    """Count the tokens that are alive on the server."""
    return len(bao.request("LIST", "auth/token/accessors")["data"]["keys"])


def test_reads_and_follows_a_rotation(bao: OpenBao, vault: Vault) -> None:
    """The latest version of a key is read, and the next one as soon as it is written."""
    bao.put("secret/llm/acme", api_key=KEY, empty="")
    assert vault.read("secret", "llm/acme", "api_key") == Secret(KEY)
    bao.put("secret/llm/acme", api_key="sk-rotated", empty="")
    assert vault.read("secret", "llm/acme", "api_key") == Secret("sk-rotated")


@pytest.mark.parametrize("field", ["no_such_field", "empty"])
def test_missing_field(vault: Vault, field: str) -> None:
    """A field that is absent or empty is missing, and the message names the place."""
    with pytest.raises(VaultMissing, match=f"secret/llm/acme has no text in field {field}"):
        vault.read("secret", "llm/acme", field)


def test_missing_and_deleted(bao: OpenBao, open_vaults: list[Vault]) -> None:
    """A path that never was and a path whose latest version is deleted are both missing."""
    token = Secret(bao.token_for(["secret/llm/*"]))
    open_vaults.append(Vault(VaultSettings(bao.address, token=token)))
    bao.put("secret/llm/gone", api_key="sk-gone")
    bao.delete("secret/llm/gone")
    for path in ("llm/gone", "llm/never"):
        with pytest.raises(VaultMissing, match=path):
            open_vaults[-1].read("secret", path, "api_key")


def test_value_that_is_no_text(bao: OpenBao, open_vaults: list[Vault]) -> None:
    """A field that holds null or a number is missing: nobody injects the word None."""
    open_vaults.append(Vault(VaultSettings(bao.address, token=Secret(bao.root_token))))
    bao.request("POST", "secret/data/llm/odd", {"data": {"null": None, "number": 7}})
    for field in ("null", "number"):
        with pytest.raises(VaultMissing):
            open_vaults[-1].read("secret", "llm/odd", field)


def test_first_version_mount(bao: OpenBao, open_vaults: list[Vault]) -> None:
    """A KV mount of version 1 has no versions to read: missing, not a crash."""
    open_vaults.append(Vault(VaultSettings(bao.address, token=Secret(bao.root_token))))
    bao.request("POST", "sys/mounts/old", {"type": "kv", "options": {"version": "1"}})
    bao.request("POST", "old/llm", {"api_key": "sk-old"})
    with pytest.raises(VaultMissing):
        open_vaults[-1].read("old", "llm", "api_key")


def test_refused(bao: OpenBao, vault: Vault, open_vaults: list[Vault]) -> None:
    """Another tenant's key and a wrong token are refused, without values in the message."""
    with pytest.raises(VaultRefused, match="secret/llm/globex was refused"):
        vault.read("secret", "llm/globex", "api_key")
    open_vaults.append(Vault(VaultSettings(bao.address, token=Secret("wrong-token"))))
    with pytest.raises(VaultRefused) as caught:
        open_vaults[-1].read("secret", "llm/acme", "api_key")
    assert "wrong-token" not in str(caught.value)


def test_environment_is_ignored(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Proxy, token and netrc of the environment decide nothing about where keys come from."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("VAULT_TOKEN", "other")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    vault.read("secret", "llm/acme", "api_key")


def test_token_file_is_read_again(bao: OpenBao, open_vaults: list[Vault], tmp_path: Path) -> None:
    """When the token in the file has ended, the file is read again and the read goes on."""
    file = tmp_path / "token"
    first = bao.token_for(["secret/llm/acme"])
    file.write_text(f"{first}\n")
    open_vaults.append(Vault(VaultSettings(bao.address, token_file=file)))
    vault = open_vaults[-1]
    vault.read("secret", "llm/acme", "api_key")
    bao.request("POST", "auth/token/revoke", {"token": first})
    with pytest.raises(VaultRefused):
        vault.read("secret", "llm/acme", "api_key")
    file.write_text(f"{bao.token_for(['secret/llm/acme'])}\n")
    vault.read("secret", "llm/acme", "api_key")
    file.unlink()
    vault.read("secret", "llm/acme", "api_key")


def test_token_file_that_is_missing(bao: OpenBao, open_vaults: list[Vault], tmp_path: Path) -> None:
    """A token file that cannot be read is a refusal that names the file."""
    open_vaults.append(Vault(VaultSettings(bao.address, token_file=tmp_path / "none")))
    with pytest.raises(VaultRefused, match="none"):
        open_vaults[-1].read("secret", "llm/acme", "api_key")


def test_approle_logs_in_once(bao: OpenBao, open_vaults: list[Vault]) -> None:
    """AppRole logs in at the first read, and again only when the lease nears its end."""
    clock = FakeClock()
    open_vaults.append(approle(bao, clock))
    before = logins(bao)
    for _ in range(3):
        open_vaults[-1].read("secret", "llm/acme", "api_key")
    assert logins(bao) == before + 1
    clock.advance(69)
    open_vaults[-1].read("secret", "llm/acme", "api_key")
    assert logins(bao) == before + 1
    clock.advance(12)
    open_vaults[-1].read("secret", "llm/acme", "api_key")
    assert logins(bao) == before + 2


def test_approle_after_a_revoked_token(bao: OpenBao, open_vaults: list[Vault]) -> None:
    """A token revoked before its lease ended costs one login, not an error."""
    before = set(bao.request("LIST", "auth/token/accessors")["data"]["keys"])
    open_vaults.append(approle(bao, FakeClock()))
    open_vaults[-1].read("secret", "llm/acme", "api_key")
    after = set(bao.request("LIST", "auth/token/accessors")["data"]["keys"])
    for accessor in after - before:
        bao.request("POST", "auth/token/revoke-accessor", {"accessor": accessor})
    open_vaults[-1].read("secret", "llm/acme", "api_key")


def test_approle_without_a_policy(bao: OpenBao, open_vaults: list[Vault]) -> None:
    """A read the policy forbids is refused after one more login, and does not loop."""
    open_vaults.append(approle(bao, FakeClock()))
    before = logins(bao)
    with pytest.raises(VaultRefused):
        open_vaults[-1].read("secret", "llm/globex", "api_key")
    assert logins(bao) == before + 2


def test_approle_with_a_wrong_secret_id(bao: OpenBao, open_vaults: list[Vault]) -> None:
    """A wrong secret id is a refusal that does not repeat it."""
    settings = VaultSettings(bao.address, role_id="role", secret_id=Secret("wrong-secret-id"))
    open_vaults.append(Vault(settings))
    with pytest.raises(VaultRefused, match="AppRole login at auth/approle was refused") as caught:
        open_vaults[-1].read("secret", "llm/acme", "api_key")
    assert "wrong-secret-id" not in str(caught.value)


def test_sealed_and_unsealed(bao: OpenBao, vault: Vault) -> None:
    """A sealed server is unavailable, and readable again once unsealed."""
    bao.seal()
    try:
        with pytest.raises(VaultUnavailable, match="sealed"):
            vault.read("secret", "llm/acme", "api_key")
    finally:
        bao.unseal()
    vault.read("secret", "llm/acme", "api_key")


def test_frozen(bao: OpenBao, vault: Vault) -> None:
    """A frozen server is unavailable within the time limit and not after hvac's 30 s."""
    bao.freeze()
    try:
        started = time.monotonic()
        with pytest.raises(VaultUnavailable, match="Timeout"):
            vault.read("secret", "llm/acme", "api_key")
        assert time.monotonic() - started < 15
    finally:
        bao.thaw()
    vault.read("secret", "llm/acme", "api_key")


def test_gone(tmp_path: Path, open_vaults: list[Vault]) -> None:
    """A server that has crashed is unavailable."""
    with OpenBao.start(tmp_path) as bao:
        open_vaults.append(Vault(VaultSettings(bao.address, token=Secret(bao.root_token))))
        bao.put("secret/llm/acme", api_key=KEY)
        open_vaults[-1].read("secret", "llm/acme", "api_key")
        bao.kill()
        with pytest.raises(VaultUnavailable, match="ConnectionError"):
            open_vaults[-1].read("secret", "llm/acme", "api_key")
