"""The proxy's settings: strict, all problems at once, never a value in a message."""

import json
from pathlib import Path

import pytest

from daypass_core.secret import Secret
from daypass_core.settings import SettingsError
from daypass_proxy import postgres
from daypass_proxy.key_references import parse_keys, references, shared
from daypass_proxy.settings import Settings, load

GOOD = {
    "DAYPASS_ISSUER": "http://broker.test",
    "DAYPASS_DATABASE_URL": "sqlite:////var/lib/daypass/daypass.db",
    "DAYPASS_BROKER_URL": "unix:/run/daypass/broker.sock",
    "DAYPASS_ANTHROPIC_KEYS": "acme=env://ACME_KEY",
    "ACME_KEY": "sk-ant-secret-value",
}


def read(**changes: str) -> Settings:
    """Load the good settings with changes."""
    return load({**GOOD, **changes})


def problems(**changes: str) -> str:
    """Return the message of settings that must not load."""
    with pytest.raises(SettingsError) as caught:
        read(**changes)
    return str(caught.value)


def test_defaults() -> None:
    """With the required names alone, everything else has its published default."""
    settings = read()
    assert settings.audience == "daypass-proxy"
    assert [str(listen) for listen in settings.listen] == ["127.0.0.1:8700"]
    assert settings.anthropic_url == "https://api.anthropic.com"
    assert settings.upstream_ca_file is None
    assert settings.upstream_private is False
    assert settings.egress_proxy is None
    assert settings.max_body_bytes == 33554432
    assert settings.connect_seconds == 5
    assert settings.first_byte_seconds == 600
    assert settings.idle_seconds == 300
    assert settings.call_seconds == 3600
    assert settings.lease_seconds == 60
    assert settings.poll_seconds == 0.05
    assert settings.stale_seconds == 31
    assert settings.stale_stream_seconds == 61
    assert settings.header_seconds == 10
    assert settings.tls is None
    assert settings.vault is None
    assert settings.database_path == Path("/var/lib/daypass/daypass.db")


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_postgres(scheme: str) -> None:
    """The broker's two spellings are taken; the view polls less often, the password is hidden."""
    settings = read(DAYPASS_DATABASE_URL=f"{scheme}://me:pa%24%24@db.test:5433/daypass")
    assert settings.database_path is None
    assert settings.poll_seconds == 0.5
    assert "pa%24" not in repr(settings)
    assert postgres.parse(settings.database_url) == {
        "user": "me",
        "password": "pa$$",
        "host": "db.test",
        "port": "5433",
        "dbname": "daypass",
    }


def test_postgres_is_not_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL that libpq cannot read repeats nothing; without the driver it is said how to get it."""
    text = problems(DAYPASS_DATABASE_URL="postgresql://me:sk-ant%zz@db.test/daypass")
    assert "DAYPASS_DATABASE_URL: must be postgresql://" in text
    assert "sk-ant" not in text
    monkeypatch.setattr("daypass_proxy.settings.find_spec", lambda _: None)
    text = problems(DAYPASS_DATABASE_URL="postgresql://db.test/daypass")
    assert "pip install 'daypass-proxy[postgres]'" in text


def test_all_problems_at_once() -> None:
    """Every name at fault is in one message."""
    text = problems(
        DAYPASS_ISSUER="",
        DAYPASS_DATABASE_URL="mysql://x",
        DAYPASS_BROKER_URL="ftp://x",
        DAYPASS_MAX_BODY_BYTES="many",
        DAYPASS_PROXY_LISTEN="nowhere",
    )
    for name in ("ISSUER", "DATABASE_URL", "BROKER_URL", "MAX_BODY_BYTES", "PROXY_LISTEN"):
        assert f"DAYPASS_{name}" in text


def test_values_are_never_shown() -> None:
    """A secret pasted into a setting is not repeated by its message or by repr (attack row 41)."""
    secret = "sk-ant-pasted-by-mistake"
    text = problems(
        DAYPASS_ANTHROPIC_KEYS=f"acme={secret}",
        DAYPASS_DATABASE_URL=f"postgresql://u:{secret}@h/db",
        DAYPASS_ANTHROPIC_URL=f"https://u:{secret}@h",
        DAYPASS_BROKER_URL=secret,
    )
    assert secret not in text
    assert secret not in repr(read(DAYPASS_DATABASE_URL=f"postgresql://u:{secret}@h/db"))
    assert GOOD["ACME_KEY"] not in repr(read())


@pytest.mark.parametrize(
    ("value", "host", "port", "user", "password"),
    [
        ("http://egress.test:3128", "egress.test", 3128, "", None),
        ("http://[::1]:3128/", "::1", 3128, "", None),
        ("http://me:p%40ss%2F@egress.test:3128", "egress.test", 3128, "me", "p@ss/"),
    ],
)
def test_egress_proxy(value: str, host: str, port: int, user: str, password: str | None) -> None:
    """An egress proxy has a host and a port, and a credential that is hidden from then on."""
    settings = read(DAYPASS_EGRESS_PROXY=value)
    proxy = settings.egress_proxy
    assert proxy is not None
    assert (proxy.host, proxy.port, proxy.user) == (host, port, user)
    assert proxy.password == (None if password is None else Secret(password))
    assert "p@ss" not in repr(settings)


@pytest.mark.parametrize(
    "value",
    [
        "egress.test:3128",
        "https://egress.test:3128",
        "socks5://egress.test:3128",
        "http://egress.test",
        "http://egress.test:0",
        "http://egress.test:99999",
        "http://egress.test:3128/path",
        "http://egress.test:3128?x",
        "http://user@egress.test:3128",
        "http://sk-ant-pasted:%0d%0a@egress.test:3128",
        "http://a%3Ab:sk-ant-pasted@egress.test:3128",
    ],
)
def test_egress_proxy_is_not_usable(value: str) -> None:
    """Whatever is not plainly an HTTP proxy is a problem that repeats nothing of it (row 41)."""
    text = problems(DAYPASS_EGRESS_PROXY=value)
    assert "DAYPASS_EGRESS_PROXY" in text
    assert "egress.test" not in text
    assert "pasted" not in text


def test_env_secrets_are_taken_here() -> None:
    """The value of an env:// reference is read with the settings and hidden in a Secret."""
    settings = read()
    assert list(settings.env_secrets) == ["ACME_KEY"]
    assert str(settings.env_secrets["ACME_KEY"]) == "***"


