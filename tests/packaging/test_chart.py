"""The Helm chart: it lints, renders to valid manifests, and refuses values that make no sense."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import pytest
import tomllib
from kubernetes_validate import utils

from tests.packaging import chart_pages
from tests.packaging.chart_values import KINDS, manifests, values
from tests.servers.chart import CHART, Manifest, render, workloads

ROOT = Path(__file__).resolve().parents[2]
OLDEST, NEWEST = "1.27", "1.37"
# No cluster's own schemas: what these operators ask for at least.
FOREIGN: dict[str, dict[str, Any]] = {
    "ServiceMonitor": {"required": ["selector", "endpoints"]},
    "PrometheusRule": {"required": ["groups"]},
    "Certificate": {
        "required": ["secretName", "issuerRef", "dnsNames"],
        "properties": {"dnsNames": {"minItems": 1}, "issuerRef": {"required": ["name"]}},
    },
}


@pytest.fixture(scope="module", autouse=True)
def schemas_once() -> Any:
    """Kubernetes' schemas are read once, not for each manifest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
        yield


def check(manifest: Manifest, version: str) -> None:
    """Hold a manifest to the schema of its kind; unknown fields are errors."""
    foreign = FOREIGN.get(manifest["kind"])
    if foreign is None:
        kubernetes_validate.validate(manifest, version, strict=True)
    else:
        jsonschema.validate(manifest["spec"], foreign)


@pytest.mark.parametrize("kind", KINDS)
def test_lint_has_nothing_to_say(kind: str) -> None:
    """`helm lint --strict` finds no fault with any of the ready values."""
    report = helm_python.lint(CHART, values=values(kind), strict=True)
    assert report["errors"] == []
    assert [m for m in report["messages"] if m["severity"] > 1] == []


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("kind", KINDS)
def test_every_manifest_is_valid(kind: str, version: str) -> None:
    """For the oldest and the newest Kubernetes, each manifest fits its kind's schema."""
    for manifest in manifests(kind):
        check(manifest, version)


def test_a_wrong_manifest_would_be_found() -> None:
    """A field that Kubernetes does not know fails the check."""
    (deployment, *_) = [m for m in manifests("default") if m["kind"] == "Deployment"]
    broken = json.loads(json.dumps(deployment))
    broken["spec"]["template"]["spec"]["serviceAcountName"] = "typo"
    with pytest.raises(kubernetes_validate.ValidationError):
        check(broken, NEWEST)


