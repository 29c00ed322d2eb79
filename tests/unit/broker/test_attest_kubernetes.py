"""Projected tokens by TokenReview: live pods of one service account, and nothing without a word."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daypass_broker.attest.kubernetes import KEEP_SECONDS, MAX_AT_ONCE
from daypass_broker.oauth import OAuthError
from daypass_broker.rule import Rule
from daypass_core.verify import TokenRefused
from tests.servers.ca import Authority
from tests.servers.cluster import ACCOUNT_UID, ISSUER, Cluster, Pod
from tests.servers.issuer import AUDIENCE
from tests.unit.broker.rig import Rig
from tests.unit.broker.workloads import Gate, cluster_files

pytestmark = pytest.mark.usefixtures("patience")

POD = Pod("agent-1", "aaaa-1")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority of the API server."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def one_cluster(authority: Authority) -> Iterator[Cluster]:
    """One API server for the module."""
    with Cluster(authority) as cluster:
        yield cluster


@pytest.fixture
def cluster(one_cluster: Cluster) -> Cluster:
    """The cluster with one pod, as good as new."""
    one_cluster.requests.clear()
    one_cluster.bearers.clear()
    one_cluster.pods = {POD.uid: POD}
    one_cluster.allowed = {"broker-token-1"}
    one_cluster.patch, one_cluster.status, one_cluster.behave = {}, 201, None
    return one_cluster


@pytest.fixture
def gate(rig: Rig, cluster: Cluster, authority: Authority, tmp_path: Path) -> Gate:
    """A gate that asks the cluster."""
    files = cluster_files(tmp_path, authority, cluster.url)
    return Gate(rig, None, authority, (), files)


@pytest.fixture
def rule(gate: Gate) -> Rule:
    """A rule for the service account."""
    return gate.rule(
        template="kubernetes", issuer=ISSUER, conditions={"service_account_uid": ACCOUNT_UID}
    )


def token(gate: Gate, cluster: Cluster, pod: Pod | None = POD, **claims: object) -> str:
    """A projected token of now, for us."""
    audience = claims.pop("aud", [AUDIENCE])
    return cluster.token(pod, audience, gate.rig.clock.now(), **claims)


async def refuse(gate: Gate, token: str, rule: Rule) -> TokenRefused:
    """How a token is refused."""
    with pytest.raises(TokenRefused) as caught:
        await gate.attest(token, rule)
    return caught.value


async def test_a_live_pod_is_a_workload(gate: Gate, rule: Rule, cluster: Cluster) -> None:
    """The cluster is asked for our audience, and names pod and service account."""
    found = await gate.attest(token(gate, cluster), rule)
    assert json.loads(found.identity) == {"pod_uid": POD.uid}
    assert found.claims == {"service_account_uid": ACCOUNT_UID, "pod_uid": POD.uid}
    asked = json.loads(cluster.requests[0][2])
    assert asked["spec"]["audiences"] == [AUDIENCE]


async def test_a_deleted_pod_is_refused_within_ten_seconds(
    gate: Gate, rule: Rule, cluster: Cluster
) -> None:
    """A signature would hold for an hour; a yes is believed for ten seconds."""
    shown = token(gate, cluster)
    assert await gate.attest(shown, rule)
    cluster.pods.clear()
    gate.rig.clock.advance(KEEP_SECONDS - 0.1)
    assert await gate.attest(shown, rule)
    assert len(cluster.requests) == 1
    gate.rig.clock.advance(0.1)
    assert not (await refuse(gate, shown, rule)).signature_verified


async def test_a_no_is_not_kept(gate: Gate, rule: Rule, cluster: Cluster) -> None:
    """A pod that the API server learns of a moment later is let in at once."""
    cluster.pods.clear()
    shown = token(gate, cluster)
    await refuse(gate, shown, rule)
    cluster.add(POD)
    assert await gate.attest(shown, rule)


async def test_tokens_of_no_pod_are_refused(gate: Gate, cluster: Cluster) -> None:
    """A service account's own token names nobody who could die, whatever the rule goes by."""
    rule = gate.rule(
        template="kubernetes",
        issuer=ISSUER,
        conditions={"service_account_uid": ACCOUNT_UID},
        identity=["service_account_uid"],
    )
    assert await gate.attest(token(gate, cluster), rule)
    assert "bound to no pod" in (await refuse(gate, token(gate, cluster, None), rule)).detail


