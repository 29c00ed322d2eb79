"""The Helm chart, rendered without a cluster, and its workloads as processes that a test can start.

`render(values)` gives the manifests; `workloads(manifests, …)` says of each Deployment, Job and
CronJob what the kubelet would run: command, environment with its references resolved, user, and
what lies under each mounted path. Secrets and config maps are given by the test, as a cluster has
them; a reference to one that is not there raises, as a pod with it would not start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "daypass"
Manifest = dict[str, Any]
Data = Mapping[str, Mapping[str, str]]
"""Secrets or config maps: by name, then by key."""

_DOWNWARD = {
    "metadata.name": "daypass-pod",
    "metadata.namespace": "daypass",
    "metadata.uid": "00000000-0000-0000-0000-000000000001",
    "spec.nodeName": "node-1",
    "status.podIP": "127.0.0.1",
}


@dataclass(frozen=True, slots=True)
class Mount:
    """What lies under one path: `kind` is emptyDir, secret, configMap, projected or claim.

    `files` are those the cluster writes, by their path below the mount: of secrets and config maps
    with their content, of a projected token with what `token` gave for its audience. `name` is that
    of the secret, config map or claim.
    """

    path: str
    kind: str
    name: str
    read_only: bool
    files: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def writable(self) -> bool:
        """Whether the process may write there."""
        return not self.read_only and self.kind in ("emptyDir", "claim")


@dataclass(frozen=True, slots=True)
class Workload:
    """One container as the kubelet starts it; `uid` is None where the cluster chooses it.

    `ports` by name; `probes` are the manifest's own, by kind; `grace` in seconds.
    """

    name: str
    kind: str
    component: str
    replicas: int | None
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    uid: int | None
    gid: int | None
    mounts: tuple[Mount, ...]
    read_only_root: bool
    ports: Mapping[str, int]
    probes: Mapping[str, Manifest]
    grace: int
    container: Manifest = field(repr=False)
    pod: Manifest = field(repr=False)

    def mount(self, path: str) -> Mount:
        """What is mounted at exactly this path."""
        (found,) = [each for each in self.mounts if each.path == path]
        return found

    def files(self) -> dict[str, str]:
        """Every file that the cluster writes into the container, by absolute path."""
        return {f"{m.path}/{name}": text for m in self.mounts for name, text in m.files.items()}

    def lay_out(self, root: Path) -> dict[str, str]:
        """Make the mounts below `root`; return the environment with their paths led there.

        For a process that shares the machine's own file system: paths in values are replaced
        wherever they stand (`*=file:///run/…`).
        """
        for mount in self.mounts:
            (root / mount.path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for path, text in self.files().items():
            (root / path.lstrip("/")).write_text(text, "utf-8")
        return {name: self._moved(value, root) for name, value in self.env.items()}

    def _moved(self, value: str, root: Path) -> str:
        """Replace paths of mounts at the beginning of a word, or after `://`; each once."""
        paths = "|".join(sorted((re.escape(each.path) for each in self.mounts), reverse=True))
        begin = r"(?:(?<=://)|(?<![\w/.-]))"
        return re.sub(rf"{begin}({paths})(?=/|$)", lambda found: f"{root}{found[1]}", value)


@cache
def chart(folder: Path = CHART) -> helm_python.Chart:
    """The chart, loaded once."""
    return helm_python.Chart.load(folder)


def render(
    values: Mapping[str, Any] | None = None,
    *,
    name: str = "daypass",
    namespace: str = "daypass",
    folder: Path = CHART,
) -> list[Manifest]:
    """Every manifest of a release, hooks and tests included, in the order of the templates.

    Raises helm_python.HelmError where the values are refused: by the schema or by a template.
    """
    wanted = dict(values or {})
    chart(folder).validate_schema(wanted)
    rendered = chart(folder).render(wanted, name=name, namespace=namespace)
    return [
        manifest
        for path, text in sorted(rendered.items())
        if path.endswith(".yaml")
        for manifest in yaml.safe_load_all(text)
        if manifest
    ]


def workloads(
    manifests: list[Manifest],
    *,
    secrets: Data | None = None,
    config_maps: Data | None = None,
    token: Callable[[str], str] = lambda audience: f"token for {audience}",
) -> dict[str, Workload]:
    """Each workload by its component: proxy, broker, migrate, prune, test.

    Without `secrets` every reference resolves to a word that names it (`secret:name/key`), enough
    to compare references; with them, a missing secret or key raises LookupError. `token` makes the
    token of a projected service account for an audience ("" is that of the API server).
    """
    cluster = _Cluster(secrets, config_maps, token)
    return {each.component: each for each in _each(manifests, cluster)}


@dataclass(frozen=True, slots=True)
class _Cluster:
    """What pods refer to."""

    secrets: Data | None
    config_maps: Data | None
    token: Callable[[str], str]

    def value(self, kind: str, name: str, key: str) -> str:
        data = self.secrets if kind == "secret" else self.config_maps
        return f"{kind}:{name}/{key}" if data is None else data[name][key]

    def files(self, kind: str, name: str, items: list[Manifest] | None) -> dict[str, str]:
        if items:
            return {item["path"]: self.value(kind, name, item["key"]) for item in items}
        data = self.secrets if kind == "secret" else self.config_maps
        return {} if data is None else dict(data[name])


def _each(manifests: list[Manifest], cluster: _Cluster) -> Iterator[Workload]:
    for manifest in manifests:
        kind, spec = manifest["kind"], manifest.get("spec", {})
        if kind in ("Deployment", "Job"):
            template = spec["template"]
        elif kind == "CronJob":
            template = spec["jobTemplate"]["spec"]["template"]
        elif kind == "Pod":
            template = manifest
        else:
            continue
        yield _workload(manifest, template["spec"], cluster)


def _workload(manifest: Manifest, pod: Manifest, cluster: _Cluster) -> Workload:
    (container,) = pod["containers"]
    security = pod.get("securityContext", {}) | container.get("securityContext", {})
    return Workload(
        name=manifest["metadata"]["name"],
        kind=manifest["kind"],
        component=manifest["metadata"]["labels"]["app.kubernetes.io/component"],
        replicas=manifest["spec"].get("replicas"),
        command=tuple(container["command"]),
        args=tuple(container.get("args", ())),
        env={each["name"]: _value(each, cluster) for each in container.get("env", ())},
        uid=security.get("runAsUser"),
        gid=security.get("runAsGroup"),
        mounts=tuple(_mounts(container, pod, cluster)),
        read_only_root=security.get("readOnlyRootFilesystem", False),
        ports={each["name"]: each["containerPort"] for each in container.get("ports", ())},
        probes={kind: container[kind] for kind in container if kind.endswith("Probe")},
        grace=pod.get("terminationGracePeriodSeconds", 30),
        container=container,
        pod=pod,
    )


def _value(entry: Manifest, cluster: _Cluster) -> str:
    if "value" in entry:
        text: str = entry["value"]
        return text
    source = entry["valueFrom"]
    if "fieldRef" in source:
        return _DOWNWARD[source["fieldRef"]["fieldPath"]]
    kind, key = (
        ("secret", "secretKeyRef") if "secretKeyRef" in source else ("config", "configMapKeyRef")
    )
    return cluster.value(kind, source[key]["name"], source[key]["key"])


def _mounts(container: Manifest, pod: Manifest, cluster: _Cluster) -> Iterator[Mount]:
    volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
    for each in container.get("volumeMounts", ()):
        kind, name, files = _volume(volumes[each["name"]], cluster)
        yield Mount(each["mountPath"], kind, name, each.get("readOnly", False), files)


def _volume(volume: Manifest, cluster: _Cluster) -> tuple[str, str, dict[str, str]]:
    if "secret" in volume:
        name = volume["secret"]["secretName"]
        return "secret", name, cluster.files("secret", name, volume["secret"].get("items"))
    if "configMap" in volume:
        name = volume["configMap"]["name"]
        return "configMap", name, cluster.files("config", name, volume["configMap"].get("items"))
    if "persistentVolumeClaim" in volume:
        return "claim", volume["persistentVolumeClaim"]["claimName"], {}
    if "projected" in volume:
        return "projected", "", _projected(volume["projected"]["sources"], cluster)
    assert "emptyDir" in volume, volume
    return "emptyDir", "", {}


def _projected(sources: list[Manifest], cluster: _Cluster) -> dict[str, str]:
    files: dict[str, str] = {}
    for source in sources:
        if "serviceAccountToken" in source:
            token = source["serviceAccountToken"]
            files[token["path"]] = cluster.token(token.get("audience", ""))
        else:
            own = source["configMap"]
            files |= cluster.files("config", own["name"], own.get("items"))
    return files
