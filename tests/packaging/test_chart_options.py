"""Values that none of the ready files set: each is rendered, valid, and understood."""

import re
import textwrap
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from daypass_broker import settings as broker_settings
from daypass_proxy import settings as proxy_settings
from tests.packaging.chart_pages import CHART, ROOT, rows
from tests.packaging.chart_values import CONFIG_MAPS, PEM, SECRETS, of_kind
from tests.packaging.test_chart_policy import offences
from tests.servers.chart import Data, Manifest, Workload, render, workloads

PLACEMENT: dict[str, Any] = {
    "podAnnotations": {"reloader.stakater.com/auto": "true"},
    "serviceAccountAnnotations": {"team": "platform"},
    "nodeSelector": {"pool": "llm"},
    "tolerations": [{"key": "llm", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "priorityClassName": "high",
}
EVERYTHING: dict[str, Any] = {
    "nameOverride": "gate",
    "listenHost": "[::]",
    "logLevel": "debug",
    "podLabels": {"team": "platform"},
    "image": {"pullSecrets": ["registry"]},
    "database": {"parameters": "", "form": "login", "host": "db", "caSecret": {"name": "db-ca"}},
    "broker": {
        **PLACEMENT,
        "signing": "file",
        "keys": {"existingClaim": "keys", "accessMode": "ReadWriteMany"},
        "webhooks": {"existingSecret": "hooks", "vendors": ["e2b", "vercel"]},
        "issuersCaSecret": {"name": "issuers-ca"},
        "trustedProxies": ["10.42.0.0/16", "fd00::/8"],
        "settings": {"DAYPASS_MIN_TOKEN_TTL": 600, "DAYPASS_FEDERATION_NETWORKS": "10.0.0.0/8"},
    },
    "vault": {"auth": "jwt", "mount": "team/jwt", "namespace": "llm"},
    "providers": {
        "anthropic": [],
        "openai": ["*=vault://secret/openai/{tenant}#api_key"],
        "upstreamsConfigMap": "upstreams",
        "pricesConfigMap": "prices",
        "caSecret": {"name": "provider-ca", "key": "ca.pem"},
        "private": True,
        "egressProxySecret": {"name": "egress"},
    },
    "proxy": {
        **PLACEMENT,
        "workers": 2,
        "settings": {"DAYPASS_CALL_SECONDS": 1800.5},
        "service": {"type": "NodePort", "port": 8443, "annotations": {"a": "b"}},
    },
    "networkPolicies": {
        "dnsCidrs": ["169.254.20.10/32"],
        "providerCidrs": [],
        "proxyEgress": [{"to": [{"podSelector": {}}]}],
        "brokerEgress": [{"to": [{"podSelector": {}}]}],
        "issuers": False,
    },
}
MORE_SECRETS: Data = {
    "daypass-database": {
        f"{login}-{key}": "x"
        for login in ("owner", "broker", "proxy")
        for key in ("user", "password")
    },
    "db-ca": {"ca.crt": PEM},
    "hooks": {"e2b": "x", "vercel": "y"},
    "issuers-ca": {"ca.crt": PEM},
    "provider-ca": {"ca.pem": PEM},
    "egress": {"url": "http://user:p%40ss@egress.example.com:3128"},
    "x-gate-proxy-tls": SECRETS["daypass-proxy-tls"],
    "x-gate-broker-tls": SECRETS["daypass-broker-tls"],
}
MORE_MAPS: Data = {"upstreams": {"upstreams.json": "{}"}, "prices": {"prices.json": "{}"}}


def manifests() -> list[Manifest]:
    """What the chart gives with everything set."""
    return render(EVERYTHING, name="x", namespace="y")


def pods() -> dict[str, Workload]:
    """Its workloads."""
    return workloads(
        manifests(), secrets={**SECRETS, **MORE_SECRETS}, config_maps={**CONFIG_MAPS, **MORE_MAPS}
    )


def test_everything_set_is_valid_and_as_strict() -> None:
    """No option opens a pod up or makes a manifest that Kubernetes refuses."""
    for manifest in manifests():
        kubernetes_validate.validate(manifest, "1.37", strict=True)
    for pod in pods().values():
        assert list(offences(pod.pod, openshift=False)) == []


def test_the_services_understand_everything_set(tmp_path: Path) -> None:
    """What was set arrives in the settings of broker and proxy."""
    broker = broker_settings.load(pods()["broker"].lay_out(tmp_path / "b"))
    proxy = proxy_settings.load(pods()["proxy"].lay_out(tmp_path / "p"))
    assert broker.issuer == proxy.issuer == "https://x-gate-proxy.y.svc:8443"
    assert {vendor: path.read_text() for vendor, path in broker.webhooks.items()} == {
        "e2b": "x",
        "vercel": "y",
    }
    assert broker.federation.ca_file is not None
    assert broker.federation.ca_file.read_text() == PEM
    assert broker.trusted_proxies == ("10.42.0.0/16", "fd00::/8")
    assert broker.min_token_ttl == 600
    assert broker.keys.directory is not None
    assert (
        broker.keys.directory.parent.is_dir()
    )  # the volume; the broker makes its own folder there
    assert proxy.listen[0].host == "::"
    assert proxy.egress_proxy is not None
    assert proxy.egress_proxy.host == "egress.example.com"
    assert proxy.upstream_ca_file is not None
    assert proxy.upstream_ca_file.read_text() == PEM
    assert proxy.prices is not None
    assert proxy.prices.read_text() == "{}"
    assert proxy.vault is not None
    assert (proxy.vault.method, proxy.vault.mount, proxy.vault.namespace) == (
        "jwt",
        "team/jwt",
        "llm",
    )
    assert proxy.call_seconds == 1800.5


@pytest.mark.parametrize("component", ["broker", "proxy"])
def test_pods_are_placed_as_asked(component: str) -> None:
    """Selectors, tolerations, priority, labels and annotations reach the pods."""
    template = of_kind(manifests(), "Deployment")[f"x-gate-{component}"]["spec"]["template"]
    for name in ("nodeSelector", "tolerations", "affinity", "priorityClassName"):
        assert template["spec"][name] == PLACEMENT[name]
    assert template["metadata"]["annotations"] == PLACEMENT["podAnnotations"]
    assert template["metadata"]["labels"]["team"] == "platform"
    account = of_kind(manifests(), "ServiceAccount")[f"x-gate-{component}"]
    assert account["metadata"]["annotations"] == PLACEMENT["serviceAccountAnnotations"]


def test_what_runs_now_and_then_is_placed_with_the_rest() -> None:
    """Migration and prune run where the broker may, the test where the proxy may."""
    placed = {name: PLACEMENT[name] for name in ("nodeSelector", "tolerations")}
    found = render({"broker": placed, "proxy": placed, "prune": {"enabled": True}})
    for component in ("migrate", "prune", "test"):
        pod = workloads(found)[component].pod
        assert {name: pod[name] for name in placed} == placed


def test_large_numbers_arrive_in_digits(tmp_path: Path) -> None:
    """A number of a values file is a float to helm; no setting and no user becomes 1e+08."""
    settings = {"DAYPASS_MAX_BODY_BYTES": 134217728, "DAYPASS_LAG_SECONDS": 0.00005}
    wanted = {"userId": 1000700000, "proxy": {"settings": settings}}
    pod = workloads(render(wanted), secrets=SECRETS)["proxy"]
    proxy = proxy_settings.load(pod.lay_out(tmp_path))
    assert proxy.max_body_bytes == 134217728
    assert proxy.server.lag_seconds == 0.00005
    assert isinstance(pod.uid, int)
    assert pod.uid == 1000700000


def test_resources_are_what_kubernetes_takes() -> None:
    """Halves of a core and decimal units are quantities too."""
    own = {"requests": {"cpu": 0.5, "memory": "500M"}, "limits": {"memory": "2G"}}
    for manifest in render({"proxy": {"resources": own}}):
        kubernetes_validate.validate(manifest, "1.37", strict=True)


@pytest.mark.parametrize("signing", ["file", "transit"])
def test_while_signing_keys_move_both_stores_are_at_hand(signing: str, tmp_path: Path) -> None:
    """`broker.keysMove` gives the broker the volume and Vault, whichever makes the new keys."""
    wanted = {"signing": signing, "keysMove": True, "replicas": 1}
    found = render({"broker": wanted})
    pod = workloads(found, secrets=SECRETS)["broker"]
    keys = broker_settings.load(pod.lay_out(tmp_path)).keys
    assert keys.store == signing
    assert keys.directory is not None
    assert keys.vault is not None
    assert pod.mount("/var/lib/daypass").writable
    assert pod.mount("/var/lib/daypass").name in of_kind(found, "PersistentVolumeClaim")
    assert of_kind(found, "Deployment")["daypass-broker"]["spec"]["strategy"]["type"] == "Recreate"


def test_token_requests_go_by_plain_http_whatever_leads_to_the_proxy() -> None:
    """What makes a controller speak https to the proxy can be undone for the broker, and is for
    ingress-nginx.
    """
    https = {"nginx.ingress.kubernetes.io/backend-protocol": "HTTPS", "x.org/server-ssl": "true"}
    own = {"annotations": https, "tokenAnnotations": {"x.org/server-ssl": "false"}}
    place = {"enabled": True, "host": "llm.example.com", "tlsSecret": "x", "tokenToBroker": True}
    found = of_kind(render({"ingress": place | own}), "Ingress")
    assert https.items() <= found["daypass-proxy"]["metadata"]["annotations"].items()
    token = found["daypass-token"]["metadata"]["annotations"]
    assert token["x.org/server-ssl"] == "false"
    assert "nginx.ingress.kubernetes.io/backend-protocol" not in token
    # What no broker took is tried at another: nobody else does, and what was sent nginx sends once.
    assert token["nginx.ingress.kubernetes.io/proxy-next-upstream"] == "error timeout"


@pytest.mark.parametrize("host", ["10.1.2.3", "[fd00::1]"])
def test_an_address_in_the_public_url_is_one_in_the_certificate(host: str) -> None:
    """An address is no DNS name: clients compare it with addresses."""
    manager = {"enabled": True, "issuerRef": {"name": "ca"}}
    found = render({"publicUrl": f"https://{host}:8443", "tls": {"certManager": manager}})
    certificate = of_kind(found, "Certificate")["daypass-proxy"]["spec"]
    assert certificate["ipAddresses"] == [host.strip("[]")]
    assert not any("10.1" in name or ":" in name for name in certificate["dnsNames"])
    assert "ipAddresses" not in of_kind(found, "Certificate")["daypass-broker-admin"]["spec"]


def test_without_tls_the_urls_say_so(tmp_path: Path) -> None:
    """`tls.enabled=false` leaves the certificates out, and sandboxes are told http."""
    found = render({"tls": {"enabled": False}, "proxy": {"service": {"port": 80}}})
    pods = workloads(found, secrets=SECRETS)
    proxy = proxy_settings.load(pods["proxy"].lay_out(tmp_path / "p"))
    broker = broker_settings.load(pods["broker"].lay_out(tmp_path / "b"))
    assert proxy.tls is None
    assert broker.tls_cert is None
    assert broker.public_url == "http://daypass-proxy.daypass.svc"
    assert not {"tls"} & {volume["name"] for volume in pods["proxy"].pod["volumes"]}


def named(page: str, known: set[str]) -> set[str]:
    """Dotted names in backticks whose first part is a value of the chart."""
    tops = {path.partition(".")[0] for path in known}
    found = re.findall(r"`([a-zA-Z]+(?:\.[a-zA-Z]+)+)(?:=[^`]*)?`", page)
    return {each for each in found if each.partition(".")[0] in tops}


def test_the_page_names_values_that_there_are() -> None:
    """Each value of docs/kubernetes.md exists, and its block of values is accepted."""
    page = (ROOT / "docs/kubernetes.md").read_text("utf-8")
    known = {row.path for row in rows((CHART / "values.yaml").read_text("utf-8"))}
    assert len(named(page, known)) > 20
    assert named(page, known) - known == set()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    assert of_kind(render(yaml.safe_load(textwrap.dedent(block))), "Certificate")


def test_the_sandboxes_label_is_the_same_everywhere() -> None:
    """Chart, example and page speak of one label, and of one service account audience."""
    example = (CHART / "examples/agent-namespace.yaml").read_text("utf-8")
    page = (ROOT / "docs/kubernetes.md").read_text("utf-8")
    (label,) = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))["networkPolicies"][
        "sandboxNamespaces"
    ][0]
    assert f'{label}: "true"' in example
    assert label in page
    issuer = workloads(render())["broker"].env["DAYPASS_ISSUER"]
    assert f'audience: "{issuer}"' in example
    assert f"--audience {issuer} " in example
