"""Who may talk to whom by the chart's network policies, and by those of the example for agents."""

from typing import Any

import pytest
import yaml

from tests.packaging.chart_values import manifests, values
from tests.packaging.network import Peer, allowed, policies_of
from tests.servers.chart import CHART, Manifest, render

HERE = "daypass"
PUBLIC, ADMIN, INTERNAL, METRICS, DATABASE, VAULT = 8443, 8701, 8710, 9090, 5432, 8200


def ours(component: str) -> Peer:
    """A pod of the release."""
    labels = {
        "app.kubernetes.io/name": "daypass",
        "app.kubernetes.io/instance": "daypass",
        "app.kubernetes.io/component": component,
    }
    return Peer("10.1.0.1", HERE, labels, {"kubernetes.io/metadata.name": HERE})


def other(namespace: str, address: str = "10.1.9.9", **labels: str) -> Peer:
    """A pod of another namespace, which bears its name and further labels."""
    return Peer(address, namespace, {}, {"kubernetes.io/metadata.name": namespace} | labels)


SANDBOX = other("agents", **{"daypass-sandboxes": "true"})
STRANGER = other("default")
NEIGHBOUR = Peer("10.1.0.7", HERE, {"app": "other"}, {"kubernetes.io/metadata.name": HERE})
ORCHESTRATOR = other("platform", **{"daypass-admin": "true"})
PROMETHEUS = other("monitoring")
INGRESS = other("ingress-nginx")
DNS = Peer(
    "10.1.0.10",
    "kube-system",
    {"k8s-app": "kube-dns"},
    {"kubernetes.io/metadata.name": "kube-system"},
)
IMPOSTOR = Peer("10.1.9.8", "agents", {"k8s-app": "kube-dns"}, SANDBOX.namespace_labels)
POSTGRES = Peer(
    "10.1.3.3",
    "postgres",
    {"cnpg.io/cluster": "daypass"},
    {"kubernetes.io/metadata.name": "postgres"},
)
BAO = other("vault")
PROVIDER, METADATA, NODE, API = (
    Peer("160.79.104.10"),
    Peer("169.254.169.254"),
    Peer("192.168.1.5"),
    Peer("10.0.0.1"),
)
PROXY, BROKER, MIGRATE, PRUNE = map(ours, ("proxy", "broker", "migrate", "prune"))


def policies(kind: str) -> list[Manifest]:
    """The policies of a release."""
    return list(policies_of(manifests(kind), HERE))


@pytest.mark.parametrize("kind", ["default", "ha", "openshift", "minimal"])
@pytest.mark.parametrize(
    ("target", "port", "may"),
    [
        (PROXY, PUBLIC, True),
        (PROXY, METRICS, False),
        (BROKER, ADMIN, False),
        (BROKER, INTERNAL, False),
        (BROKER, METRICS, False),
        (MIGRATE, 80, False),
        (PRUNE, 80, False),
    ],
)
def test_a_sandbox_reaches_the_proxy_and_nothing_else(
    kind: str, target: Peer, port: int, may: bool
) -> None:
    """From a namespace of sandboxes one port of one kind of pod is open."""
    assert allowed(policies(kind), SANDBOX, target, port) is may


@pytest.mark.parametrize("stranger", [STRANGER, NEIGHBOUR, PROVIDER])
@pytest.mark.parametrize(
    ("target", "port"), [(PROXY, PUBLIC), (PROXY, METRICS), (BROKER, ADMIN), (BROKER, INTERNAL)]
)
def test_strangers_reach_nothing(stranger: Peer, target: Peer, port: int) -> None:
    """A namespace without a label, a pod beside ours and the world outside are shut out."""
    assert not allowed(policies("default"), stranger, target, port)


@pytest.mark.parametrize(
    ("source", "target", "port", "may"),
    [
        (ORCHESTRATOR, BROKER, ADMIN, True),
        (ORCHESTRATOR, BROKER, INTERNAL, False),
        (ORCHESTRATOR, PROXY, PUBLIC, False),
        (PROMETHEUS, PROXY, METRICS, True),
        (PROMETHEUS, BROKER, METRICS, True),
        (PROMETHEUS, BROKER, ADMIN, False),
        (PROMETHEUS, PROXY, PUBLIC, False),
        (PROXY, BROKER, INTERNAL, True),
        (PROXY, BROKER, ADMIN, False),
        (BROKER, PROXY, PUBLIC, False),
        (ours("test"), PROXY, METRICS, True),
        (ours("test"), BROKER, INTERNAL, False),
        (MIGRATE, BROKER, INTERNAL, False),
        (PRUNE, PROXY, PUBLIC, False),
    ],
)
def test_each_part_reaches_what_it_needs_within(
    source: Peer, target: Peer, port: int, may: bool
) -> None:
    """Admins reach the admin listener, monitoring the metrics, the proxy the internal listener."""
    assert allowed(policies("default"), source, target, port) is may


@pytest.mark.parametrize(
    ("source", "target", "port", "may"),
    [
        (PROXY, POSTGRES, DATABASE, True),
        (BROKER, POSTGRES, DATABASE, True),
        (MIGRATE, POSTGRES, DATABASE, True),
        (PRUNE, POSTGRES, DATABASE, True),
        (PROXY, NODE, DATABASE, False),
        (PROXY, BAO, VAULT, True),
        (BROKER, BAO, VAULT, True),
        (MIGRATE, BAO, VAULT, False),
        (PROXY, PROVIDER, 443, True),
        (PROXY, PROVIDER, 22, False),
        (PROXY, METADATA, 443, False),
        (PROXY, METADATA, 80, False),
        (PROXY, NODE, 443, False),
        (PROXY, SANDBOX, 443, False),
        (BROKER, PROVIDER, 443, True),
        (BROKER, METADATA, 443, False),
        (BROKER, API, 443, True),
        (PROXY, API, 443, False),
        (BROKER, NODE, 6443, False),
        (MIGRATE, PROVIDER, 443, False),
        (PRUNE, PROVIDER, 443, False),
    ],
)
def test_each_part_reaches_what_it_needs_outside(
    source: Peer, target: Peer, port: int, may: bool
) -> None:
    """Stores, providers and the API server by name; no metadata service, no private network."""
    assert allowed(policies("ha"), source, target, port) is may


