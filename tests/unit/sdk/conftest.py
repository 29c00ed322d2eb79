"""A token endpoint, and an environment in which nothing of the machine's own shows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sdk.admin_server import AdminServer, admin_server
from tests.unit.sdk.token_server import LAUNCH, TokenServer, token_server

_OURS = ("DAYPASS_", "ANTHROPIC_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No variable of ours, no forward proxy, own home and cache directories, the umask kept."""
    import os

    for name in list(os.environ):  # noqa: TID251 - what is there has to be known to be removed
        if name.startswith(_OURS) or name.lower() in _PROXIES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    mask = os.umask(0o022)
    yield
    os.umask(mask)  # `daypass up` narrows it for its process


@pytest.fixture
def server() -> Iterator[TokenServer]:
    """A token endpoint on a loopback port."""
    with token_server() as state:
        yield state


@pytest.fixture
def launch_file(tmp_path: Path) -> Path:
    """A file with the launch credential the server knows."""
    path = tmp_path / "launch.jwt"
    path.write_text(f"{LAUNCH}\n")
    return path


@pytest.fixture
def admin() -> Iterator[AdminServer]:
    """An admin listener with canned answers."""
    with admin_server() as state:
        yield state


@pytest.fixture
def admin_environment(admin: AdminServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment points at the admin server."""
    monkeypatch.setenv("DAYPASS_ADMIN_URL", admin.url)
    monkeypatch.setenv("DAYPASS_CREDENTIAL", "dpa_1_2")
    monkeypatch.setenv("DAYPASS_DIR", str(tmp_path / "state"))
