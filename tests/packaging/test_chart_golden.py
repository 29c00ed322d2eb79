"""What the chart must never lose: probes, budgets, time to end, settings, one database."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from daypass_broker import settings as broker_settings
from daypass_core import server
from daypass_proxy import settings as proxy_settings
from tests.packaging import chart_pages
from tests.packaging.chart_values import KINDS, SECRETS, manifests, of_kind, pods, values
from tests.servers.chart import Workload, render, workloads

SERVICES = ("broker", "proxy")


@pytest.mark.parametrize("kind", KINDS)
def test_the_services_accept_the_settings_that_the_chart_gives(kind: str, tmp_path: Path) -> None:
    """Broker and proxy read their rendered environments without a problem: nothing that they need
    is missing, nothing has a form that they refuse (B88).
    """
    broker = broker_settings.load(pods(kind)["broker"].lay_out(tmp_path / "broker"))
    proxy = proxy_settings.load(pods(kind)["proxy"].lay_out(tmp_path / "proxy"))
    assert broker.issuer == proxy.issuer
    assert broker.audience == proxy.audience
    assert proxy.tls is not None
    assert broker.tls_cert is not None


@pytest.mark.parametrize("kind", KINDS)
def test_the_settings_say_what_the_values_say(kind: str, tmp_path: Path) -> None:
    """What was asked for arrives: signing, login, drain, where the proxy finds the broker."""
    broker = broker_settings.load(pods(kind)["broker"].lay_out(tmp_path / "broker"))
    proxy = proxy_settings.load(pods(kind)["proxy"].lay_out(tmp_path / "proxy"))
    assert broker.keys.store == ("file" if kind == "minimal" else "transit")
    method = {"ingress": "approle", "openshift": "token", "minimal": None}.get(kind, "kubernetes")
    assert (proxy.vault and proxy.vault.method) == method
    assert proxy.server.drain_seconds == 300
    assert proxy.server.ready_seconds == 5
    assert proxy.broker_url == "http://daypass-broker.daypass.svc:8710"
    (service,) = [
        s
        for s in of_kind(manifests(kind), "Service").values()
        if s["metadata"]["name"] == "daypass-broker"
    ]
    assert service["spec"]["ports"][0]["port"] == 8710
    assert broker.internal.port == pods(kind)["broker"].ports["internal"]
    assert broker.admin.port == pods(kind)["broker"].ports["admin"]
    assert proxy.listen[0].port == pods(kind)["proxy"].ports["public"]
    assert proxy.metrics_listen[0].port == pods(kind)["proxy"].ports["metrics"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("component", SERVICES)
def test_every_setting_of_the_chart_is_one(kind: str, component: str) -> None:
    """Each DAYPASS_ variable of a service stands in docs/reference/settings.md for it."""
    known = chart_pages.documented(component)
    known |= {name for name in chart_pages.documented("proxy") if "_VAULT_" in name}
    ours = {name for name in pods(kind)[component].env if name.startswith("DAYPASS_")}
    assert ours - known == set()


@pytest.mark.parametrize("kind", KINDS)
def test_the_three_logins_come_from_the_same_place(kind: str) -> None:
    """Migration, prune and services have their database by the same kind of reference; owner's
    jobs the very same one (B88).
    """
    by_component = {
        name: database(pod) for name, pod in workloads(manifests(kind)).items() if name != "test"
    }
    assert by_component["migrate"] == by_component.get("prune", by_component["migrate"])
    shapes = {tuple(sorted(name for name, _ in found)) for found in by_component.values()}
    assert len(shapes) == 1
    assert len(set(by_component.values())) == 3  # owner, broker, proxy


def database(pod: Workload) -> frozenset[tuple[str, str]]:
    """Everything by which a pod knows its database: variables, and files with their origin."""
    names = ("DAYPASS_DATABASE_URL", "DAYPASS_DATABASE_URL_FILE", "PGUSER", "PGPASSWORD")
    found = {(name, pod.env[name]) for name in names if name in pod.env}
    files = {path: text for path, text in pod.files().items() if "/database" in path}
    return frozenset(found | set(files.items()))


def test_one_login_for_all_is_the_same_reference_everywhere() -> None:
    """With the three logins set to one Secret and key, job and deployments agree to the letter
    (B88), in both forms.
    """
    one: dict[str, Any] = {
        "existingSecret": "db",
        "urlKey": "url",
        "userKey": "u",
        "passwordKey": "p",
    }
    for form in ({"form": "url"}, {"form": "login", "host": "db.example.com"}):
        logins = {"owner": one, "broker": one, "proxy": one}
        wanted = {"database": {**form, **logins}, "prune": {"enabled": True}}
        found = workloads(render(wanted))
        assert len({database(found[each]) for each in ("migrate", "prune", "broker", "proxy")}) == 1


def test_a_password_with_any_characters_reaches_the_database(tmp_path: Path) -> None:
    """With user and password in a Secret nothing is put together to a URL by the chart, so that
    nothing needs escaping (B88).
    """
    env = pods("ha")["proxy"].lay_out(tmp_path)
    assert env["PGPASSWORD"] == SECRETS["daypass-proxy"]["password"]
    assert "p@ss" not in env["DAYPASS_DATABASE_URL"]
    assert env["DAYPASS_DATABASE_URL"].startswith(
        "postgresql://daypass-rw.postgres.svc:5432/daypass?"
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("component", SERVICES)
def test_probes_give_time_and_need_no_token(kind: str, component: str) -> None:
    """Each probe may take 5 s, on plain HTTP without a credential; a start may take minutes; a
    wedged process ends in less than a minute (B55).
    """
    probes = pods(kind)[component].probes
    assert set(probes) == {"startupProbe", "readinessProbe", "livenessProbe"}
    for probe in probes.values():
        assert probe["timeoutSeconds"] >= 5
        assert set(probe["httpGet"]) == {"path", "port"}
    assert probes["livenessProbe"]["httpGet"]["path"] == "/livez"  # not the stores' (B12)
    assert probes["startupProbe"]["httpGet"]["path"] == "/livez"
    assert probes["readinessProbe"]["httpGet"]["path"] == "/readyz"
    start, live, ready = (probes[f"{each}Probe"] for each in ("startup", "liveness", "readiness"))
    assert start["periodSeconds"] * start["failureThreshold"] >= 60
    assert live["periodSeconds"] * live["failureThreshold"] + live["timeoutSeconds"] < 60
    assert ready["periodSeconds"] * ready["failureThreshold"] <= 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("component", SERVICES)
def test_a_probe_asks_a_listener_that_is_there(kind: str, component: str) -> None:
    """The probed port is that of the health listener, not one with TLS or for admins (B55)."""
    pod = pods(kind)[component]
    assert {probe["httpGet"]["port"] for probe in pod.probes.values()} == {"metrics"}
    variable = f"DAYPASS_{component.upper()}_METRICS_LISTEN"
    assert pod.env[variable] == f"0.0.0.0:{pod.ports['metrics']}"


AFTER_THE_DRAIN = server.CUTTING_SECONDS + server.UNWIND_SECONDS + server.CLOSE_SECONDS


@pytest.mark.parametrize(("ready", "drain"), [(5, 300), (0, 1), (30, 3600)])
def test_a_pod_has_more_time_to_end_than_its_streams(ready: int, drain: int) -> None:
    """The grace period covers readiness, drain, cutting, settling and closing (B53)."""
    own = {"readySeconds": ready, "drainSeconds": drain}
    found = workloads(render({"proxy": own, "broker": own}))
    for component in SERVICES:
        assert found[component].grace >= ready + drain + AFTER_THE_DRAIN + 5


def test_the_drain_that_the_grace_is_made_for_is_the_one_that_is_set() -> None:
    """The pods are told the same seconds (B53), and by default no stream of five minutes is cut."""
    found = workloads(render())
    assert found["proxy"].env["DAYPASS_DRAIN_SECONDS"] == "300"
    assert found["broker"].env["DAYPASS_BROKER_DRAIN_SECONDS"] == "15"
    assert all(found[each].env["DAYPASS_READY_SECONDS"] == "5" for each in SERVICES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollout_takes_nothing_away_before_the_new_is_there(kind: str) -> None:
    """No pod goes before its successor is ready (B53); only a volume of one node forbids it."""
    for name, deployment in of_kind(manifests(kind), "Deployment").items():
        strategy = deployment["spec"]["strategy"]
        if kind == "minimal" and name == "daypass-broker":
            assert strategy == {"type": "Recreate"}
        else:
            assert strategy["rollingUpdate"]["maxUnavailable"] == 0


@pytest.mark.parametrize(
    ("wanted", "budgets"),
    [
        ({"proxy": {"replicas": 1}, "broker": {"replicas": 1}}, set()),
        ({"proxy": {"replicas": 3}, "broker": {"replicas": 1}}, {"daypass-proxy"}),
        ({"proxy": {"replicas": 1}, "broker": {"replicas": 2}}, {"daypass-broker"}),
        (
            {"proxy": {"replicas": 1, "autoscaling": {"enabled": True}}},
            {"daypass-proxy", "daypass-broker"},
        ),
        (
            {"proxy": {"replicas": 3, "autoscaling": {"enabled": True, "minReplicas": 1}}},
            {"daypass-broker"},
        ),
        ({"podDisruptionBudget": {"enabled": False}}, set()),
    ],
)
def test_a_budget_never_blocks_a_drain(wanted: dict[str, Any], budgets: set[str]) -> None:
    """No disruption budget where there may be one pod; else one pod at a time, counted from above
    (B56).
    """
    found = of_kind(render(wanted), "PodDisruptionBudget")
    assert set(found) == budgets
    for budget in found.values():
        assert budget["spec"]["maxUnavailable"] == 1
        assert "minAvailable" not in budget["spec"]
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_with_autoscaling_nobody_else_sets_the_number_of_pods() -> None:
    """`replicas` is left out with an autoscaler, which never goes below two by default (B56)."""
    on, off = render({"proxy": {"autoscaling": {"enabled": True}}}), render()
    assert "replicas" not in of_kind(on, "Deployment")["daypass-proxy"]["spec"]
    assert of_kind(off, "Deployment")["daypass-proxy"]["spec"]["replicas"] == 2
    (scaler,) = of_kind(on, "HorizontalPodAutoscaler").values()
    assert scaler["spec"]["minReplicas"] == 2
    assert scaler["spec"]["scaleTargetRef"]["name"] == "daypass-proxy"
    assert of_kind(off, "HorizontalPodAutoscaler") == {}


def test_scaling_goes_by_a_metric_that_the_proxy_has() -> None:
    """The number of open calls is a metric of docs/reference/metrics.md, a gauge of each pod."""
    (scaler,) = of_kind(manifests("ha"), "HorizontalPodAutoscaler").values()
    (pod,) = [each["pods"] for each in scaler["spec"]["metrics"] if each["type"] == "Pods"]
    page = (chart_pages.ROOT / "docs/reference/metrics.md").read_text("utf-8")
    assert re.search(rf"^\| `{pod['metric']['name']}` \| gauge \| . \|", page, re.M)


def test_several_brokers_do_not_keep_keys_in_files_of_their_own() -> None:
    """By default keys are in Vault's transit engine; a shared volume is the other way."""
    assert pods("default")["broker"].env["DAYPASS_SIGNING"] == "transit"
    shared = {"broker": {"signing": "file", "keys": {"accessMode": "ReadWriteMany"}}}
    found = render(shared)
    (claim,) = of_kind(found, "PersistentVolumeClaim").values()
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    strategy = of_kind(found, "Deployment")["daypass-broker"]["spec"]["strategy"]["type"]
    assert strategy == "RollingUpdate"


