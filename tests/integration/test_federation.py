"""Attested workloads through broker and proxy as they run: unmodified clients, a real issuer."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.servers.agent import PYTHONS, Agent
from tests.servers.ca import Authority
from tests.servers.issuer import AUDIENCE, Issuer
from tests.servers.stack import Answer, Stack, call
from tests.servers.stub import StubUpstream
from tests.support import eventually

SETTINGS = {"DAYPASS_FEDERATION_NETWORKS": "127.0.0.0/8"}
LIFE = 6


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority of the issuer's certificate."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def issuer(authority: Authority) -> Iterator[Issuer]:
    """An issuer that signs for the whole module."""
    with Issuer(authority) as made:
        yield made


@pytest.fixture(scope="module")
def federated(
    tmp_path_factory: pytest.TempPathFactory,
    module_stub: StubUpstream,
    keys: str,
    authority: Authority,
) -> Iterator[Stack]:
    """A stack whose broker may ask that issuer."""
    settings = SETTINGS | {"DAYPASS_FEDERATION_CA_FILE": str(authority.file)}
    folder = tmp_path_factory.mktemp("fed")
    with Stack(folder, module_stub.url, keys, broker_settings=settings) as stack:
        yield stack


def add_rule(stack: Stack, issuer: Issuer, name: str, **fields: Any) -> dict[str, Any]:
    """Make a rule over the admin API, and wait until the broker goes by it."""
    body = {
        "name": name,
        "tenant": "acme",
        "profile": "coding",
        "issuer": issuer.url,
        "audience": AUDIENCE,
        "conditions": {"sub": name},
        **fields,
    }
    answer = stack.admin("POST", "/v1/rules", body)
    assert answer.status == 201, answer.body
    rule = dict(answer.json())
    await_in_force(stack, issuer, rule)
    return rule


def await_in_force(stack: Stack, issuer: Issuer, rule: dict[str, Any]) -> None:
    """Wait until the broker goes by a rule: it reads them once a second."""

    def in_force() -> bool:
        time.sleep(0.25)  # who fails too often is made to wait
        return exchange(stack, rule, issuer.token(sub=rule["name"])).status == 200

    eventually(in_force, timeout=20)


def exchange(stack: Stack, rule: dict[str, Any], token: str, url: str = "") -> Answer:
    """Exchange an assertion at the proxy; who is made to wait, since others failed, does so."""
    asked = {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": token,
        "federation_rule_id": rule["id"],
        "organization_id": rule["tenant"],
    }
    headers = {"content-type": "application/json"}
    body = json.dumps(asked).encode()

    def judged() -> list[Answer]:
        answer = call(url or stack.proxy_url, "POST", "/v1/oauth/token", body, headers)
        return [] if answer.json().get("error") == "slow_down" else [answer]

    return eventually(judged, timeout=20)[0]


class Kubelet:
    """Keeps a token file fresh as the kubelet does: a symlink that changes its target."""

    def __init__(self, folder: Path, fresh: Callable[[], str]) -> None:
        self.file = folder / "token"
        self._folder, self._fresh = folder, fresh
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep)

    def __enter__(self) -> "Kubelet":
        self._write(0)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _keep(self) -> None:
        number = 1
        while not self._done.wait(LIFE / 4):
            self._write(number)
            number += 1

    def _write(self, number: int) -> None:
        target, link = self._folder / f"token-{number}", self._folder / "next"
        target.write_text(self._fresh())
        link.symlink_to(target)
        os.replace(link, self.file)


Lived = tuple[dict[str, Any], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def lived(
    federated: Stack, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Lived]:
    """Every stock client's rule and what it reported of its lives, which pass side by side."""
    rules = {client: add_rule(federated, issuer, f"stock-{client[-3]}") for client in PYTHONS}
    with ExitStack() as kubelets:
        agents = {}
        for client, rule in rules.items():
            fresh = partial(projected, issuer, rule["name"])
            kubelet = kubelets.enter_context(Kubelet(tmp_path_factory.mktemp("projected"), fresh))
            environment = rule["environment"] | {"ANTHROPIC_IDENTITY_TOKEN_FILE": str(kubelet.file)}
            agents[client] = Agent.start(client, environment, seconds=2.5 * LIFE, pause=0.3)
        reports = {client: agent.reports(timeout=180) for client, agent in agents.items()}
    return {client: (rules[client], reports[client]) for client in PYTHONS}


def projected(issuer: Issuer, name: str) -> str:
    """An assertion that ends soon."""
    return issuer.token(sub=name, exp=int(time.time()) + LIFE)


@pytest.mark.sdk
@pytest.mark.parametrize("client", PYTHONS)
def test_a_stock_client_lives_on_a_projected_token(
    federated: Stack, lived: dict[str, Lived], client: str
) -> None:
    """B18, B23: four variables and a file that changes; no call fails while many assertions end."""
    rule, reports = lived[client]
    assert len(reports) > 10
    assert all(report["ok"] for report in reports), reports
    listed = federated.admin("GET", "/v1/sandboxes").json()["sandboxes"]
    (mine,) = [one for one in listed if one["rule"] == rule["id"]]
    assert mine["identity"] == {"sub": rule["name"]}
    assert len({row["token_id"] for row in federated.usage(mine)}) > 2


