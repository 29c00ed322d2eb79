"""Every way to log in, on a real OpenBao: files that are replaced, tokens that end, no storms."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from daypass_core.secret import Secret
from daypass_core.vault import Vault, VaultError, VaultRefused, VaultUnavailable
from daypass_core.vault_settings import Auth, VaultSettings
from tests.fakes.clock import FakeClock
from tests.servers.ca import Authority
from tests.servers.cluster import Cluster
from tests.servers.issuer import Issuer
from tests.servers.vault import (
    PROXY_POD,
    DurableBao,
    approle,
    jwt,
    kubernetes,
    new_secret_id,
    reading,
    replace,
    swap,
)
from tests.support import eventually

pytestmark = pytest.mark.openbao

KEY = "sk-real-key-of-acme"
PAUSE = 15.0
"""Seconds after which a login that failed is tried again, whatever the pause has grown to."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the certificates of OpenBao, of the cluster and of the issuer."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def bao(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[DurableBao]:
    """One server that speaks TLS, with a key and the policy to read it."""
    with DurableBao(tmp_path_factory.mktemp("openbao"), authority) as server:
        server.put("secret/llm/acme", api_key=KEY)
        server.put("secret/llm/globex", api_key="sk-of-globex")
        server.policy("proxy", reading("secret/data/llm/acme"))
        yield server


@pytest.fixture
def clock() -> FakeClock:
    """What leases and pauses are measured with."""
    return FakeClock()


@pytest.fixture
def opened() -> Iterator[list[Vault]]:
    """Close every client of a test."""
    vaults: list[Vault] = []
    yield vaults
    for vault in vaults:
        vault.close()


@pytest.fixture
def make(
    authority: Authority, opened: list[Vault], clock: FakeClock
) -> Callable[[VaultSettings], Vault]:
    """Make a client that trusts the authority."""
    from dataclasses import replace as with_

    def made(settings: VaultSettings, monotonic: Callable[[], float] = clock.monotonic) -> Vault:
        trusting = with_(settings, ca_file=settings.ca_file or authority.file)
        opened.append(Vault(trusting, monotonic))
        return opened[-1]

    return made


Make = Callable[..., Vault]


def read(vault: Vault) -> Secret:
    """Read the key."""
    return vault.read("secret", "llm/acme", "api_key")


def revoke_all(bao: DurableBao) -> None:
    """End every token but root's."""
    own = bao.request("GET", "auth/token/lookup-self")["data"]["accessor"]
    for accessor in bao.request("LIST", "auth/token/accessors")["data"]["keys"]:
        if accessor != own:
            bao.request("POST", "auth/token/revoke-accessor", {"accessor": accessor})


def test_b23_a_secret_id_that_is_replaced(
    bao: DurableBao, make: Make, clock: FakeClock, tmp_path: Path
) -> None:
    """B23: the secret id is read at each login, so a new one takes effect without a restart."""
    settings = approle(bao, tmp_path, "proxy", name="replaced")
    file = settings.secret_id_file
    assert file is not None
    vault = make(settings)
    assert read(vault) == Secret(KEY)
    revoke_all(bao)
    replace(file, "destroyed")
    with pytest.raises(VaultRefused, match=r"AppRole login at auth/approle was refused"):
        read(vault)
    new_secret_id(bao, file, "replaced")
    clock.advance(PAUSE)
    assert read(vault) == Secret(KEY)


def test_b23_a_projected_token_that_is_swapped(
    bao: DurableBao, make: Make, clock: FakeClock, authority: Authority, tmp_path: Path
) -> None:
    """B23: Kubernetes login reads the token that its link leads to now; an old one is refused."""
    link = tmp_path / "token"
    with Cluster(authority) as cluster:
        kubernetes(bao, cluster, authority.file, "proxy")
        settings = VaultSettings(bao.address, auth=Auth.KUBERNETES, role="proxy", jwt_file=link)
        vault, now = make(settings), time.time()
        claims = {"kubernetes.io": identity("pod-uid-1")}
        cluster.add(PROXY_POD)
        swap(link, cluster.token(PROXY_POD, ["vault"], now, **claims))
        assert vault.login == "Kubernetes login at auth/kubernetes"
        assert read(vault) == Secret(KEY)
        # The pod is replaced: nobody vouches for its token any more.
        revoke_all(bao)
        cluster.pods.clear()
        with pytest.raises(VaultRefused, match="Kubernetes login"):
            read(vault)
        clock.advance(PAUSE)
        again = cluster.add(
            type(PROXY_POD)("daypass-proxy-1", "pod-uid-2", "daypass", "daypass-proxy")
        )
        swap(link, cluster.token(again, ["vault"], now, **{"kubernetes.io": identity("pod-uid-2")}))
        assert read(vault) == Secret(KEY)
        # An API server that is down is a 403 as well: not for ever.
        revoke_all(bao)
        cluster.status = 500
        clock.advance(PAUSE)
        with pytest.raises(VaultError):
            read(vault)
        cluster.status = 201
        clock.advance(PAUSE)
        assert read(vault) == Secret(KEY)


def identity(pod_uid: str) -> dict[str, object]:
    """What a projected token says of its pod."""
    return {
        "namespace": "daypass",
        "pod": {"name": "daypass-proxy-0", "uid": pod_uid},
        "serviceaccount": {"name": "daypass-proxy", "uid": PROXY_POD.account_uid},
    }


def test_jwt(
    bao: DurableBao, make: Make, clock: FakeClock, authority: Authority, tmp_path: Path
) -> None:
    """B23: JWT login works with keys told beforehand, and reads its file at each login."""
    file, right = tmp_path / "jwt", {"aud": "vault", "sub": "daypass-proxy"}
    with Issuer(authority) as issuer:
        jwt(bao, issuer, "proxy")
        vault = make(VaultSettings(bao.address, role="proxy", jwt_file=file))
        for wrong in ({"aud": "other"}, {"sub": "somebody"}, {"exp": int(time.time()) - 3600}):
            replace(file, issuer.token(**(right | wrong)))
            with pytest.raises(VaultRefused, match="JWT login at auth/jwt was refused"):
                read(vault)
            clock.advance(PAUSE)
        swap(file, issuer.token(**right))
        assert read(vault) == Secret(KEY)
        assert vault.logins == {"ok": 1, "failed": 3}
        assert issuer.asked == [], "the keys were told, so nobody is asked"


def test_an_agent_that_replaces_its_token(bao: DurableBao, make: Make, tmp_path: Path) -> None:
    """B23: the token an agent has written is used from the next read on, without a refusal."""
    file = tmp_path / "sink"
    first = bao.token_for(["secret/llm/acme"], ttl="30m")
    replace(file, first)
    vault = make(VaultSettings(bao.address, token_file=file))
    assert read(vault) == Secret(KEY)
    assert 1700 < (vault.seconds_left or 0) <= 1800
    replace(file, bao.token_for(["secret/llm/acme"]))
    before = len(bao.audited())
    assert read(vault) == Secret(KEY)
    assert [line for line in bao.audited()[before:] if line.get("error")] == []
    assert (vault.seconds_left or 0) > 3500
    # Ended before its time, and replaced later: refused until then, and not for ever.
    revoke_all(bao)
    with pytest.raises(VaultRefused):
        read(vault)
    replace(file, bao.token_for(["secret/llm/acme"]))
    assert read(vault) == Secret(KEY)


def test_an_agent_that_renews_its_token(
    bao: DurableBao, make: Make, clock: FakeClock, tmp_path: Path
) -> None:
    """A token that an agent renews without another word in the file is not told to end."""
    file = tmp_path / "sink"
    token = bao.token_for(["secret/llm/acme"], ttl="30s")
    replace(file, token)
    vault = make(VaultSettings(bao.address, token_file=file))
    assert read(vault) == Secret(KEY)
    bao.request("POST", "auth/token/renew-self", {"increment": "1h"}, token=token)
    clock.advance(29)
    assert read(vault) == Secret(KEY)
    assert (vault.seconds_left or 0) > 3500


def test_b13_tokens_that_reach_their_maximum_life(
    bao: DurableBao, make: Make, tmp_path: Path
) -> None:
    """B13: with tokens that live three seconds at most no read fails, for as long as four live."""
    life = {"token_ttl": "3s", "token_max_ttl": "3s"}
    vault = make(approle(bao, tmp_path, "proxy", name="short", **life), time.monotonic)

    def logged_in_often() -> bool:
        assert read(vault) == Secret(KEY)
        return vault.logins["ok"] >= 4

    eventually(logged_in_often, timeout=20)
    assert vault.logins["failed"] == 0


def test_b13_a_token_that_ended_early_costs_one_login(
    bao: DurableBao, make: Make, tmp_path: Path
) -> None:
    """B13: of 16 threads that are refused with one token one logs in, and all go on."""
    vault = make(approle(bao, tmp_path, "proxy", name="early"))
    read(vault)
    revoke_all(bao)
    meeting = threading.Barrier(16)

    def together() -> Secret:
        meeting.wait(5)
        return read(vault)

    with ThreadPoolExecutor(16) as pool:
        found = [pool.submit(together) for _ in range(16)]
        assert [each.result(20) for each in found] == [Secret(KEY)] * 16
    assert vault.logins == {"ok": 2, "failed": 0}


def test_a_forbidden_path_is_no_reason_to_log_in(
    bao: DurableBao, make: Make, clock: FakeClock, tmp_path: Path
) -> None:
    """B13: a path that the policy forbids, read each minute for an hour, costs few logins."""
    vault = make(approle(bao, tmp_path, "proxy", name="forbidden", token_ttl="2h"))
    for _ in range(60):
        with pytest.raises(VaultRefused, match="llm/globex"):
            vault.read("secret", "llm/globex", "api_key")
        assert read(vault) == Secret(KEY)
        clock.advance(60)
    assert vault.logins["ok"] <= 20
    # Nor is it one not to: the token ends, and the next read has another.
    clock.advance(2)
    with pytest.raises(VaultRefused):
        vault.read("secret", "llm/globex", "api_key")
    revoke_all(bao)
    clock.advance(2)
    assert read(vault) == Secret(KEY)


def test_a_namespace(bao: DurableBao, make: Make, tmp_path: Path) -> None:
    """Login and read are in the namespace of the settings; another's path is not found there."""
    bao.request("POST", "sys/namespaces/team", {})
    team = "team/"
    bao.request("POST", f"{team}sys/mounts/secret", {"type": "kv", "options": {"version": "2"}})
    bao.request("PUT", f"{team}sys/policies/acl/proxy", {"policy": reading("secret/data/llm/*")})
    bao.request("POST", f"{team}sys/auth/approle", {"type": "approle"})
    bao.request("POST", f"{team}auth/approle/role/proxy", {"token_policies": ["proxy"]})
    role_id = bao.request("GET", f"{team}auth/approle/role/proxy/role-id")["data"]["role_id"]
    made = bao.request("POST", f"{team}auth/approle/role/proxy/secret-id")["data"]

    def written() -> bool:
        bao.request("POST", f"{team}secret/data/llm/acme", {"data": {"api_key": "sk-of-team"}})
        return True

    eventually(lambda: not_raising(written))
    file = tmp_path / "secret-id"
    file.write_text(made["secret_id"])
    vault = make(VaultSettings(bao.address, role_id=role_id, secret_id_file=file, namespace="team"))
    vault.reach()
    assert read(vault) == Secret("sk-of-team")


def not_raising(do: Callable[[], bool]) -> bool:
    """Say whether it works by now: a new mount is there a moment later."""
    from demo.services.process import ServiceError

    try:
        return do()
    except ServiceError:
        return False


def test_the_authority_of_the_settings(
    bao: DurableBao, make: Make, authority: Authority, tmp_path: Path
) -> None:
    """B23: no other authority is trusted than the file's, which is read at each connection."""
    (tmp_path / "other").mkdir()
    ca = tmp_path / "ca.pem"
    replace(ca, Authority(tmp_path / "other").file.read_text())
    token = Secret(bao.token_for(["secret/llm/acme"]))
    vault = make(VaultSettings(bao.address, token=token, ca_file=ca))
    with pytest.raises(VaultUnavailable, match="SSLError"):
        read(vault)
    ca.unlink()
    with pytest.raises(VaultUnavailable, match="OSError"):
        read(vault)
    replace(ca, authority.file.read_text())
    assert read(vault) == Secret(KEY)


def test_frozen_for_many(bao: DurableBao, make: Make, tmp_path: Path) -> None:
    """While it is frozen, 40 reads hold one thread at a time: the others fail at once."""
    vault = make(approle(bao, tmp_path, "proxy", name="frozen"), time.monotonic)
    read(vault)
    bao.freeze()
    try:
        with pytest.raises(VaultUnavailable, match="Timeout"):
            read(vault)
        began = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            said = list(pool.map(lambda _: failure(vault), range(40)))
        assert time.monotonic() - began < 6
        assert sum("was not tried" in each for each in said) > 30
    finally:
        bao.thaw()
    assert read(vault) == Secret(KEY)


def failure(vault: Vault) -> str:
    """What a read that fails says."""
    with pytest.raises(VaultUnavailable) as caught:
        read(vault)
    return str(caught.value)


def test_over_the_rate_limit(bao: DurableBao, make: Make, tmp_path: Path) -> None:
    """Over a rate limit of its own a read is unavailable, and the limit's end is seen."""
    vault = make(approle(bao, tmp_path, "proxy", name="limited"))
    read(vault)
    limit = {"rate": 1, "interval": "600s", "path": "secret"}
    bao.request("POST", "sys/quotas/rate-limit/few", limit)
    try:
        read(vault)
        assert "RateLimitExceeded" in failure(vault)
        vault.reach()  # it is there, so others may be asked
    finally:
        bao.request("DELETE", "sys/quotas/rate-limit/few")
    assert read(vault) == Secret(KEY)
