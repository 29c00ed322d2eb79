"""The broker as a whole: what its internal listener answers, and when it does not start."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import daypass_migrations
from daypass_broker import audit, db, oauth
from daypass_broker.app import NotMigrated, internal_app, open_services
from daypass_broker.keys import Purpose
from daypass_core.clock import TIME_HEADER
from daypass_core.jwks import parse_jwks
from tests.support import ISSUER, TENANT
from tests.unit.broker.rig import Rig, make_settings


@pytest.fixture
def client(rig: Rig) -> Iterator[TestClient]:
    """A client of the internal listener."""
    with TestClient(internal_app(rig.services), raise_server_exceptions=False) as made:
        yield made


def test_the_key_set_is_public_for_five_minutes(rig: Rig, client: TestClient) -> None:
    """The key set holds the access key, may be cached 300 s and is the same every time."""
    answer = client.get("/.well-known/jwks.json")
    assert answer.headers["cache-control"] == "public, max-age=300"
    assert list(parse_jwks(answer.content)) == [rig.keys.active(Purpose.ACCESS).kid]
    assert client.get("/.well-known/jwks.json").content == answer.content


def test_the_metadata_is_served(client: TestClient) -> None:
    """RFC 8414: the metadata is where clients look for it, with a string-equal issuer."""
    answer = client.get("/.well-known/oauth-authorization-server")
    assert answer.json() == oauth.metadata(ISSUER)


def test_the_token_endpoint_takes_post_only(rig: Rig, client: TestClient) -> None:
    """The token endpoint issues to a POST and to nothing else; no path beside it redirects."""
    body = {"grant_type": oauth.JWT_BEARER, "assertion": rig.sandbox().launch}
    answer = client.post("/v1/oauth/token", json=body | {"organization_id": TENANT})
    assert answer.status_code == 200
    assert client.get("/v1/oauth/token").status_code == 405
    for path in ("/v1/oauth/token/", "/v1//oauth/token", "/v1/sandboxes"):
        assert client.post(path, json=body, follow_redirects=False).status_code == 404


def test_no_answer_of_the_token_endpoint_is_401_or_403(rig: Rig, client: TestClient) -> None:
    """Whatever is sent, stock clients never get a status that makes them come back at once."""
    revoked = rig.sandbox()
    rig.change(revoked, state="revoked")
    bodies = (b"", b"{}", b"\x00" * 100, json.dumps({"grant_type": "x"}).encode())
    assertion = {"grant_type": oauth.JWT_BEARER, "assertion": revoked.launch}
    for body in (*bodies, json.dumps(assertion).encode()):
        for kind in ("application/json", "application/x-www-form-urlencoded", "x"):
            answer = client.post("/v1/oauth/token", content=body, headers={"content-type": kind})
            assert answer.status_code == 400
            assert answer.json()["error"]


def test_health(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alive always, ready exactly while the store answers."""
    assert client.get("/livez").status_code == 200
    assert client.get("/readyz").status_code == 200

    def gone(_: object) -> object:
        raise db.StoreUnavailable("gone")

    monkeypatch.setattr(db, "read", gone)
    assert client.get("/readyz").status_code == 503
    assert client.get("/livez").status_code == 200


async def test_services_are_built_and_taken_down(tmp_path: Path) -> None:
    """Opened on a migrated database, the broker has keys and the store's time; twice the same."""
    settings = make_settings(tmp_path)
    daypass_migrations.upgrade(settings.database_url)
    async with open_services(settings) as services:
        kid = services.keys.active(Purpose.ACCESS).kid
        with db.read(services.engine) as conn:
            assert abs(services.clock.now() - db.now_ms(conn) / 1000) < 5
    async with open_services(settings) as services:
        assert services.keys.active(Purpose.ACCESS).kid == kid


@pytest.mark.parametrize(("ahead", "followed"), [(60, 60), (3700, 0), (-60, 0)])
async def test_a_broker_never_starts_behind_what_brokers_recorded(
    tmp_path: Path, ahead: int, followed: int
) -> None:
    """After the store's clock went back a new broker's tokens are no older than what was recorded,

    unless that lies further ahead than a token lives. The key set says what time it is.
    """
    settings = make_settings(tmp_path)
    daypass_migrations.upgrade(settings.database_url)
    async with open_services(settings) as services:
        with db.begin(services.engine) as conn:
            now = db.now_ms(conn)
            at = now + ahead * 1000
            audit.append(conn, audit.AuditTag.TOKEN_ISSUED, "system", at=at)
    async with open_services(settings) as services:
        found = services.clock.now() - now / 1000
        assert followed - 0.1 <= found < followed + 20
        with TestClient(internal_app(services)) as client:
            told = client.get("/.well-known/jwks.json").headers[TIME_HEADER]
        assert 0 <= services.clock.now() - float(told) < 10


async def test_a_database_without_schema_is_told(tmp_path: Path) -> None:
    """On a database that was never migrated the broker does not start and names the command."""
    with pytest.raises(NotMigrated, match="python -m daypass_broker migrate"):
        async with open_services(make_settings(tmp_path)):
            pass
    assert not (tmp_path / "daypass.db").exists()


async def test_an_unreachable_database_is_told(tmp_path: Path) -> None:
    """A store that is not there is one sentence without the password in its address."""
    url = f"postgresql://user:canary-password@/x?host={tmp_path}"
    with pytest.raises(db.StoreUnavailable) as caught:
        async with open_services(replace(make_settings(tmp_path), database_url=url)):
            pass
    assert "canary-password" not in str(caught.value)