@pytest.mark.sdk
def test_a_revoked_workload_stops_a_stock_client(
    federated: Stack, issuer: Issuer, tmp_path: Path
) -> None:
    """Its assertions stay fresh; its client is told to stop, and the hint is in its error."""
    rule = add_rule(federated, issuer, "revoked")
    file = tmp_path / "token"
    file.write_text(issuer.token(sub="revoked"))
    assert exchange(federated, rule, file.read_text()).status == 200
    listed = federated.admin("GET", "/v1/sandboxes").json()["sandboxes"]
    (mine,) = [one for one in listed if one["rule"] == rule["id"]]
    revocation = {"scope": "sandbox", "ident": mine["id"]}
    assert federated.admin("POST", "/v1/revocations", revocation).status == 201
    file.write_text(issuer.token(sub="revoked", jti="fresh"))
    environment = rule["environment"] | {"ANTHROPIC_IDENTITY_TOKEN_FILE": str(file)}
    reports = Agent.start("anthropic 2.x", environment).reports(timeout=180)
    assert not any(report["ok"] for report in reports)
    assert "sandbox restore" in json.dumps(reports)


def test_a_disabled_rule_stops_at_once(federated: Stack, issuer: Issuer) -> None:
    """When the administrator's command has answered, no exchange succeeds."""
    rule = add_rule(federated, issuer, "disabled")
    assert exchange(federated, rule, issuer.token(sub="disabled")).status == 200
    path = f"/v1/rules/{rule['id']}"
    assert federated.admin("PATCH", path, {"state": "disabled"}).status == 200
    for number in range(5):
        token = issuer.token(sub="disabled", jti=str(number))
        assert exchange(federated, rule, token).status == 400
    assert federated.admin("PATCH", path, {"state": "active"}).status == 200
    await_in_force(federated, issuer, rule)


def test_a_new_key_of_the_issuer_needs_no_restart(federated: Stack, issuer: Issuer) -> None:
    """B14: an issuer that rotated a moment ago is believed at the first exchange."""
    rule = add_rule(federated, issuer, "rotated")
    published, issuer.keys = issuer.keys, issuer.keys[:1]
    try:
        first = exchange(federated, rule, issuer.token(sub="rotated", algorithm="RS256"))
        assert first.status == 200
        issuer.keys = published
        after = exchange(federated, rule, issuer.token(sub="rotated", algorithm="EdDSA"))
        assert after.status == 200
    finally:
        issuer.keys = published


def test_large_assertions_pass_and_larger_ones_do_not(federated: Stack, issuer: Issuer) -> None:
    """As much as stock clients read from a file gets through proxy and broker."""
    rule = add_rule(federated, issuer, "large")
    fits = issuer.token(sub="large", pad="x" * 11_500)
    assert 15_000 < len(fits) <= 16_384
    assert exchange(federated, rule, fits).status == 200
    assert exchange(federated, rule, issuer.token(sub="large", pad="x" * 12_500)).status == 400


def test_no_assertion_is_logged(federated: Stack, issuer: Issuer) -> None:
    """Neither those that were taken nor those that were refused."""
    rule = add_rule(federated, issuer, "logged")
    shown = [issuer.token(sub="logged"), issuer.token(sub="refused"), issuer.token(aud="x")]
    for token in shown:
        exchange(federated, rule, token)
    eventually(lambda: "wrong_audience" in federated.log("broker"), timeout=20)
    logs = federated.log("broker") + federated.log("proxy")
    assert rule["id"] in logs
    for token in shown:
        assert token.split(".")[1][:40] not in logs
        assert token.split(".")[2][:40] not in logs


def test_rules_are_managed_from_the_command_line(federated: Stack, tmp_path: Path) -> None:
    """A ready-made rule is added, found, disabled and removed with nothing but the command."""
    credential = tmp_path / "credential"
    credential.write_text(federated.admin_credential)
    environment = {
        "PATH": os.defpath,
        "HOME": str(tmp_path),
        "DAYPASS_ADMIN_URL": federated.admin_url,
        "DAYPASS_CREDENTIAL_FILE": str(credential),
    }

    def daypass(*words: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "daypass", "rule", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    assert "github" in daypass("templates")
    asked = ["add", "ci", "--template", "github", "--tenant", "acme", "--profile", "coding"]
    asked += ["--audience", AUDIENCE]
    refused = daypass(*asked, "--claim", "repository=acme/agents", code=1)
    assert "repository_id" in refused
    said = daypass(*asked, "--claim", "repository_id=1")
    rule = said.splitlines()[0].removeprefix("# ")
    assert f"ANTHROPIC_FEDERATION_RULE_ID={rule}" in said
    assert rule in daypass("list", "--tenant", "acme")
    assert "repository_id" in daypass("show", rule)
    assert "disabled" in daypass("disable", rule)
    assert f"removed {rule}" in daypass("remove", rule)
    assert rule not in daypass("list")
