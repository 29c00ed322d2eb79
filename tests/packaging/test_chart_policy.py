"""What no pod of the chart may have: root, a writable root, open secrets, spare privileges."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.packaging.chart_values import (
    KINDS,
    PRUNING,
    SECRETS,
    components,
    manifests,
    of_kind,
    pods,
)
from tests.servers.chart import CHART, Manifest, render, workloads

PAIRS = [(kind, component) for kind in KINDS for component in components(kind)]


def offences(pod: Manifest, *, openshift: bool) -> Iterator[str]:
    """Everything about a pod that the restricted Pod Security Standard, or this house, refuses."""
    security = pod.get("securityContext", {})
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "no seccomp profile"
    if pod.get("automountServiceAccountToken") is not False:
        yield "a service account token by default"
    for name in ("hostNetwork", "hostPID", "hostIPC", "hostUsers", "shareProcessNamespace"):
        if pod.get(name):
            yield name
    for volume in pod.get("volumes", ()):
        kinds = set(volume) - {"name"}
        if not kinds <= {"secret", "configMap", "projected", "emptyDir", "persistentVolumeClaim"}:
            yield f"volume {kinds}"
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            yield "a directory without a limit"
        if "secret" in volume and volume["secret"].get("defaultMode") != 0o440:
            yield "a secret that others may read"
    assigned = "runAsUser" in security or "fsGroup" in security
    if assigned == openshift:
        yield "a fixed user on OpenShift" if openshift else "no fixed user"
    if not openshift and min(security["runAsUser"], security["runAsGroup"]) < 1000:
        yield "a user of the system"
    for container in [*pod["containers"], *pod.get("initContainers", ())]:
        yield from _container_offences(container)


def _container_offences(container: Manifest) -> Iterator[str]:
    security = container.get("securityContext", {})
    wanted: dict[str, Any] = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    if security != wanted:
        yield f"security context {security}"
    tag = container["image"].rpartition("/")[2].partition(":")[2]
    if not tag or tag == "latest":
        yield "an image without a version"
    resources = container.get("resources", {})
    if not {"cpu", "memory"} <= set(resources.get("requests", ())):
        yield "no requests"
    if "memory" not in resources.get("limits", ()):
        yield "no limit of memory"
    if any("hostPort" in port for port in container.get("ports", ())):
        yield "a port of the node"
    if any(mount.get("subPath") for mount in container.get("volumeMounts", ())):
        yield "a file that is never renewed"


@pytest.mark.parametrize(("kind", "component"), PAIRS)
def test_no_pod_has_more_than_it_needs(kind: str, component: str) -> None:
    """Non-root, read-only root, no capabilities, seccomp, resources, no token by default (B54)."""
    found = list(offences(pods(kind)[component].pod, openshift=kind == "openshift"))
    assert found == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda pod: pod["containers"][0].update(image="x:latest"), "without a version"),
        (lambda pod: pod["containers"][0].pop("resources"), "no requests"),
        (lambda pod: pod["securityContext"].update(runAsUser=0), "user of the system"),
        (lambda pod: pod.pop("automountServiceAccountToken"), "token by default"),
        (
            lambda pod: pod["containers"][0]["securityContext"].pop("readOnlyRootFilesystem"),
            "security context",
        ),
        (lambda pod: pod["volumes"].append({"name": "x", "hostPath": {"path": "/"}}), "hostPath"),
    ],
)
def test_the_check_finds_what_it_is_for(change: Any, word: str) -> None:
    """Each rule fails a pod that breaks it."""
    pod = workloads(render())["proxy"].pod
    change(pod)
    assert any(word in each for each in offences(pod, openshift=False))


@pytest.mark.parametrize(("kind", "component"), PAIRS)
def test_only_declared_places_are_written(kind: str, component: str) -> None:
    """Writable are /tmp, the volume of keys and the export: nothing else is mounted so (B54)."""
    writable = {mount.path for mount in pods(kind)[component].mounts if mount.writable}
    allowed = {"/tmp"}
    if component == "broker" and kind == "minimal":
        allowed.add("/var/lib/daypass")
    if component == "prune":
        allowed.add("/var/lib/daypass/export")
    if component == "test":
        allowed = set()
    assert writable == allowed


@pytest.mark.parametrize("openshift", [False, True])
def test_the_cluster_opens_no_key_file_to_the_group(openshift: bool) -> None:
    """Volumes are given to the group once, not file by file at each start: a broker refuses a
    signing key that others may read.
    """
    broker = {"signing": "file", "replicas": 1}
    found = render({"openshift": openshift, "broker": broker, "prune": {"enabled": True}})
    for pod in workloads(found).values():
        assert pod.pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


@pytest.mark.parametrize("kind", KINDS)
def test_each_part_has_an_account_of_its_own(kind: str) -> None:
    """An account for each, none of which lets its token be mounted; the test pod has none."""
    accounts = of_kind(manifests(kind), "ServiceAccount")
    used = {n: pods(kind)[n].pod.get("serviceAccountName") for n in components(kind)}
    assert used.pop("test") is None
    assert used == {name: f"daypass-{name}" for name in used}
    assert set(accounts) == set(used.values())
    assert all(each["automountServiceAccountToken"] is False for each in accounts.values())


def tokens(pod: Manifest) -> set[str]:
    """The audiences of the service account tokens that are mounted; "" is the API server."""
    return {
        source["serviceAccountToken"].get("audience", "")
        for volume in pod.get("volumes", ())
        for source in volume.get("projected", {}).get("sources", ())
        if "serviceAccountToken" in source
    }


def test_tokens_are_mounted_for_one_audience_each_and_only_where_used() -> None:
    """Vault's for logins, the provider's for keyless calls, the API server's for reviews."""
    assert tokens(pods("default")["proxy"].pod) == {"vault"}
    assert tokens(pods("default")["broker"].pod) == {"vault"}
    assert tokens(pods("ha")["proxy"].pod) == {"vault", "https://api.anthropic.com"}
    assert tokens(pods("ha")["broker"].pod) == {"vault", ""}
    for kind in ("ingress", "minimal", "openshift"):
        assert all(tokens(pods(kind)[each].pod) == set() for each in components(kind))
    assert tokens(pods("ha")["migrate"].pod) == tokens(pods("ha")["prune"].pod) == set()