def test_the_oldest_version_is_the_one_that_the_chart_names() -> None:
    """What is tested as oldest is what the chart asks of a cluster."""
    assert f'kubeVersion: ">={OLDEST}.0-0"' in (CHART / "Chart.yaml").read_text("utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_unique_and_complete(kind: str) -> None:
    """No two objects of a kind share a name; all carry the labels by which they are found."""
    seen = [(each["kind"], each["metadata"]["name"]) for each in manifests(kind)]
    assert len(seen) == len(set(seen))
    for each in manifests(kind):
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == "daypass"
        assert "namespace" not in each["metadata"]  # the release's own


def test_a_long_release_name_stays_within_the_limits() -> None:
    """Names of a release with the longest possible name fit into 63 characters, and differ."""
    found = render({"migrate": {"mode": "job"}}, name="a" * 53)
    names = [each["metadata"]["name"] for each in found]
    assert max(map(len, names)) <= 63
    assert {each["kind"] for each in found} >= {"Job", "Deployment", "Service"}


def test_images_are_of_the_chart_s_version() -> None:
    """Without a word about it the tag is the app's version, which is that of the packages."""
    project = tomllib.loads((ROOT / "broker/pyproject.toml").read_text("utf-8"))["project"]
    found = workloads(render({"prune": {"enabled": True}}))
    images = {name: pod.container["image"] for name, pod in found.items()}
    assert images == {
        "broker": f"daypass-broker:{project['version']}",
        "migrate": f"daypass-broker:{project['version']}",
        "prune": f"daypass-broker:{project['version']}",
        "proxy": f"daypass-proxy:{project['version']}",
        "test": f"daypass-proxy:{project['version']}",
    }


def test_an_image_may_be_named_by_digest() -> None:
    """A digest wins over the tag, behind the registry."""
    digest = "sha256:" + "a" * 64
    wanted = {"image": {"registry": "r.example.com/x", "proxy": {"digest": digest}}}
    image = workloads(render(wanted))["proxy"].container["image"]
    assert image == f"r.example.com/x/daypass-proxy@{digest}"


REFUSED_BY_SCHEMA: list[tuple[str, dict[str, Any]]] = [
    ("a typo", {"proxi": {}}),
    ("a typo below", {"proxy": {"replica": 3}}),
    ("a key instead of a reference", {"providers": {"anthropic": ["*=sk-ant-api03-x"]}}),
    ("a variable as reference", {"providers": {"anthropic": ["*=env://ANTHROPIC_API_KEY"]}}),
    ("a key in a pool", {"providers": {"openai": ["*=vault://a/b#c|sk-x"]}}),
    ("a password", {"database": {"password": "x"}}),
    ("a password in a login", {"database": {"proxy": {"password": "x"}}}),
    ("a password in parameters", {"database": {"parameters": "password=x"}}),
    ("a token", {"vault": {"token": "hvs.x"}}),
    ("a URL with a password", {"vault": {"address": "https://user:x@vault:8200"}}),
    ("an egress proxy's URL", {"providers": {"egressProxySecret": "http://u:p@proxy:3128"}}),
    ("the database's URL as setting", {"proxy": {"settings": {"DAYPASS_DATABASE_URL": "x"}}}),
    ("a setting of the chart", {"proxy": {"settings": {"DAYPASS_PROXY_LISTEN": "0.0.0.0:1"}}}),
    ("a setting of another part", {"proxy": {"settings": {"DAYPASS_KEY_DAYS": 7}}}),
    ("a setting that nobody reads", {"broker": {"settings": {"DAYPASS_KEYDAYS": 7}}}),
    ("a key as setting", {"proxy": {"settings": {"DAYPASS_CALL_SECONDS": "sk-ant-x"}}}),
    ("latest", {"image": {"proxy": {"tag": "latest"}}}),
    ("root", {"userId": 0}),
    ("no limit of memory", {"proxy": {"resources": {"limits": None}}}),
    ("no sandboxes", {"networkPolicies": {"sandboxNamespaces": None}}),
    ("all namespaces", {"networkPolicies": {"sandboxNamespaces": [{}]}}),
    ("a port below 1024", {"proxy": {"port": 443}}),
]


@pytest.mark.parametrize(
    ("what", "wrong"), REFUSED_BY_SCHEMA, ids=lambda v: v if isinstance(v, str) else ""
)
def test_the_schema_refuses(what: str, wrong: dict[str, Any]) -> None:
    """Typos and plain secrets are refused before anything is rendered."""
    with pytest.raises(helm_python.HelmError):
        render(wrong)


REFUSED_TOGETHER: list[tuple[str, dict[str, Any]]] = [
    ("share one directory", {"broker": {"signing": "file", "replicas": 2}}),
    ("needs vault.address", {"vault": {"address": ""}}),
    (
        "a provider key is at vault://",
        {"vault": {"address": ""}, "broker": {"signing": "file", "replicas": 1}},
    ),
    ("vault.broker.existingSecret", {"vault": {"auth": "approle"}}),
    ("name a provider", {"providers": {"anthropic": []}}),
    (
        "needs providers.existingSecret",
        {"providers": {"anthropic": ["*=file:///run/secrets/daypass/provider-keys/a"]}},
    ),
    ("ingress.host", {"ingress": {"enabled": True}}),
    (
        "say themselves where they are",
        {
            "ingress": {"enabled": True, "host": "a.b", "tlsSecret": "c", "tokenToBroker": True},
            "broker": {"trustedProxies": ["10.0.0.0/8"]},
        },
    ),
    ("issuerRef.name", {"tls": {"certManager": {"enabled": True}}}),
    ("database.host", {"database": {"form": "login"}}),
    ("say what may go", {"prune": {"enabled": True, "usageMonths": 0}}),
    ("cpuPercent or openCalls", {"proxy": {"autoscaling": {"enabled": True, "cpuPercent": 0}}}),
    ("above maxReplicas", {"proxy": {"autoscaling": {"enabled": True, "minReplicas": 99}}}),
    ("webhooks.vendors", {"broker": {"webhooks": {"existingSecret": "hooks"}}}),
]


@pytest.mark.parametrize(
    ("words", "wrong"), REFUSED_TOGETHER, ids=lambda v: v if isinstance(v, str) else ""
)
def test_values_that_do_not_go_together_are_refused_in_words(
    words: str, wrong: dict[str, Any]
) -> None:
    """Each sentence names what to set."""
    with pytest.raises(helm_python.HelmError, match=re.escape(words)):
        render(wrong)


def test_what_is_generated_is_current() -> None:
    """README's table, the schema's settings and the copied files are what `make chart` writes."""
    stale = [
        str(path.relative_to(ROOT))
        for path, text in chart_pages.outputs().items()
        if not path.exists() or path.read_text("utf-8") != text
    ]
    assert stale == [], "run make chart"


def test_every_value_is_documented() -> None:
    """Each value has a comment of its own or is part of one that has."""
    text = (CHART / "values.yaml").read_text("utf-8")
    assert chart_pages.undocumented(text) == []
    assert chart_pages.undocumented("a:\n  # said\n  b: 1\n  c: 2\n") == ["a.c"]


def test_every_value_has_a_type() -> None:
    """The schema knows each value, and the defaults fit it."""
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    for row in chart_pages.rows((CHART / "values.yaml").read_text("utf-8")):
        assert chart_pages.form(schema, row.path) is not None, row.path
    helm_python.Chart.load(CHART).validate_schema({})


def test_notes_tell_the_next_steps() -> None:
    """After an install the administrator reads how to go on, and is warned where it matters."""
    notes = helm_python.Chart.load(CHART).render({}, name="one", namespace="two")
    text = notes["daypass/templates/NOTES.txt"]
    assert "kubectl -n two exec deployment/one-daypass-broker -- python -m daypass_broker" in text
    assert "credential create --role admin" in text
    assert "networkPolicies.database is empty" in text
    quiet = helm_python.Chart.load(CHART).render(values("ha"), name="one", namespace="two")
    assert "is empty" not in quiet["daypass/templates/NOTES.txt"]


def test_the_chart_can_be_packed(tmp_path: Path) -> None:
    """The archive holds everything: rendered from it, the manifests are the same."""
    archive = helm_python.package(CHART, destination=tmp_path)
    packed = helm_python.Chart.load(archive).render({}, name="daypass", namespace="daypass")
    assert packed == helm_python.Chart.load(CHART).render({}, name="daypass", namespace="daypass")
