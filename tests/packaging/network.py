"""What Kubernetes makes of NetworkPolicies: may this pod open a connection to that one?

The rules of networking.k8s.io/v1: policies that select a pod isolate it in the directions they
name; what any of them allows is allowed; a connection needs both ends' consent. Peers outside of
the cluster have an address and nothing else.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.servers.chart import Manifest


@dataclass(frozen=True, slots=True)
class Peer:
    """One end of a connection; `namespace` is "" for what is no pod."""

    address: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)


def allowed(
    policies: list[Manifest], source: Peer, target: Peer, port: int, *, protocol: str = "TCP"
) -> bool:
    """Whether `source` may connect to `port` of `target`.

    Each policy has its namespace in `metadata.namespace`.
    """
    return _consents(policies, source, target, port, protocol, "Egress") and _consents(
        policies, target, source, port, protocol, "Ingress"
    )


def _consents(
    policies: list[Manifest], own: Peer, other: Peer, port: int, protocol: str, direction: str
) -> bool:
    selecting = [each for each in policies if _selects(each, own, direction)]
    if not selecting:
        return True
    return any(
        _matches(rule, own, other, port, protocol, direction)
        for each in selecting
        for rule in each["spec"].get(direction.lower()) or ()
    )


def _selects(policy: Manifest, pod: Peer, direction: str) -> bool:
    return (
        pod.namespace == policy["metadata"]["namespace"]
        and direction in policy["spec"]["policyTypes"]
        and _fits(policy["spec"]["podSelector"], pod.labels)
    )


def _matches(
    rule: Manifest, own: Peer, other: Peer, port: int, protocol: str, direction: str
) -> bool:
    ports = rule.get("ports")
    if ports and not any(
        each.get("port", port) == port and each.get("protocol", "TCP") == protocol for each in ports
    ):
        return False
    peers = rule.get("to" if direction == "Egress" else "from")
    return not peers or any(_is(peer, own, other) for peer in peers)


def _is(peer: Manifest, own: Peer, other: Peer) -> bool:
    if "ipBlock" in peer:
        block = peer["ipBlock"]
        return _within(other.address, block["cidr"]) and not any(
            _within(other.address, each) for each in block.get("except", ())
        )
    if not other.namespace:
        return False
    if "namespaceSelector" in peer:
        if not _fits(peer["namespaceSelector"], other.namespace_labels):
            return False
    elif other.namespace != own.namespace:
        return False
    return _fits(peer.get("podSelector") or {}, other.labels)


def _fits(selector: Manifest, labels: Mapping[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}, "only matchLabels is known here"
    wanted: dict[str, str] = selector.get("matchLabels") or {}
    return all(labels.get(name) == value for name, value in wanted.items())


def _within(address: str, network: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(network)


def policies_of(manifests: list[Manifest], namespace: str) -> Iterator[Manifest]:
    """Yield the policies among manifests, placed where they are applied."""
    for each in manifests:
        if each["kind"] == "NetworkPolicy":
            own = each["metadata"].get("namespace", namespace)
            yield each | {"metadata": each["metadata"] | {"namespace": own}}
