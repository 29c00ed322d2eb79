"""The broker's command line: what its commands print, and how it fails."""

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

import daypass_migrations
from daypass_broker import db, schema
from daypass_broker.__main__ import main

POLICY = """
profiles:
  coding:
    authorization_details:
      - {type: llm_inference, provider: anthropic, endpoints: [messages], models: ["claude-*"]}
    budget_usd: 1
tenants:
  acme: {profiles: [coding]}
orchestrators:
  acme-ci: {tenant: acme}
"""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment with every setting the broker needs, over a database not yet there."""
    found = f"sqlite:///{tmp_path / 'daypass.db'}"
    settings = {
        "DAYPASS_ISSUER": "http://127.0.0.1:8700",
        "DAYPASS_PUBLIC_URL": "http://127.0.0.1:8700",
        "DAYPASS_DATABASE_URL": found,
        "DAYPASS_BROKER_INTERNAL": f"unix:{tmp_path / 'b.sock'}",
        "DAYPASS_BROKER_KEYS_DIR": str(tmp_path / "keys"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return found


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run a command and return its code, output and complaints."""
    code = main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_bootstrap(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Migrate, apply a policy and make credentials: all a first administrator needs."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    assert run(capsys, "migrate") == (0, f"database is at revision {daypass_migrations.HEAD}\n", "")
    code, out, _ = run(capsys, "apply", str(tmp_path / "policy.yaml"), "--dry-run")
    assert (code, out.splitlines()[-1]) == (0, "dry run: nothing was written")
    _, out, _ = run(capsys, "apply", str(tmp_path / "policy.yaml"))
    assert "created tenants.acme" in out.splitlines()
    assert run(capsys, "apply", str(tmp_path / "policy.yaml")) == (0, "nothing to change\n", "")
    _, out, _ = run(capsys, "apply", str(tmp_path / "policy.yaml"), "--json")
    assert json.loads(out)["created"] == []
    _, out, err = run(capsys, "credential", "create", "--role", "admin")
    assert out.startswith("dpa_")
    assert "shown once" in err
    more = ("--role", "orchestrator", "--orchestrator", "acme-ci", "--json")
    _, out, _ = run(capsys, "credential", "create", *more)
    assert json.loads(out)["credential"].startswith("dpo_")
    engine = db.connect(url)
    with db.read(engine) as conn:
        assert len(conn.execute(sa.select(schema.credential)).all()) == 2
    engine.dispose()


@pytest.mark.usefixtures("url")
def test_problems_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever goes wrong is one line on standard error and exit code 1, never a traceback."""
    run(capsys, "migrate")
    (tmp_path / "bad.yaml").write_text("profiles: {coding: {budget_usd: -1}}")
    for words, expected in (
        (("apply", str(tmp_path / "missing.yaml")), "missing.yaml: No such file"),
        (("apply", str(tmp_path / "bad.yaml")), "profiles.coding"),
        (("credential", "create", "--role", "orchestrator"), "orchestrator"),
        (("tls", "--dir", str(tmp_path / "bad.yaml"), "--host", "x"), "cannot use"),
    ):
        code, out, err = run(capsys, *words)
        assert (code, out) == (1, "")
        assert expected in err
        assert err.startswith("daypass-broker: ")
        assert err.count("\n") == 1


def test_a_policy_is_applied_with_two_settings(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`apply` needs the database alone, and heeds the shortest life of a token."""
    for name in ("DAYPASS_ISSUER", "DAYPASS_PUBLIC_URL", "DAYPASS_BROKER_INTERNAL"):
        monkeypatch.delenv(name)
    (tmp_path / "policy.yaml").write_text(POLICY)
    run(capsys, "migrate")
    monkeypatch.setenv("DAYPASS_MIN_TOKEN_TTL", "900")
    assert run(capsys, "apply", str(tmp_path / "policy.yaml"))[0] == 0
    engine = db.connect(url)
    with db.read(engine) as conn:
        assert conn.execute(sa.select(schema.profile.c.token_ttl_s)).scalars().all() == [900]
    engine.dispose()


@pytest.mark.usefixtures("url")
def test_serve_needs_a_migrated_database(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Served on a database that was never migrated, the broker names the command to run."""
    monkeypatch.setattr("daypass_core.hardening.harden", lambda: None)
    monkeypatch.setattr("daypass_core.hardening.forget_environment", lambda: None)
    monkeypatch.setattr("daypass_core.log.configure", lambda service, level: None)
    code, _, err = run(capsys, "serve")
    assert code == 1
    assert "python -m daypass_broker migrate" in err


def test_missing_settings_are_named_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every missing setting is named at once, with exit code 2."""
    for name in ("DAYPASS_ISSUER", "DAYPASS_DATABASE_URL", "DAYPASS_PUBLIC_URL"):
        monkeypatch.delenv(name, raising=False)
    code, _, err = run(capsys, "serve")
    assert code == 2
    assert all(name in err for name in ("DAYPASS_ISSUER", "DAYPASS_DATABASE_URL"))


def test_a_password_in_the_url_is_never_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A database that cannot be reached is told without its address or password."""
    url = f"postgresql://user:canary-password@/x?host={tmp_path}"
    monkeypatch.setenv("DAYPASS_DATABASE_URL", url)
    for words in (("migrate",), ("credential", "create", "--role", "admin")):
        code, _, err = run(capsys, *words)
        assert code == 1
        assert "canary-password" not in err
        assert err.count("\n") == 1


def test_openapi_prints_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    """The OpenAPI document is printed without any setting."""
    code, out, _ = run(capsys, "openapi")
    assert code == 0
    assert json.loads(out)["openapi"].startswith("3.1")


def test_tls_prints_the_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`tls` makes the files, says where they are, and the second time that it kept them."""
    words = ("tls", "--dir", str(tmp_path / "tls"), "--host", "127.0.0.1", "--host", "localhost")
    code, out, _ = run(capsys, *words, "--json")
    made = json.loads(out)
    assert (code, made["renewed"]) == (0, True)
    assert Path(made["ca"]).read_text().startswith("-----BEGIN CERTIFICATE")
    assert "kept" in run(capsys, *words)[1]


@pytest.mark.parametrize("words", [(), ("nonsense",), ("credential",), ("tls", "--dir", "x")])
def test_wrong_usage(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage is exit code 2 with the usage on standard error."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_lost_keys_are_replaced(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`keys replace` retires the active key whose file is gone, and no other."""
    run(capsys, "migrate")
    assert run(capsys, "keys", "replace")[1].startswith("nothing to replace")
    next((tmp_path / "keys").glob("launch-*.pem")).unlink()
    assert run(capsys, "keys", "replace")[1].startswith("replaced the launch key")
    engine = db.connect(url)
    with db.read(engine) as conn:
        rows = conn.execute(sa.select(schema.signing_key)).all()
    engine.dispose()
    assert sorted((row.purpose, row.state) for row in rows) == [
        ("access", "active"),
        ("launch", "prepared"),
        ("launch", "retired"),
        ("renewal", "active"),
    ]