async def test_another_account_is_refused(gate: Gate, rule: Rule, cluster: Cluster) -> None:
    """Made anew under the same name, a service account is another one."""
    again = cluster.add(Pod("agent-2", "aaaa-2", account_uid="other"))
    refused = await refuse(gate, token(gate, cluster, again), rule)
    assert refused.signature_verified
    assert "service_account_uid" in refused.detail


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": ["https://kubernetes.default.svc"]},
        {"aud": [AUDIENCE, "https://kubernetes.default.svc"]},
        {"iss": "https://other.cluster"},
        {"iss": ISSUER + "/"},
    ],
)
async def test_what_is_not_for_us_is_not_even_asked_about(
    gate: Gate, rule: Rule, cluster: Cluster, claims: dict[str, Any]
) -> None:
    """A pod's default token, or another cluster's, costs the API server nothing."""
    await refuse(gate, token(gate, cluster, **claims), rule)
    assert cluster.requests == []


async def test_a_year_of_life_is_too_long(gate: Gate, rule: Rule, cluster: Cluster) -> None:
    """Default tokens ask for an hour and get a year; neither is a workload's identity."""
    await refuse(gate, token(gate, cluster, exp=int(gate.rig.clock.now()) + 31_536_000), rule)


@pytest.mark.parametrize(
    "patch",
    [
        {"authenticated": "true"},
        {"authenticated": None},
        {"audiences": []},
        {"audiences": None},
        {"audiences": [AUDIENCE, "other"]},
        {"user": None},
        {"user": {"username": "admin", "uid": ACCOUNT_UID, "extra": {}}},
        {"user": {"username": "system:serviceaccount:agents:runner", "uid": ACCOUNT_UID}},
    ],
)
async def test_anything_but_a_clear_yes_is_a_no(
    gate: Gate, rule: Rule, cluster: Cluster, patch: dict[str, object]
) -> None:
    """An API server that does not confirm the audience has not checked it."""
    cluster.patch = patch
    await refuse(gate, token(gate, cluster), rule)


async def unavailable(gate: Gate, token: str, rule: Rule) -> None:
    """The answer is 503."""
    with pytest.raises(OAuthError) as caught:
        await gate.attest(token, rule)
    assert caught.value.status == 503


async def test_not_knowing_is_503(gate: Gate, rule: Rule, cluster: Cluster) -> None:
    """An error of the API server, one that is no TokenReview, or none at all refuse nobody."""
    shown = token(gate, cluster)
    cluster.status = 500
    await unavailable(gate, shown, rule)
    cluster.status, cluster.patch = 201, {}
    cluster.allowed.clear()
    await unavailable(gate, shown, rule)
    cluster.allowed.add("broker-token-1")
    assert await gate.attest(shown, rule)


async def test_the_brokers_own_token_is_read_again(
    gate: Gate, rule: Rule, cluster: Cluster, tmp_path: Path
) -> None:
    """B23: the kubelet swaps a symlink to the new token, and the next review sends that one."""
    assert await gate.attest(token(gate, cluster), rule)
    cluster.allowed = {"broker-token-2"}
    (tmp_path / "next").write_text("broker-token-2\n")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "next")
    link.replace(tmp_path / "token")
    gate.rig.clock.advance(KEEP_SECONDS)
    assert await gate.attest(token(gate, cluster), rule)
    assert cluster.bearers == ["broker-token-1", "broker-token-2"]


async def test_the_clusters_authority_is_read_again(
    rig: Rig, cluster: Cluster, authority: Authority, tmp_path: Path
) -> None:
    """B23: only the cluster's own authority counts, and the file as it is now."""
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    good = authority.file.read_bytes()
    files = cluster_files(tmp_path, other, cluster.url)
    gate = Gate(rig, None, authority, (), files)
    rule = gate.rule(
        template="kubernetes", issuer=ISSUER, conditions={"service_account_uid": ACCOUNT_UID}
    )
    await unavailable(gate, token(gate, cluster), rule)
    assert cluster.requests == []
    other.file.write_bytes(good)
    assert await gate.attest(token(gate, cluster), rule)


async def test_a_flood_does_not_reach_the_api_server(
    gate: Gate, rule: Rule, cluster: Cluster
) -> None:
    """Only so many reviews are under way; more of them are told to come back."""
    held, arrived = threading.Event(), threading.Semaphore(0)

    def hold(_: object) -> bool:
        arrived.release()
        held.wait(20)
        return False

    cluster.behave = hold
    shown = [token(gate, cluster, jti=str(number)) for number in range(MAX_AT_ONCE + 1)]
    asking = [asyncio.ensure_future(gate.attest(one, rule)) for one in shown[:-1]]
    for _ in range(MAX_AT_ONCE):
        assert await asyncio.to_thread(arrived.acquire, timeout=20)
    await unavailable(gate, shown[-1], rule)
    held.set()
    assert len(await asyncio.gather(*asking)) == MAX_AT_ONCE
