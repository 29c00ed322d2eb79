"""How to log in to Vault, from the environment: one way, complete, and named when it is wrong."""

from pathlib import Path

import pytest

from daypass_core.settings import Reader, SettingsError
from daypass_core.vault_login import Login
from daypass_core.vault_settings import SERVICE_ACCOUNT, Auth, VaultSettings, read_vault

ADDRESS = {"DAYPASS_VAULT_ADDR": "https://vault.test"}


def read(**more: str) -> VaultSettings:
    """Read settings that are right."""
    reader = Reader(ADDRESS | {f"DAYPASS_VAULT_{name}": value for name, value in more.items()})
    found = read_vault(reader, None)
    reader.done()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("more", "method", "words"),
    [
        ({"TOKEN_FILE": "/t"}, Auth.TOKEN, "token of /t"),
        ({"ROLE_ID": "r", "SECRET_ID_FILE": "FILE"}, Auth.APPROLE, "AppRole login at auth/approle"),
        ({"ROLE": "r"}, Auth.KUBERNETES, "Kubernetes login at auth/kubernetes"),
        ({"ROLE": "r", "JWT_FILE": "/j"}, Auth.JWT, "JWT login at auth/jwt"),
        (
            {"ROLE": "r", "JWT_FILE": "/j", "AUTH": "kubernetes", "MOUNT": "auth/k8s/eu"},
            Auth.KUBERNETES,
            "Kubernetes login at auth/k8s/eu",
        ),
        ({"TOKEN_FILE": "/t", "AUTH": "token"}, Auth.TOKEN, "token of /t"),
    ],
)
def test_ways_to_log_in(more: dict[str, str], method: Auth, words: str, tmp_path: Path) -> None:
    """What is set says which way it is, unless DAYPASS_VAULT_AUTH does."""
    file = tmp_path / "secret-id"
    file.write_text("hush\n")
    settings = read(**{name: value.replace("FILE", str(file)) for name, value in more.items()})
    assert settings.method is method
    assert Login(settings).words == words
    assert "hush" not in repr(settings)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "exactly one way"),
        ({"TOKEN_FILE": "/t", "ROLE": "r"}, "exactly one way"),
        ({"TOKEN_FILE": "/t", "ROLE_ID": "r"}, "exactly one way"),
        ({"ROLE_ID": "r"}, "DAYPASS_VAULT_SECRET_ID_FILE"),
        ({"JWT_FILE": "/j"}, "DAYPASS_VAULT_ROLE"),
        ({"ROLE": "r", "AUTH": "jwt"}, "DAYPASS_VAULT_JWT_FILE"),
        ({"ROLE": "r", "AUTH": "approle"}, "DAYPASS_VAULT_AUTH is approle"),
        ({"TOKEN_FILE": "/t", "AUTH": "kubernetes"}, "DAYPASS_VAULT_AUTH is kubernetes"),
        ({"TOKEN_FILE": "/t", "AUTH": "ldap"}, "DAYPASS_VAULT_AUTH: must be one of"),
        ({"TOKEN_FILE": "/t", "MOUNT": "a b"}, "DAYPASS_VAULT_MOUNT: must be"),
        ({"TOKEN_FILE": "/t", "MOUNT": "../sys"}, "DAYPASS_VAULT_MOUNT: must be"),
        ({"ROLE_ID": "r", "SECRET_ID_FILE": "/absent/file"}, "DAYPASS_VAULT_SECRET_ID_FILE"),
    ],
)
def test_ways_that_are_wrong(more: dict[str, str], said: str) -> None:
    """What is missing, or in the way, is named; no value is."""
    with pytest.raises(SettingsError) as caught:
        read(**more)
    assert said in str(caught.value)


def test_what_is_sent(tmp_path: Path) -> None:
    """B23: a login is one POST to its mount; its file is read each time, and nothing shows it."""
    file = tmp_path / "jwt"
    login = Login(VaultSettings("https://v", role="r", jwt_file=file, mount="team/jwt"))
    for text in ("first", "second"):
        file.write_text(text)
        request = login.request()
        assert (request.path, request.public) == ("/v1/auth/team/jwt/login", {"role": "r"})
        assert request.secret["jwt"].reveal() == text
        assert text not in repr(request)


def test_the_pod_s_own_token() -> None:
    """Without a file Kubernetes login uses the token that is mounted into every pod."""
    assert str(SERVICE_ACCOUNT) == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    settings = VaultSettings("https://v", role="r")
    with pytest.raises(Exception, match=str(SERVICE_ACCOUNT)):
        Login(settings).request()
