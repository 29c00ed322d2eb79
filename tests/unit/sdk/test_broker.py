"""The orchestrator's client: one call each, and a sandbox that ends whatever happens."""

import json
import stat
from pathlib import Path

import pytest

from daypass import Broker, Refused, Sandbox, SettingsError
from tests.unit.sdk.admin_server import SANDBOX, AdminServer


@pytest.fixture
def broker(admin: AdminServer) -> Broker:
    """A client of the admin server."""
    admin.answers["POST /v1/sandboxes"] = (201, SANDBOX)
    return Broker(admin.url, "dpo_x_y")


def test_a_sandbox_is_created_and_ended(admin: AdminServer, broker: Broker) -> None:
    """The context manager registers, gives the environment, and ends."""
    with broker.sandbox(profile="coding", budget_usd="2.00", tenant=None) as sandbox:
        assert sandbox.id == "sbx_a"
        assert sandbox.launch == "launch-jwt"
        assert sandbox.environment["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8700"
        assert len(admin.asked) == 1
    assert admin.calls == ["POST /v1/sandboxes", "DELETE /v1/sandboxes/sbx_a"]
    assert admin.asked[0].json() == {"profile": "coding", "budget_usd": "2.00"}
    assert admin.asked[0].headers["authorization"] == "Bearer dpo_x_y"
    assert admin.asked[0].headers["idempotency-key"]


def test_a_failure_inside_still_ends_the_sandbox(admin: AdminServer, broker: Broker) -> None:
    """The first error is the one that is raised, even if ending fails too."""
    admin.answers["DELETE /v1/sandboxes/sbx_a"] = (503, {})
    with pytest.raises(ZeroDivisionError), broker.sandbox():
        raise ZeroDivisionError
    assert admin.calls[-1] == "DELETE /v1/sandboxes/sbx_a"


def test_many_are_made_in_one_call(admin: AdminServer, broker: Broker) -> None:
    """`count` goes along and every sandbox comes back; a key of the caller's own is used."""
    admin.answers["POST /v1/sandboxes"] = (201, {"sandboxes": [SANDBOX, SANDBOX]})
    made = broker.create_many(2, idempotency_key="k", profile="coding")
    assert [sandbox.id for sandbox in made] == ["sbx_a", "sbx_a"]
    assert admin.asked[0].json() == {"profile": "coding", "count": 2}
    assert admin.asked[0].headers["idempotency-key"] == "k"


def test_a_lost_answer_is_asked_for_again(admin: AdminServer, broker: Broker) -> None:
    """The key is the same both times, so no second sandbox is left behind."""
    admin.answers["POST /v1/sandboxes"] = (201, ["lose", SANDBOX])
    assert broker.create().id == "sbx_a"
    first, second = (one.headers["idempotency-key"] for one in admin.asked)
    assert first == second


def test_lists_are_read_page_by_page(admin: AdminServer, broker: Broker) -> None:
    """Pages are asked for as they are needed, up to the limit."""
    pages = [
        {"sandboxes": [{"id": "1"}, {"id": "2"}], "next": "2"},
        {"sandboxes": [{"id": "3"}], "next": None},
    ]
    admin.answers["GET /v1/sandboxes"] = (200, pages)
    assert [row["id"] for row in broker.list(limit=150, state="active")] == ["1", "2", "3"]
    assert admin.calls == [
        "GET /v1/sandboxes?state=active&limit=100",
        "GET /v1/sandboxes?state=active&limit=100&after=2",
    ]


def test_a_policy_goes_up_as_it_is(admin: AdminServer, broker: Broker) -> None:
    """YAML stays YAML, JSON is marked as such, a mapping becomes JSON."""
    policies: list[str | bytes | dict[str, object]] = ["tenants: {}\n", b' {"tenants": {}}', {}]
    for policy in policies:
        broker.apply(policy, dry_run=isinstance(policy, bytes))
    kinds = [one.headers["content-type"] for one in admin.asked]
    assert kinds == ["application/yaml", "application/json", "application/json"]
    assert admin.calls[:2] == ["PUT /v1/policy", "PUT /v1/policy?dry_run=true"]


def test_every_other_act_is_one_call(admin: AdminServer, broker: Broker) -> None:
    """Paths, queries and bodies are the broker's, and ids cannot leave their place in the path."""
    broker.get("a/../b?c")
    broker.restore("sbx_a")
    broker.replace_launch("sbx_a")
    broker.limit("sbx_a", budget_usd="2.00", concurrency=None)
    broker.revoke("sandbox", "sbx_a", reason="stolen")
    broker.revoke("global")
    broker.revocations()
    broker.usage(tenant="acme", group_by="model", since=None)
    broker.audit(sandbox="sbx_a", after=7)
    broker.policy()
    broker.create_credential("orchestrator", "ci")
    broker.credentials()
    broker.revoke_credential("crd_a")
    broker.keys(purpose="launch")
    broker.rotate_keys(now=True)
    assert admin.calls == [
        "GET /v1/sandboxes/a%2F..%2Fb%3Fc",
        "POST /v1/sandboxes/sbx_a/restore",
        "POST /v1/sandboxes/sbx_a/launch",
        "PATCH /v1/sandboxes/sbx_a",
        "POST /v1/revocations",
        "POST /v1/revocations",
        "GET /v1/revocations",
        "GET /v1/usage?tenant=acme&group_by=model",
        "GET /v1/audit?sandbox=sbx_a&limit=100&after=7",
        "GET /v1/policy",
        "POST /v1/credentials",
        "GET /v1/credentials",
        "DELETE /v1/credentials/crd_a",
        "GET /v1/keys?purpose=launch",
        "POST /v1/keys/rotate",
    ]
    assert admin.asked[3].json() == {"budget_usd": "2.00", "concurrency": None}
    assert admin.asked[4].json() == {"scope": "sandbox", "ident": "sbx_a", "reason": "stolen"}
    assert admin.asked[5].json() == {"scope": "global"}
    assert admin.asked[14].json() == {"purpose": "access", "now": True}
    assert admin.asked[10].json() == {"role": "orchestrator", "orchestrator": "ci"}


def test_a_refusal_carries_its_field(admin: AdminServer, broker: Broker) -> None:
    """What is beyond the profile is named, with the status and the code."""
    problem = {"title": "beyond", "code": "beyond_profile", "field": "budget_usd"}
    admin.answers["POST /v1/sandboxes"] = (403, problem)
    with pytest.raises(Refused, match="beyond") as caught:
        broker.create(budget_usd="999")
    assert (caught.value.status, caught.value.field) == (403, "budget_usd")


def test_files_are_put_where_the_environment_points(tmp_path: Path) -> None:
    """For a sandbox on this machine, the files land in a private directory and are found there."""
    sandbox = Sandbox.from_answer(SANDBOX)
    environment = sandbox.write(tmp_path / "s")
    path = Path(environment["ANTHROPIC_IDENTITY_TOKEN_FILE"])
    assert path == tmp_path / "s" / "launch.jwt"
    assert path.read_text() == "launch-jwt"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_files_of_an_answer_cannot_leave_the_directory(tmp_path: Path) -> None:
    """Only the last part of a path is used."""
    row = {**SANDBOX, "files": {"/etc/../../x/passwd": "no"}, "environment": {}}
    Sandbox.from_answer(row).write(tmp_path / "s")
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["passwd"]


def test_it_finds_what_daypass_up_left(admin: AdminServer, tmp_path: Path) -> None:
    """Address and credential come from arguments, the environment, or `config.json`."""
    (tmp_path / "admin.credential").write_text("dpa_1_2\n")
    config = {"admin_url": admin.url, "credential_file": str(tmp_path / "admin.credential")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    broker = Broker(env={"DAYPASS_DIR": str(tmp_path)})
    broker.policy()
    Broker(env={"DAYPASS_ADMIN_URL": admin.url, "DAYPASS_CREDENTIAL": "dpa_3_4"}).policy()
    assert [one.headers["authorization"] for one in admin.asked] == [
        "Bearer dpa_1_2",
        "Bearer dpa_3_4",
    ]
    assert "dpa_1_2" not in repr(vars(broker)["_origin"]) + repr(broker)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """No address, no credential, an empty or unreadable file: each is said with what to do."""
    nothing = {"DAYPASS_DIR": str(tmp_path)}
    with pytest.raises(SettingsError, match="DAYPASS_ADMIN_URL"):
        Broker(env=nothing)
    with pytest.raises(SettingsError, match="DAYPASS_CREDENTIAL_FILE"):
        Broker("http://127.0.0.1:1", env=nothing)
    (tmp_path / "empty").touch()
    for name in ("empty", "none"):
        env = {**nothing, "DAYPASS_CREDENTIAL_FILE": str(tmp_path / name)}
        with pytest.raises(SettingsError, match="credential file"):
            Broker("http://127.0.0.1:1", env=env)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SettingsError, match=r"cannot read .*config\.json"):
        Broker(env=nothing)


def test_csv_comes_page_by_page(admin: AdminServer, broker: Broker) -> None:
    """Pages are found by their `link`, the heading is in the first alone, and only our own path is
    ever followed."""
    pages = [b"day,calls\r\na,1\r\n", b'day,calls\r\n"b\r\n",2\r\n', b"day,calls\r\nc,3\r\n"]
    admin.answers["GET /v1/usage"] = (200, list(pages))
    next_page = '</v1/usage?after=a%2Fb>; rel="next"'
    admin.links["/v1/usage"] = [next_page, '<https://elsewhere/v1/usage?x>; rel="next"', ""]
    found = "".join(broker.usage_csv(group_by="day", tenant=None))
    assert found == 'day,calls\r\na,1\r\n"b\r\n",2\r\n'
    assert admin.calls == [
        "GET /v1/usage?group_by=day&format=csv&limit=1000",
        "GET /v1/usage?after=a%2Fb",
    ]


def test_csv_that_is_refused_is_an_error(admin: AdminServer, broker: Broker) -> None:
    """A refusal is told as everywhere, and nothing is given before."""
    admin.answers["GET /v1/usage"] = (400, {"detail": "group_by: must be one of", "code": "x"})
    with pytest.raises(Refused, match="group_by: must be one of"):
        list(broker.usage_csv(group_by="colour"))