def test_env_secret_missing() -> None:
    """An env:// reference to an unset variable is a problem that names it."""
    assert "ACME_KEY" in problems(ACME_KEY="")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://h", "https://h"),
        ("https://h/", "https://h"),
        ("https://h/v1", "https://h"),
        ("https://h/v1/", "https://h"),
        ("https://h/anthropic", "https://h/anthropic"),
        ("https://h/anthropic/v1", "https://h/anthropic"),
        ("http://127.0.0.1:8301", "http://127.0.0.1:8301"),
    ],
)
def test_upstream_url_forms(given: str, kept: str) -> None:
    """B46: a final slash or /v1 of the provider's base is dropped, a prefix is kept."""
    assert read(DAYPASS_ANTHROPIC_URL=given).anthropic_url == kept


@pytest.mark.parametrize(
    "url",
    [
        "https://h/../x",
        "https://h/%2e",
        "https://h//x",
        "https://h?x=1",
        "https://h#x",
        "h",
        "ftp://h",
    ],
)
def test_upstream_url_refused(url: str) -> None:
    """An upstream URL that could be read two ways is refused."""
    assert "DAYPASS_ANTHROPIC_URL" in problems(DAYPASS_ANTHROPIC_URL=url)


@pytest.mark.parametrize("name", ["DAYPASS_ANTHROPIC_URL", "DAYPASS_OPENAI_URL"])
@pytest.mark.parametrize("url", ["http://api.example.com", "http://93.184.216.34/v1"])
def test_keys_do_not_pass_in_the_clear(name: str, url: str) -> None:
    """Plain http is for the inside alone: a name leads there with the switch for it."""
    assert "in the clear" in problems(**{name: url})
    assert read(**{name: url, "DAYPASS_UPSTREAM_PRIVATE": "1"}).upstream_private
    for inside in ("http://localhost:1", "http://10.0.0.5", "http://[::1]:1", "http://169.254.1.1"):
        assert read(**{name: inside}).origin("anthropic")


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1:8700", "http://127.0.0.1:8700"),
        ("127.0.0.1:8700", "http://localhost:8700/v1"),
        ("0.0.0.0:8700", "http://127.0.0.1:8700"),
        ("[::1]:8700", "http://[::1]:8700"),
        ("unix:/run/p.sock,127.0.0.1:80", "http://127.0.0.1"),
        ("10.0.0.1:443", "https://10.0.0.1"),
    ],
)
def test_proxy_as_its_own_upstream(listen: str, url: str) -> None:
    """A proxy that would call itself does not start."""
    text = problems(DAYPASS_PROXY_LISTEN=listen, DAYPASS_ANTHROPIC_URL=url)
    assert "points at this proxy itself" in text


def test_tls_needs_both_files() -> None:
    """A certificate without its key is a problem."""
    assert "DAYPASS_PROXY_TLS_KEY" in problems(DAYPASS_PROXY_TLS_CERT="/c.pem")
    settings = read(DAYPASS_PROXY_TLS_CERT="/c.pem", DAYPASS_PROXY_TLS_KEY="/k.pem")
    assert settings.tls is not None
    assert settings.tls.key == Path("/k.pem")