def test_the_right_to_review_tokens_is_the_broker_s_and_by_choice() -> None:
    """One binding, to system:auth-delegator, only with `broker.tokenReview`; no other right."""
    assert of_kind(manifests("default"), "ClusterRoleBinding") == {}
    (binding,) = of_kind(manifests("ha"), "ClusterRoleBinding").values()
    assert binding["roleRef"]["name"] == "system:auth-delegator"
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "daypass-broker", "namespace": "daypass"}
    ]
    for kind in KINDS:
        rights = [each["kind"] for each in manifests(kind) if "rbac" in each["apiVersion"]]
        assert rights == (["ClusterRoleBinding"] if kind == "ha" else [])


@pytest.mark.parametrize("kind", KINDS)
def test_no_secret_stands_in_what_is_rendered(kind: str) -> None:
    """No Secret is made by the chart, and no value of the cluster's Secrets is in a manifest."""
    text = yaml.safe_dump_all(manifests(kind))
    assert of_kind(manifests(kind), "Secret") == {}
    for data in SECRETS.values():
        for value in data.values():
            assert len(value) < 4 or value not in text
    assert re.findall(r"://[^/\s]*:[^/\s]*@|sk-[a-z]|BEGIN [A-Z ]*KEY", text) == []


@pytest.mark.parametrize(("kind", "component"), PAIRS)
def test_secrets_come_as_files_but_for_three_that_cannot(kind: str, component: str) -> None:
    """By variable come only libpq's login, an AppRole's id and an egress proxy's URL (B88)."""
    entries = pods(kind)[component].container.get("env", ())
    by_variable = {each["name"] for each in entries if "valueFrom" in each}
    assert by_variable <= {"PGUSER", "PGPASSWORD", "DAYPASS_VAULT_ROLE_ID", "DAYPASS_EGRESS_PROXY"}


def test_the_parts_hold_what_the_design_gives_them() -> None:
    """The proxy has provider keys and never the owner's login; the broker no provider key; the
    migration nothing but its database.
    """
    for kind in KINDS:
        parts, found = components(kind), workloads(manifests(kind))
        files = {name: set(found[name].files().values()) for name in parts}
        held = {n: {m.name for m in pods(kind)[n].mounts if m.kind == "secret"} for n in parts}
        assert not any("owner" in each for name in ("proxy", "broker") for each in files[name])
        assert "daypass-provider-keys" not in held["broker"]
        assert held["migrate"] <= {"daypass-database", "daypass-database-ca"}
        assert held["test"] == set()
        assert kind not in PRUNING or held["prune"] == held["migrate"]


def test_the_example_for_agents_is_as_strict() -> None:
    """The example's pod passes the same rules, in a namespace that enforces the restricted
    standard, with the default token replaced by one for our audience.
    """
    text = (CHART / "examples/agent-namespace.yaml").read_text("utf-8")
    found = [each for each in yaml.safe_load_all(text) if each]
    (pod,) = of_kind(found, "Pod").values()
    assert list(offences(pod["spec"], openshift=False)) == []
    assert tokens(pod["spec"]) == {"https://daypass-proxy.daypass.svc"}
    assert pod["spec"]["runtimeClassName"] == "gvisor"
    (namespace,) = of_kind(found, "Namespace").values()
    labels = namespace["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert labels["daypass-sandboxes"] == "true"
    env = {each["name"] for each in pod["spec"]["containers"][0]["env"]}
    assert {
        "ANTHROPIC_BASE_URL",
        "ANTHROPIC_IDENTITY_TOKEN_FILE",
        "ANTHROPIC_FEDERATION_RULE_ID",
        "ANTHROPIC_ORGANIZATION_ID",
    } <= env
