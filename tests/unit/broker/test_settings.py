"""The broker's settings: read once, all problems at once."""

from pathlib import Path

import pytest

from daypass_broker.settings import load
from daypass_core.settings import Listen, SettingsError

NEEDED = {
    "DAYPASS_ISSUER": "https://llm.example.com/",
    "DAYPASS_DATABASE_URL": "postgresql+psycopg://u:hunter2@db/daypass",
    "DAYPASS_BROKER_INTERNAL": "unix:/run/daypass/broker.sock",
    "DAYPASS_BROKER_KEYS_DIR": "/var/lib/daypass/keys",
    "DAYPASS_PUBLIC_URL": "https://llm.example.com",
}


def test_what_is_not_set_has_a_default() -> None:
    """Five variables are needed, the rest has the documented default."""
    settings = load(NEEDED)
    assert settings.issuer == settings.broker_audience == "https://llm.example.com"
    assert settings.admin == Listen("127.0.0.1", 8701)
    assert settings.internal == Listen(path="/run/daypass/broker.sock")
    assert (settings.audience, settings.trust_domain) == ("daypass-proxy", "daypass.local")
    assert (settings.min_token_ttl, settings.log_level) == (300, "info")
    assert settings.keys.directory == Path("/var/lib/daypass/keys")
    assert settings.ca_file is settings.tls_cert is settings.tls_key is None


def test_all_problems_come_at_once_and_without_values() -> None:
    """Every missing or wrong variable is named in one error that repeats no value."""
    wrong = {
        "DAYPASS_MIN_TOKEN_TTL": "hunter2",
        "DAYPASS_LOG_LEVEL": "hunter2",
        "DAYPASS_TRUST_DOMAIN": "Hunter2.hunter2",
        "DAYPASS_BROKER_TLS_CERT": "/hunter2.pem",
    }
    with pytest.raises(SettingsError) as error:
        load(wrong)
    for name in [*NEEDED, *(name for name in wrong if "TLS" not in name), "DAYPASS_BROKER_TLS_KEY"]:
        assert name in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    "url", ["mysql://u:hunter2@db/daypass", "hunter2", "postgresql://u:hunter2@db:port/d"]
)
def test_a_database_that_is_not_served_is_refused_by_name(url: str) -> None:
    """The database's URL is checked with the other settings, before anything opens it."""
    with pytest.raises(SettingsError, match=r"DAYPASS_DATABASE_URL: must be sqlite") as error:
        load(NEEDED | {"DAYPASS_DATABASE_URL": url})
    assert "hunter2" not in str(error.value)


def test_keys_in_a_vault(tmp_path: Path) -> None:
    """`transit` needs a vault and no keys directory; every part of it is named when wrong."""
    bare = {name: value for name, value in NEEDED.items() if "KEYS_DIR" not in name}
    file = tmp_path / "token"
    vault = {
        "DAYPASS_SIGNING": "transit",
        "DAYPASS_VAULT_ADDR": "http://127.0.0.1:8200",
        "DAYPASS_VAULT_TOKEN_FILE": str(file),
        "DAYPASS_KEY_DAYS": "0",
    }
    keys = load(bare | vault).keys
    assert (keys.store, keys.directory, keys.days) == ("transit", None, 0)
    assert (keys.transit_mount, keys.transit_key) == ("transit", "daypass")
    assert keys.vault is not None
    assert keys.vault.token_file == file
    wrong = {"DAYPASS_SIGNING": "transit", "DAYPASS_TRANSIT_KEY": "a/b", "DAYPASS_KEY_DAYS": "-1"}
    with pytest.raises(SettingsError) as error:
        load(bare | wrong)
    for name in ("DAYPASS_VAULT_ADDR", "DAYPASS_TRANSIT_KEY", "DAYPASS_KEY_DAYS"):
        assert name in str(error.value)
    with pytest.raises(SettingsError, match="DAYPASS_BROKER_KEYS_DIR"):
        load(bare)


def test_the_password_of_the_database_is_not_shown() -> None:
    """The settings' repr leaves the database URL out."""
    assert "hunter2" not in repr(load(NEEDED))


def test_where_issuers_may_be() -> None:
    """Nothing private without being named; the cluster is where a pod finds it."""
    usual = load(NEEDED).federation
    assert (usual.networks, usual.ca_file) == ((), None)
    assert usual.kubernetes.url == "https://kubernetes.default.svc"
    assert usual.kubernetes.token_file.name == "token"
    given = load(
        NEEDED
        | {
            "DAYPASS_FEDERATION_NETWORKS": "10.0.0.0/8, fd00::/8",
            "DAYPASS_FEDERATION_CA_FILE": "/etc/ca.pem",
            "DAYPASS_KUBERNETES_URL": "https://10.0.0.1:6443/",
        }
    ).federation
    assert given.networks == ("10.0.0.0/8", "fd00::/8")
    assert given.ca_file == Path("/etc/ca.pem")
    assert given.kubernetes.url == "https://10.0.0.1:6443"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DAYPASS_FEDERATION_NETWORKS", "10.0.0.1/8"),
        ("DAYPASS_FEDERATION_NETWORKS", "hunter2"),
        ("DAYPASS_KUBERNETES_URL", "http://hunter2"),
    ],
)
def test_where_issuers_cannot_be(name: str, value: str) -> None:
    """A host's address with a prefix is a mistake; the cluster is asked over https alone."""
    with pytest.raises(SettingsError, match=name) as error:
        load(NEEDED | {name: value})
    assert "hunter2" not in str(error.value)