def test_identity_tokens_are_for_anthropic(tmp_path: Path) -> None:
    """B03: federation:// stands for Anthropic's keys, and for no other provider's."""
    reference = "federation:///run/id.jwt?rule=fdrl_1&organization=org-1"
    settings = read(DAYPASS_ANTHROPIC_KEYS=f"acme={reference}|2*file:///run/key")
    ((_, pool),) = settings.anthropic_keys.items()
    assert [str(one) for one in references(pool)] == [reference, "file:///run/key"]
    assert "DAYPASS_OPENAI_KEYS: names federation://" in problems(
        DAYPASS_OPENAI_KEYS=f"acme={reference}"
    )
    upstreams = tmp_path / "upstreams.json"
    own = {"own": {"url": "https://own.test/v1", "keys": f"acme={reference}"}}
    upstreams.write_text(json.dumps(own))
    assert "own: names federation://" in problems(DAYPASS_UPSTREAMS=str(upstreams))
    # Two tenants on one credential share a key, whatever its kind.
    assert "DAYPASS_SHARED_KEYS" in problems(
        DAYPASS_ANTHROPIC_KEYS=f"acme={reference},globex={reference}"
    )


def test_vault_settings(tmp_path: Path) -> None:
    """Vault references need an address and exactly one way to log in."""
    keys = "*=vault://secret/llm/{tenant}#api_key"
    assert "DAYPASS_VAULT_ADDR" in problems(DAYPASS_ANTHROPIC_KEYS=keys)
    text = problems(DAYPASS_ANTHROPIC_KEYS=keys, DAYPASS_VAULT_ADDR="https://vault.test")
    assert "DAYPASS_VAULT_TOKEN_FILE" in text
    (tmp_path / "secret_id").write_text("hush\n")
    vault = read(
        DAYPASS_ANTHROPIC_KEYS=keys,
        DAYPASS_VAULT_ADDR="https://vault.test",
        DAYPASS_VAULT_ROLE_ID="role",
        DAYPASS_VAULT_SECRET_ID_FILE=str(tmp_path / "secret_id"),
    ).vault
    assert vault is not None
    assert vault.role_id == "role"
    assert vault.secret_id_file == tmp_path / "secret_id"
    text = problems(
        DAYPASS_ANTHROPIC_KEYS=keys,
        DAYPASS_VAULT_ADDR="https://vault.test",
        DAYPASS_VAULT_ROLE_ID="role",
        DAYPASS_VAULT_SECRET_ID_FILE=str(tmp_path / "absent"),
    )
    assert "DAYPASS_VAULT_SECRET_ID_FILE" in text


@pytest.mark.parametrize(
    "keys",
    [
        "acme=env://A,beta=env://A",
        "*=env://A",
        "acme=file:///a,beta=file:///a",
        "*=vault://secret/llm/shared#k",
        "*=vault://secret/llm/{tenant}#k,beta=vault://secret/llm/acme#k",
    ],
)
def test_sharing_a_key_must_be_switched_on(keys: str) -> None:
    """One provider key for several tenants is refused unless DAYPASS_SHARED_KEYS says so."""
    changes = {
        "DAYPASS_ANTHROPIC_KEYS": keys,
        "A": "k",
        "DAYPASS_VAULT_ADDR": "https://vault.test",
        "DAYPASS_VAULT_TOKEN_FILE": "/t",
    }
    assert "DAYPASS_SHARED_KEYS" in problems(**changes)
    assert read(**changes, DAYPASS_SHARED_KEYS="1").shared_keys


@pytest.mark.parametrize(
    "keys",
    [
        "acme=env://A,beta=env://B",
        "*=vault://secret/llm/{tenant}#k",
        "*=vault://secret/llm/{tenant}#k,acme=vault://secret/llm/acme#k",
        "*=vault://secret/llm/{tenant}#k,acme=vault://secret/other#k",
        "acme=vault://secret/llm/{tenant}#k,beta=vault://secret/llm/{tenant}#k",
    ],
)
def test_keys_that_are_not_shared(keys: str) -> None:
    """References that cannot meet for two tenants need no switch."""
    assert not shared(parse_keys(keys))


@pytest.mark.parametrize(
    "value",
    ["", ",", "acme", "acme=", "=env://A", "Acme=env://A", "a=env://A,a=env://B", "a b=env://A"],
)
def test_key_tables_that_are_refused(value: str) -> None:
    """A table that cannot be read names the entry, never what stands in it."""
    with pytest.raises(ValueError, match="entry"):
        parse_keys(value)


@pytest.mark.parametrize(
    "url", ["http://broker:8702", "https://broker.internal/prefix", "unix:/run/broker.sock"]
)
def test_broker_urls(url: str) -> None:
    """The broker is a Unix socket or a plain URL."""
    assert read(DAYPASS_BROKER_URL=url).broker_url == url


@pytest.mark.parametrize("url", ["unix:relative", "http://u:p@h", "http://h?x", "broker:8702"])
def test_broker_urls_refused(url: str) -> None:
    """Anything else is a problem."""
    assert "DAYPASS_BROKER_URL" in problems(DAYPASS_BROKER_URL=url)
