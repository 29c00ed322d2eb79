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
    assert settings.keys_dir == Path("/var/lib/daypass/keys")
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


def test_the_password_of_the_database_is_not_shown() -> None:
    """The settings' repr leaves the database URL out."""
    assert "hunter2" not in repr(load(NEEDED))