def test_the_migration_runs_before_the_rest_and_once() -> None:
    """As a hook it goes before install and upgrade, and cleans up when it succeeded (B52, B87)."""
    (job,) = of_kind(manifests("default"), "Job").values()
    notes = job["metadata"]["annotations"]
    assert notes["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert notes["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_nothing_is_removed_unless_asked_for() -> None:
    """Prune is off by default; on, it exports to a volume that outlives the release."""
    assert of_kind(manifests("default"), "CronJob") == {}
    found = render({"prune": {"enabled": True}})
    (job,) = of_kind(found, "CronJob").values()
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    (claim,) = of_kind(found, "PersistentVolumeClaim").values()
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    pod = workloads(found)["prune"]
    target = pod.args[pod.args.index("--export") + 1]
    assert pod.mount(target).writable
    assert pod.mount(target).name == claim["metadata"]["name"]
    assert "--audit-months" not in pod.args


def test_an_ordinary_migration_job_is_named_by_what_it_runs() -> None:
    """A Job cannot be changed: the same values give the same name, another image another one."""

    def name(tag: str) -> str:
        wanted = {"migrate": {"mode": "job"}, "image": {"broker": {"tag": tag}}}
        (job,) = of_kind(render(wanted), "Job")
        return job

    assert name("1.0") == name("1.0")
    assert name("1.0") != name("1.1")
    (job,) = of_kind(render({"migrate": {"mode": "job"}}), "Job").values()
    assert "annotations" not in job["metadata"]
    assert of_kind(render({"migrate": {"mode": "off"}}), "Job") == {}


@pytest.mark.parametrize("component", ["migrate", "prune", *SERVICES])
def test_the_commands_exist(component: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each container's command line is one that its program knows."""
    pod = pods("ha")[component]
    python, dash_m, module = pod.command
    assert (python, dash_m) == ("python", "-m")
    main = importlib.import_module(f"{module}.__main__").main
    with pytest.raises(SystemExit) as ended:
        main([*pod.args, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for flag in (each for each in pod.args if each.startswith("--")):
        assert flag in shown


def test_the_ingress_lets_streams_run() -> None:
    """No buffering either way, hours of silence, no second try of a call that was sent."""
    notes = of_kind(manifests("ingress"), "Ingress")["daypass-proxy"]["metadata"]["annotations"]
    short = {
        name.removeprefix("nginx.ingress.kubernetes.io/"): value for name, value in notes.items()
    }
    assert short["proxy-buffering"] == short["proxy-request-buffering"] == "off"
    assert int(short["proxy-read-timeout"]) > 3600
    assert short["proxy-next-upstream"] == "off"
    assert short["backend-protocol"] == "HTTPS"
    assert short["proxy-ssl-verify"] == "on"  # from the values


def test_token_requests_may_go_straight_to_the_broker() -> None:
    """`/v1/oauth/token`, exactly, leads to the internal listener, all else to the proxy."""
    found = of_kind(manifests("ingress"), "Ingress")
    (rule,) = found["daypass-token"]["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert (path["path"], path["pathType"]) == ("/v1/oauth/token", "Exact")
    assert path["backend"]["service"] == {"name": "daypass-broker", "port": {"number": 8710}}
    notes = found["daypass-token"]["metadata"]["annotations"]
    assert "nginx.ingress.kubernetes.io/backend-protocol" not in notes
    for each in found.values():
        assert each["spec"]["tls"][0]["hosts"] == ["llm.example.com"]


def test_certificates_bear_the_names_that_are_used() -> None:
    """By cert-manager: the Services' names, the public one, and localhost for a forwarded port."""
    found = of_kind(manifests("ha"), "Certificate")
    proxy, broker = found["daypass-proxy"]["spec"], found["daypass-broker-admin"]["spec"]
    assert {"daypass-proxy.daypass.svc", "llm.example.com"} <= set(proxy["dnsNames"])
    assert {"daypass-broker-admin.daypass.svc", "localhost"} <= set(broker["dnsNames"])
    volumes = {v["name"]: v for v in pods("ha")["proxy"].pod["volumes"]}
    assert volumes["tls"]["secret"]["secretName"] == proxy["secretName"]


def test_pods_of_a_kind_are_spread() -> None:
    """Over nodes and zones, counting the pods of one rollout."""
    for component in SERVICES:
        spread = pods("ha")[component].pod["topologySpreadConstraints"]
        assert {each["topologyKey"] for each in spread} == {
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
        }
        assert {each["whenUnsatisfiable"] for each in spread} == {values("ha")["topologySpread"]}
        assert all(each["matchLabelKeys"] == ["pod-template-hash"] for each in spread)


def test_metrics_of_both_are_scraped_by_one_monitor() -> None:
    """The ServiceMonitor selects the metrics Services of broker and proxy and no other."""
    (monitor,) = of_kind(manifests("ha"), "ServiceMonitor").values()
    wanted = monitor["spec"]["selector"]["matchLabels"]
    services = of_kind(manifests("ha"), "Service").items()
    found = {
        name for name, each in services if wanted.items() <= each["metadata"]["labels"].items()
    }
    assert found == {"daypass-proxy-metrics", "daypass-broker-metrics"}
    assert of_kind(manifests("default"), "ServiceMonitor") == {}


def test_an_installation_that_is_gone_is_missed_beside_others() -> None:
    """Where the operator scrapes, the alerts of nothing at all look at the release's namespace."""
    (rule,) = of_kind(manifests("ha"), "PrometheusRule").values()
    alerts = {each["alert"]: each["expr"] for g in rule["spec"]["groups"] for each in g["rules"]}
    assert alerts["DaypassProxyGone"] == 'absent(daypass_build_info{namespace="daypass"})'
    assert alerts["DaypassBrokerGone"] == 'absent(daypass_broker_build_info{namespace="daypass"})'
    (alone,) = of_kind(render({"monitoring": {"prometheusRule": True}}), "PrometheusRule").values()
    assert "namespace=" not in str(alone["spec"])


def test_services_lead_to_the_pods() -> None:
    """Each Service selects the pods of one component by their labels, and ports by name."""
    for kind in KINDS:
        for service in of_kind(manifests(kind), "Service").values():
            selector = service["spec"]["selector"]
            component = selector["app.kubernetes.io/component"]
            deployment = of_kind(manifests(kind), "Deployment")[f"daypass-{component}"]
            assert deployment["spec"]["selector"]["matchLabels"] == selector
            labels = deployment["spec"]["template"]["metadata"]["labels"]
            assert selector.items() <= labels.items()
            for port in service["spec"]["ports"]:
                assert port["targetPort"] in pods(kind)[component].ports
