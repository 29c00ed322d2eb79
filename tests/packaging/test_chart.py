"""The Helm chart: it lints, renders to valid manifests, and refuses values that make no sense."""

import functools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import pytest
import tomllib
from kubernetes_validate import utils

from tests.packaging import chart_pages
from tests.packaging.chart_values import KINDS, manifests, of_kind, values
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


@pytest.mark.parametrize(
    ("release", "wanted"),
    [
        ("team.a", {}),
        ("daypass", {"fullnameOverride": "team.a", "nameOverride": "gate.way"}),
        ("2026", {"fullnameOverride": "llm"}),
    ],
)
def test_whatever_a_release_is_called_its_names_are_taken(
    release: str, wanted: dict[str, Any]
) -> None:
    """Services have names without dots, and labels are text, not numbers."""
    found = render(wanted, name=release)
    for each in found:
        check(each, NEWEST)
    names = of_kind(found, "Service")
    assert all(re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in names)


def test_a_version_that_names_its_build_makes_labels(tmp_path: Path) -> None:
    """A chart of version 0.1.0+sha.1, as some tools pack it, has labels that Kubernetes takes."""
    copy = tmp_path / "daypass"
    shutil.copytree(CHART, copy)
    text = (copy / "Chart.yaml").read_text("utf-8")
    changed = re.sub(r"^((?:v|appV)ersion: .*?)(?=\"?$)", r"\1+sha.1", text, flags=re.M)
    assert changed.count("+sha.1") == 2
    (copy / "Chart.yaml").write_text(changed, "utf-8")
    for each in render({"image": {"broker": {"tag": "1"}, "proxy": {"tag": "1"}}}, folder=copy):
        for value in each["metadata"]["labels"].values():
            assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value)


def test_two_releases_share_a_namespace() -> None:
    """No object of one bears a name of the other, and no certificate lies in the other's Secret."""
    wanted = {"tls": {"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}}}
    one, two = (render(wanted, name=name) for name in ("daypass", "daypass-eu"))
    names = [{(m["kind"], m["metadata"]["name"]) for m in release} for release in (one, two)]
    assert not names[0] & names[1]
    secrets = [
        {each["spec"]["secretName"] for each in of_kind(release, "Certificate").values()}
        for release in (one, two)
    ]
    assert len(secrets[0] | secrets[1]) == 4


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
    ("a pod as another one", {"podLabels": {"app.kubernetes.io/component": "proxy"}}),
    ("a pod of another release", {"podLabels": {"app.kubernetes.io/instance": "x"}}),
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
        "broker.keysMove is between",
        {
            "vault": {"address": ""},
            "broker": {"signing": "file", "replicas": 1, "keysMove": True},
        },
    ),
    ("share one directory", {"broker": {"keysMove": True, "replicas": 2}}),
    ("begins with a letter", {"fullnameOverride": "1st"}),
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
    assert "limits.memory" not in text
    open_wide = {
        "networkPolicies": {"enabled": False},
        "broker": {"trustedProxies": ["10.0.0.0/8"]},
        "proxy": {"workers": 2},
    }
    warned = helm_python.Chart.load(CHART).render(open_wide)["daypass/templates/NOTES.txt"]
    assert "say to the broker where they are" in warned
    assert "limits.memory is 2Gi with proxy.workers=2" in warned
    quiet = helm_python.Chart.load(CHART).render(values("ha"), name="one", namespace="two")
    assert "is empty" not in quiet["daypass/templates/NOTES.txt"]


def test_the_chart_can_be_packed(tmp_path: Path) -> None:
    """The archive holds everything: rendered from it, the manifests are the same, and the example
    that is spoken of at the end of an install is there.
    """
    archive = helm_python.package(CHART, destination=tmp_path)
    files = {each["name"] for each in helm_python.Chart.load(archive).files}
    assert "examples/agent-namespace.yaml" in files
    packed = helm_python.Chart.load(archive).render({}, name="daypass", namespace="daypass")
    assert packed == helm_python.Chart.load(CHART).render({}, name="daypass", namespace="daypass")