def test_names_are_looked_up_at_the_cluster_s_dns_only() -> None:
    """Any pod of ours may ask the DNS, by both protocols; a pod that bears its label elsewhere
    gets nothing.
    """
    for component in ("proxy", "broker", "migrate", "prune", "test"):
        for protocol in ("UDP", "TCP"):
            found = policies("ha")
            assert allowed(found, ours(component), DNS, 53, protocol=protocol)
            assert not allowed(found, ours(component), IMPOSTOR, 53, protocol=protocol)


def test_on_openshift_names_are_looked_up_where_its_dns_is() -> None:
    """Values of a list replace the defaults: no label of another cluster's DNS is left over."""
    labels = {"dns.operator.openshift.io/daemonset-dns": "default"}
    dns = Peer("10.1.0.11", "openshift-dns", labels, other("openshift-dns").namespace_labels)
    assert allowed(policies("openshift"), PROXY, dns, 5353, protocol="UDP")
    assert not allowed(policies("openshift"), PROXY, DNS, 53, protocol="UDP")


def test_the_broker_asks_the_api_server_only_when_it_reviews_tokens() -> None:
    """Without `broker.tokenReview` the API server cannot be reached from any pod."""
    assert not allowed(policies("default"), BROKER, API, 443)


@pytest.mark.parametrize("straight", [True, False])
def test_the_ingress_reaches_the_broker_only_where_it_sends_tokens_to_it(straight: bool) -> None:
    """With `tokenToBroker` the controller may call the internal listener, and never the other."""
    wanted: dict[str, Any] = values("ingress")
    wanted["ingress"]["tokenToBroker"] = straight
    found = list(policies_of(render(wanted), HERE))
    assert allowed(found, INGRESS, PROXY, PUBLIC)
    assert allowed(found, INGRESS, BROKER, INTERNAL) is straight
    assert not allowed(found, INGRESS, BROKER, ADMIN)
    assert not allowed(policies("default"), INGRESS, PROXY, PUBLIC)


def test_a_new_pod_of_the_release_starts_with_nothing() -> None:
    """A component that no policy knows is shut off both ways."""
    new = ours("newcomer")
    for source, target, port in ((SANDBOX, new, 80), (new, POSTGRES, DATABASE), (new, DNS, 53)):
        assert not allowed(policies("default"), source, target, port)


def test_the_migration_s_policy_is_there_before_the_migration() -> None:
    """As a hook that runs first, it opens the way to the database before anything else exists."""
    found = {(m["kind"], m["metadata"]["name"]): m["metadata"] for m in manifests("default")}
    weight = {
        kind: int(found[kind, "daypass-migrate"]["annotations"]["helm.sh/hook-weight"])
        for kind in ("NetworkPolicy", "ServiceAccount", "Job")
    }
    assert weight["NetworkPolicy"] < weight["Job"]
    assert weight["ServiceAccount"] < weight["Job"]


def test_an_empty_list_opens_nothing() -> None:
    """Without DNS and networks of the API server there is no rule: one without peers would be for
    all of them.
    """
    shut: dict[str, Any] = {"dnsPods": [], "kubernetesApiCidrs": [], "issuers": False}
    wanted = {"networkPolicies": shut, "broker": {"tokenReview": True}}
    found = list(policies_of(render(wanted), HERE))
    for component in ("proxy", "broker", "migrate", "test"):
        assert not allowed(found, ours(component), PROVIDER, 53, protocol="UDP")
    assert not allowed(found, BROKER, API, 6443)
    assert allowed(found, MIGRATE, POSTGRES, DATABASE)


def test_without_policies_none_is_made() -> None:
    """`networkPolicies.enabled=false` leaves the network to the cluster."""
    assert list(policies_of(render({"networkPolicies": {"enabled": False}}), HERE)) == []


def test_an_agent_s_namespace_reaches_the_proxy_and_the_dns_only() -> None:
    """With the example's policy an agent has no way to anything else, in or out of the cluster."""
    text = (CHART / "examples/agent-namespace.yaml").read_text("utf-8")
    example = [each for each in yaml.safe_load_all(text) if each]
    (namespace,) = [each for each in example if each["kind"] == "Namespace"]
    found = policies("default") + list(policies_of(example, "agents"))
    labels = namespace["metadata"]["labels"] | {"kubernetes.io/metadata.name": "agents"}
    agent = Peer("10.1.9.9", "agents", {"app": "agent"}, labels)
    assert allowed(found, agent, PROXY, PUBLIC)
    assert allowed(found, agent, DNS, 53, protocol="UDP")
    for target, port in ((PROVIDER, 443), (METADATA, 80), (BROKER, ADMIN), (POSTGRES, DATABASE)):
        assert not allowed(found, agent, target, port)
    assert not allowed(found, agent, PROXY, METRICS)
    assert not allowed(found, agent, Peer("10.1.9.8", "agents", {"app": "agent"}, labels), 8080)
    assert not allowed(found, STRANGER, agent, 8080)
