"""The OpenBao the demo and the tests stand on: its least-privilege token, its seal, its silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.services.openbao import OpenBao
from demo.services.process import ServiceError

pytestmark = pytest.mark.openbao


@pytest.fixture(scope="module")
def bao(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBao]:
    """One server for the tests of this file."""
    with OpenBao.start(tmp_path_factory.mktemp("openbao")) as server:
        server.put("secret/llm/acme", api_key="key-of-acme")
        server.put("secret/llm/globex", api_key="key-of-globex")
        yield server


def test_a_token_reads_the_entry_it_was_made_for(bao: OpenBao) -> None:
    """A token made for one entry reads exactly that entry, and can look at itself."""
    token = bao.token_for(["secret/llm/acme"])
    entry = bao.request("GET", "secret/data/llm/acme", token=token)
    assert entry["data"]["data"] == {"api_key": "key-of-acme"}
    assert (
        "root" not in bao.request("GET", "auth/token/lookup-self", token=token)["data"]["policies"]
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "secret/data/llm/globex"),
        ("GET", "secret/metadata/llm/acme"),
        ("LIST", "secret/metadata/llm"),
        ("POST", "secret/data/llm/acme"),
        ("DELETE", "secret/data/llm/acme"),
        ("GET", "sys/mounts"),
    ],
)
def test_a_token_does_nothing_else(bao: OpenBao, method: str, path: str) -> None:
    """Another entry, metadata, lists, writes and the system are refused with 403."""
    token = bao.token_for(["secret/llm/acme"])
    body = {"data": {"api_key": "planted"}} if method == "POST" else None
    with pytest.raises(ServiceError, match="403"):
        bao.request(method, path, body, token=token)


def test_a_sealed_server_answers_503_until_it_is_unsealed(bao: OpenBao) -> None:
    """Sealing turns reads into 503, unsealing brings the same values back."""
    bao.seal()
    try:
        with pytest.raises(ServiceError, match="503"):
            bao.request("GET", "secret/data/llm/acme")
    finally:
        bao.unseal()
    assert bao.request("GET", "secret/data/llm/acme")["data"]["data"]["api_key"] == "key-of-acme"


def test_its_own_secrets_are_not_left_lying_about(bao: OpenBao) -> None:
    """Root token and unseal key are on no command line and in no file the server leaves behind."""
    command = Path(f"/proc/{bao.pid}/cmdline").read_bytes()
    assert bao.root_token.encode() not in command
    left = [path for path in bao.log.parent.rglob("*") if path.is_file()]
    assert left == [bao.log]
    text = bao.log.read_text()
    assert "post-unseal setup complete" in text
    assert "Unseal Key" not in text
    assert bao.root_token not in text


def test_a_stopped_server_is_gone(tmp_path: Path) -> None:
    """Leaving the block ends the process and frees its port; stopping twice does no harm."""
    with OpenBao.start(tmp_path) as server:
        pid = server.pid
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(OSError, match="refused"):
        server.request("GET", "sys/health")
    server.stop()
