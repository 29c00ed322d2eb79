"""Values to render the chart with: the ready files of `ci/`, and what a cluster has beside them."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml

from tests.servers.chart import CHART, Data, Manifest, Workload, render, workloads

KINDS = ("default", "ha", "ingress", "minimal", "openshift")
PRUNING = ("ha", "openshift")
"""Kinds of values with a prune job."""

URL = "postgresql://login:p%40ss@db.postgres.svc:5432/daypass"
PEM = "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"
SECRETS: Data = {
    "daypass-database": {"owner-url": URL, "broker-url": URL, "proxy-url": URL},
    "daypass-database-ca": {"ca.crt": PEM},
    "daypass-owner": {"username": "login-of-owner", "password": "p@ss:/word"},
    "daypass-broker": {"username": "login-of-broker", "password": "p@ss:/word"},
    "daypass-proxy": {"username": "login-of-proxy", "password": "p@ss:/word"},
    "daypass-proxy-tls": {"tls.crt": PEM, "tls.key": PEM, "ca.crt": PEM},
    "daypass-broker-tls": {"tls.crt": PEM, "tls.key": PEM},
    "daypass-provider-keys": {"anthropic": "sk-ant-canary"},
    "daypass-broker-approle": {"role-id": "1", "secret-id": "2"},
    "daypass-proxy-approle": {"role-id": "1", "secret-id": "2"},
    "daypass-broker-vault": {"token": "hvs.x"},
    "daypass-proxy-vault": {"token": "hvs.x"},
    "vault-ca": {"ca.crt": PEM},
}
CONFIG_MAPS: Data = {"kube-root-ca.crt": {"ca.crt": PEM}}


def values(kind: str) -> dict[str, Any]:
    """The ready values of one kind."""
    text = (CHART / "ci" / f"{kind}-values.yaml").read_text("utf-8")
    found: dict[str, Any] = yaml.safe_load(text) or {}
    return found


@cache
def manifests(kind: str) -> list[Manifest]:
    """What the chart gives for the ready values of one kind."""
    return render(values(kind))


@cache
def pods(kind: str) -> dict[str, Workload]:
    """Its workloads by component, in a cluster that has all that they refer to."""
    return workloads(manifests(kind), secrets=SECRETS, config_maps=CONFIG_MAPS)


def components(kind: str) -> tuple[str, ...]:
    """The parts that these values make."""
    usual = ("broker", "proxy", "migrate", "test")
    return (*usual, "prune") if kind in PRUNING else usual


def of_kind(found: list[Manifest], kind: str) -> dict[str, Manifest]:
    """Manifests of one kind, by name."""
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}
