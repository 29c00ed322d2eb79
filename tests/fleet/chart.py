"""Containers as the chart renders them, made ready for a process: see `tests.servers.chart`.

Nothing is added or left out on the way: what a pod of a cluster would be given, the process gets.
Secrets are written as a kubelet writes them, for root and the pod's group.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fleet.pod import Container
from tests.fleet.service import Probe
from tests.servers.chart import Data, Mount, Workload, render, workloads

RELEASE, NAMESPACE = "daypass", "test"
SECRET_MODE = 0o440
"""As the chart's `defaultMode`."""


def containers(values: Mapping[str, Any], secrets: Data, folder: Path) -> dict[str, Container]:
    """The containers of broker, proxy and migration; their secrets lie below `folder`."""
    found = workloads(render(values, name=RELEASE, namespace=NAMESPACE), secrets=secrets)
    return {name: _container(found[name], folder / name) for name in ("broker", "proxy", "migrate")}


def _container(workload: Workload, folder: Path) -> Container:
    user = workload.uid
    assert user is not None
    served = [port for name, port in workload.ports.items() if name in ("public", "internal")]
    return Container(
        command=(*workload.command, *workload.args),
        environment=workload.env,
        ready=_probe(workload, "readinessProbe"),
        live=_probe(workload, "livenessProbe"),
        port=served[0] if served else 0,
        user=user,
        read_only=workload.read_only_root,
        empty=tuple(mount.path for mount in workload.mounts if mount.writable),
        mounts={
            mount.path: _write(mount, folder, user)
            for mount in workload.mounts
            if not mount.writable
        },
        grace_seconds=float(workload.grace),
    )


def _probe(workload: Workload, kind: str) -> Probe:
    probe = workload.probes.get(kind)
    if probe is None:
        return Probe("/", 0)  # a job has none
    get = probe["httpGet"]
    return Probe(
        path=get["path"],
        port=workload.ports[get["port"]],
        scheme=get.get("scheme", "HTTP"),
        period=float(probe["periodSeconds"]),
        timeout=float(probe["timeoutSeconds"]),
        failures=int(probe["failureThreshold"]),
    )


def _write(mount: Mount, folder: Path, user: int) -> Path:
    place = folder / mount.path.strip("/").replace("/", "-")
    place.mkdir(parents=True, exist_ok=True)
    for name, text in mount.files.items():
        file = place / name
        file.write_text(text)
        file.chmod(SECRET_MODE)
        if os.geteuid() == 0:
            shutil.chown(file, 0, user)
    return place
