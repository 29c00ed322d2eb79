"""The Compose file: valid, as strict as the chart, with one way out and secrets in files."""

import base64
import hashlib
import hmac
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import compose_spec
import psycopg
import pytest
import yaml
from sqlalchemy.engine import make_url

from daypass_broker import settings as broker_settings
from daypass_core import server
from daypass_proxy import settings as proxy_settings
from tests.packaging.test_wheels import ROOT
from tests.servers.postgres import PostgresServer

DEPLOY = ROOT / "deploy"
FILE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OURS = ("migrate", "broker", "proxy")


def test_the_file_fits_the_specification() -> None:
    """No key that Compose does not know; every network, volume and secret that is used is there."""
    compose_spec.PyCompose.from_json(json.dumps(FILE)).validate()
    broken = {**FILE, "services": {"x": {"image": "a:1", "reed_only": True}}}
    with pytest.raises(ValueError, match="reed_only"):
        compose_spec.PyCompose.from_json(json.dumps(broken))


@pytest.mark.parametrize("name", [*OURS, "agent"])
def test_our_services_can_do_no_more_than_they_must(name: str) -> None:
    """Nobody's user, read-only root, no capabilities, no new privileges."""
    service = SERVICES[name]
    assert service["user"] == "65532:65532"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert not service["image"].endswith(":latest")


def test_versions_of_the_images_are_ours() -> None:
    """The images are those that the chart's version would take."""
    chart = yaml.safe_load((DEPLOY / "helm/daypass/Chart.yaml").read_text("utf-8"))
    for name in OURS:
        image = "daypass-proxy" if name == "proxy" else "daypass-broker"
        assert SERVICES[name]["image"] == f"{image}:{chart['appVersion']}"


def test_who_shares_a_network_with_whom() -> None:
    """A sandbox meets the proxy alone, in a network without a way out; only the proxy has one to
    providers; only the broker's admin port is published, and on loopback.
    """
    members: dict[str, set[str]] = {}
    for name, service in SERVICES.items():
        for network in service["networks"]:
            members.setdefault(network, set()).add(name)
    assert members["sandboxes"] == {"proxy", "agent"}
    assert members["outside"] == {"proxy"}
    assert members["inside"] == {"postgres", "openbao", "migrate", "broker", "proxy"}
    assert members["admin"] == {"broker"}
    assert FILE["networks"]["sandboxes"]["internal"] is True
    assert FILE["networks"]["inside"]["internal"] is True
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"broker": ["127.0.0.1:8701:8701"]}


def test_secrets_are_files_and_each_goes_where_it_is_needed() -> None:
    """No secret in a variable; the owner's login is the migration's, the vault's the proxy's, and
    the agent holds its own launch credential and the authority's certificate only.
    """
    text = yaml.safe_dump(SERVICES)
    assert "password@" not in text
    assert all(set(each) == {"file"} for each in FILE["secrets"].values())
    held = {name: set(service.get("secrets", ())) for name, service in SERVICES.items()}
    assert held["agent"] == {"ca.pem", "launch.jwt"}
    assert {name for name, own in held.items() if "vault-secret-id" in own} == {"proxy"}
    assert {name for name, own in held.items() if "owner-url" in own} == {"migrate"}
    assert held["broker"].isdisjoint({"proxy-url", "vault-secret-id", "owner-url"})
    ignored = (DEPLOY / "compose/.gitignore").read_text("utf-8").split()
    assert ignored == ["secrets/"]
    assert all(each["file"].startswith("./compose/secrets/") for each in FILE["secrets"].values())


def settings_of(name: str, folder: Path) -> dict[str, str]:
    """The environment of a service, with its secrets in a folder."""
    for secret in SERVICES[name]["secrets"]:
        text = "postgresql://a:b@postgres:5432/daypass" if secret.endswith("-url") else "x"
        (folder / secret).write_text(text)
    environment: dict[str, str] = SERVICES[name]["environment"]
    return {k: v.replace("/run/secrets", str(folder)) for k, v in environment.items()}


def test_broker_and_proxy_accept_their_settings(tmp_path: Path) -> None:
    """Nothing is missing or malformed, and each is given more time to end than it takes."""
    broker = broker_settings.load(settings_of("broker", tmp_path))
    proxy = proxy_settings.load(settings_of("proxy", tmp_path))
    assert proxy.issuer == broker.issuer
    assert proxy.broker_url == f"http://broker:{broker.internal.port}"
    assert str(broker.public_url).endswith(f":{proxy.listen[0].port}")
    after = server.CUTTING_SECONDS + server.UNWIND_SECONDS + server.CLOSE_SECONDS
    for name, drain in (
        ("proxy", proxy.server.drain_seconds),
        ("broker", broker.broker_drain_seconds),
    ):
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) >= drain + after + 5


@pytest.mark.postgres
def test_the_prepared_secrets_make_the_logins(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """What prepare.sh makes is read by make-logins.sh: both logins exist, with the passwords of
    their URLs, each a member of its role and of nothing else; made twice, it stays as it is.
    """
    for _ in range(2):
        subprocess.run(["/bin/sh", DEPLOY / "compose/prepare.sh", tmp_path / "s"], check=True)
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
    url = make_url(postgres_server.new_database())
    try:
        environment = {
            "PATH": f"{postgres_server.bin_path}:{os.defpath}",
            "PGHOST": str(url.query["host"]),
            "POSTGRES_USER": url.username or "",
            "POSTGRES_DB": url.database or "",
            "SECRETS": str(tmp_path / "s"),
        }
        script = DEPLOY / "compose/make-logins.sh"
        subprocess.run(["/bin/sh", script], env=environment, check=True, capture_output=True)
        for name in ("broker", "proxy"):
            assert _roles(url.set(drivername="postgresql"), name) == [f"daypass_{name}"]
            assert _verifies(
                url, name, make_url((tmp_path / "s" / f"{name}-url").read_text()).password
            )
    finally:
        postgres_server.run("DROP ROLE IF EXISTS broker, proxy")
        postgres_server.drop_database(url.render_as_string(hide_password=False))


def _roles(url: Any, login: str) -> list[str]:
    query = """SELECT r.rolname FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid
               JOIN pg_roles l ON l.oid = m.member WHERE l.rolname = %s AND l.rolcanlogin"""
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        return [name for (name,) in connection.execute(query, (login,))]


def _verifies(url: Any, login: str, password: str | None) -> bool:
    """Whether a login's stored verifier is that of a password (SCRAM, RFC 5803)."""
    query = "SELECT rolpassword FROM pg_authid WHERE rolname = %s"
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as connection:
        (stored,) = connection.execute(query, (login,)).fetchone() or ("",)
    _, iterations_salt, keys = stored.split("$")
    iterations, _, salt = iterations_salt.partition(":")
    salted = hashlib.pbkdf2_hmac(
        "sha256", (password or "").encode(), base64.b64decode(salt), int(iterations)
    )
    client = hmac.digest(salted, b"Client Key", "sha256")
    expected: str = base64.b64encode(hashlib.sha256(client).digest()).decode()
    return expected == str(keys).partition(":")[0]
