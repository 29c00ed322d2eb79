"""The token cache: shared by processes, and never a reason to fail."""

import json
import os
import stat
from pathlib import Path

import pytest

from daypass import Revoked, SettingsError, TokenProvider
from daypass._cache import TokenCache, default_path
from daypass._renewal import Time
from tests.unit.sdk.token_server import LAUNCH, TokenServer, token_server


def test_an_early_renewal_does_not_wait_for_another_process(
    server: TokenServer, tmp_path: Path
) -> None:
    """While another process renews, the token at hand is good enough."""
    cache = tmp_path / "cache.json"
    now = [0.0]
    clock = Time(monotonic=lambda: now[0])
    tokens = TokenProvider(server.url, launch=LAUNCH, cache=cache, clock=clock)
    tokens.token()
    now[0] += 550
    with TokenCache(cache).locked(5) as mine:
        assert mine
        assert tokens.token() == "token-1"
    now[0] += 1.1
    assert tokens.token() == "token-2"


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b"\xff"),
        *(b'{"version": "2.0"}', b'{"version": "1.0", "access_token": 7}'),
    ],
)
def test_a_torn_cache_is_an_empty_cache(
    server: TokenServer, tmp_path: Path, content: bytes
) -> None:
    """B21: what cannot be read is fetched again and written anew."""
    cache = tmp_path / "cache.json"
    cache.write_bytes(content)
    cache.chmod(0o600)
    assert TokenProvider(server.url, launch=LAUNCH, cache=cache).token() == "token-1"
    assert json.loads(cache.read_bytes())["access_token"] == "token-1"


@pytest.mark.parametrize("planted", ["open to others", "a link"])
def test_a_planted_cache_is_not_read(server: TokenServer, tmp_path: Path, planted: str) -> None:
    """A file that others could have written, or a link to one, is not believed."""
    cache = tmp_path / "cache.json"
    content = {
        "version": "1.0",
        "access_token": "planted",
        "expires_at": 4e9,
        "lifetime": 600,
        "refresh_token": None,
        "launch_id": None,
    }
    other = tmp_path / "other.json"
    other.write_text(json.dumps(content))
    other.chmod(0o600)
    if planted == "a link":
        cache.symlink_to(other)
    else:
        other.rename(cache)
        cache.chmod(0o644)
    assert TokenProvider(server.url, launch=LAUNCH, cache=cache).token() == "token-1"
    assert not cache.is_symlink()


def test_the_cache_is_private(server: TokenServer, tmp_path: Path) -> None:
    """File and lock are for this user only, and no temporary file stays."""
    tokens = TokenProvider(
        server.url, launch=LAUNCH, env={"DAYPASS_CACHE_DIR": str(tmp_path / "d")}
    )
    tokens.token()
    assert tokens.cache_path is not None
    folder = tokens.cache_path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(list(folder.iterdir())) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_an_unusable_place_means_memory_only(server: TokenServer, tmp_path: Path) -> None:
    """Where somebody else could look or write, nothing is stored, and tokens still come."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    assert default_path(folder, LAUNCH) is None
    tokens = TokenProvider(server.url, launch=LAUNCH, env={"DAYPASS_CACHE_DIR": str(folder)})
    assert tokens.cache_path is None
    assert tokens.token() == "token-1"
    assert list(folder.iterdir()) == []


def test_a_second_process_needs_no_launch_credential(server: TokenServer, tmp_path: Path) -> None:
    """Children of `daypass run` live from the cache: token, then renewal generation."""
    server.single_use = True
    cache = tmp_path / "cache.json"
    TokenProvider(server.url, launch=LAUNCH, cache=cache).token()
    child = TokenProvider(env={"ANTHROPIC_BASE_URL": server.url, "DAYPASS_TOKEN_CACHE": str(cache)})
    assert child.token() == "token-1"
    assert child.token(rejected="token-1") == "token-2"
    assert server.incidents == []
    cache.unlink()
    os.unlink(f"{cache}.lock")
    alone = TokenProvider(env={"ANTHROPIC_BASE_URL": server.url, "DAYPASS_TOKEN_CACHE": str(cache)})
    with pytest.raises(SettingsError, match="daypass run"):
        alone.token()


def test_another_launch_credential_does_not_use_the_cache(
    server: TokenServer, tmp_path: Path
) -> None:
    """A cached token belongs to the launch credential it came from."""
    cache = tmp_path / "cache.json"
    TokenProvider(server.url, launch=LAUNCH, cache=cache).token()
    with pytest.raises(Revoked, match="replaced"):
        TokenProvider(server.url, launch="another", cache=cache).token()


def test_a_renewal_generation_outlives_its_launch_file(
    server: TokenServer, launch_file: Path
) -> None:
    """A single-use credential may be deleted after its use; renewals go on."""
    server.single_use = True
    tokens = TokenProvider(server.url, launch_file=launch_file)
    tokens.token()
    launch_file.unlink()
    assert tokens.token(rejected="token-1") == "token-2"


def test_another_port_of_the_forwarder_is_the_same_sandbox(
    server: TokenServer, launch_file: Path
) -> None:
    """Two programs one after the other, each with its own forwarder, share one lineage."""
    server.single_use = True
    with token_server() as other:
        first = TokenProvider(server.url, launch_file=launch_file)
        first.token()
        second = TokenProvider(other.url, launch_file=launch_file)
        assert second.cache_path == first.cache_path
        assert second.token() == "token-1"
        assert other.exchanges == 0


def test_each_rule_has_tokens_of_its_own(server: TokenServer, tmp_path: Path) -> None:
    """One assertion may serve several rules; our own credential has one, named or not."""
    env = {"DAYPASS_CACHE_DIR": str(tmp_path / "d")}
    own = {"ANTHROPIC_FEDERATION_RULE_ID": "fdrl_daypass_launch"}
    rules = (None, "fdrl_a", "fdrl_b")
    told = [TokenProvider(server.url, launch=LAUNCH, env=env, rule=rule).token() for rule in rules]
    assert told == ["token-1", "token-2", "token-3"]
    assert TokenProvider(server.url, launch=LAUNCH, env=env | own).token() == "token-1"
    by_environment = env | {"ANTHROPIC_FEDERATION_RULE_ID": "fdrl_b"}
    assert TokenProvider(server.url, launch=LAUNCH, env=by_environment).token() == "token-3"
