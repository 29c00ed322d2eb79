"""The profile over our cache: official clients and ours renew one generation, and none is lost."""

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daypass import TokenProvider
from daypass._profile import write_profile
from tests.unit.sdk.test_token import FakeTime
from tests.unit.sdk.token_server import LAUNCH, TokenServer

# The official client asks for its token, and again after a 401.
STOCK = """
from anthropic.lib.credentials import CredentialsFile
found = CredentialsFile()
print(found().token, found(force_refresh=True).token)
"""


def stock(directory: Path) -> list[str]:
    """The tokens that the official client takes from a profile."""
    env = {"PATH": os.defpath, "HOME": str(directory), "ANTHROPIC_CONFIG_DIR": str(directory)}
    command = [sys.executable, "-I", "-c", STOCK]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.sdk
def test_a_generation_goes_back_and_forth(server: TokenServer, tmp_path: Path) -> None:
    """We renew, the client renews, we go on with what it left, and none of us is a clone."""
    server.single_use = True
    cache = tmp_path / "cache.json"
    ours = TokenProvider(server.url, launch=LAUNCH, cache=cache)
    assert ours.token() == "token-1"
    profile = write_profile(tmp_path / "profile", server.url, cache, renewable=True)

    assert stock(profile) == ["token-1", "token-2"]
    assert ours.token(rejected="token-1") == "token-2"
    assert ours.token(rejected="token-2") == "token-3"
    assert stock(profile) == ["token-3", "token-4"]

    assert [body.get("refresh_token") for body in server.asked[1::2]] == [
        "generation-1",
        "generation-3",
    ]
    assert server.incidents == []
    assert server.exchanges == 4


@pytest.mark.sdk
def test_what_the_client_renewed_needs_no_renewal_of_ours(
    server: TokenServer, tmp_path: Path
) -> None:
    """When ours is due and the client was first, its token is taken over, with its generation."""
    server.single_use = True
    cache, fake = tmp_path / "cache.json", FakeTime()
    fake.wall_offset = time.time() - 1_800_000_000 - fake.now
    ours = TokenProvider(server.url, launch=LAUNCH, cache=cache, clock=fake.time())
    ours.token()
    stock(write_profile(tmp_path / "profile", server.url, cache, renewable=True))
    fake.now += 530
    fake.wall_offset -= 530  # the token of the client is as fresh as it was
    assert ours.token() == "token-2"
    assert server.exchanges == 2


def test_the_files_of_a_profile_are_private(tmp_path: Path) -> None:
    """Official clients refuse a profile that others could write, and it is nobody's business."""
    directory = write_profile(tmp_path / "p", "http://localhost", tmp_path / "c", renewable=False)
    config = directory / "configs" / "default.json"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert {stat.S_IMODE(one.stat().st_mode) for one in (directory, config.parent)} == {0o700}
    assert "client_id" not in json.loads(config.read_text())["authentication"]
