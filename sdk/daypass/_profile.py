"""The profile that `daypass run` gives official clients when the launch credential stays here.

A profile is a directory that they find by ANTHROPIC_CONFIG_DIR: a file that says where the proxy is
and where the credentials are. These are our own token cache, so that everybody in the sandbox
renews one and the same generation: the clients themselves (RFC 6749 §6) when a token ends early,
and in good time `_keeper` and our own clients.
"""

from __future__ import annotations

import json
from pathlib import Path

from daypass._files import private_dir, write_private

# Any name will do: the broker knows clients by what they hold. Without one the official clients
# would not renew but wait for somebody else to do it, and fail when a token is revoked.
CLIENT_ID = "daypass"


def write_profile(directory: Path, base_url: str, credentials: Path, *, renewable: bool) -> Path:
    """Write a profile and give its directory; `renewable` when a generation is in `credentials`.

    Raises `SettingsError` when the directory is not private, `OSError` when it cannot be written.
    """
    found = {"type": "user_oauth", "credentials_path": str(credentials)}
    if renewable:
        found["client_id"] = CLIENT_ID
    config = {"version": "1.0", "authentication": found, "base_url": base_url}
    path = private_dir(private_dir(directory) / "configs") / "default.json"
    write_private(path, json.dumps(config).encode())
    return directory
