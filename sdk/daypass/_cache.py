"""The token cache on disk: one small file, and a lock beside it, shared by processes.

Several processes of one sandbox (an agent, its children, a command line) hold one launch
credential. The file lets them share one access token, and makes sure that a renewal
generation, which the broker honours once, is used by one of them at a time.

The file is written as official clients write the credentials of a profile, so that it can be one:
see `_profile`. They renew what is in it as well, and keep what we put beside theirs. They do not
know our lock; when both renew at once, the broker's grace gives both the same generation.

A missing, torn, foreign or unreadable file is the same as an empty one: the token is fetched
again. Nothing here raises because of what the file contains.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from daypass._errors import DaypassError
from daypass._files import private_dir, read_private, write_private

try:
    import fcntl
except ImportError:  # no file locks on this system: one process per cache
    fcntl = None  # type: ignore[assignment]

# Both are the official clients' own words.
_VERSION = "1.0"
_TYPE = "oauth_token"
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Stored:
    """What the file holds. `expires_at` is wall-clock epoch seconds, `lifetime` seconds.

    `lifetime` may be that of an earlier token when an official client wrote the file.
    """

    access_token: str = field(repr=False)
    expires_at: float
    lifetime: float
    refresh_token: str | None = field(repr=False)
    launch_id: str | None


def _content(stored: Stored) -> dict[str, object]:
    """What is written; official clients want whole seconds, and no generation that is null."""
    content = {"version": _VERSION, "type": _TYPE, **stored.__dict__}
    content["expires_at"] = int(stored.expires_at)
    return {name: value for name, value in content.items() if value is not None}


def launch_id(launch: str) -> str:
    """A short name for a launch credential that does not give it away."""
    return hashlib.sha256(launch.encode()).hexdigest()[:32]


class TokenCache:
    """The file at `path`; `path` None keeps nothing, so every process is on its own."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def load(self) -> Stored | None:
        """What is stored, or None when there is nothing usable."""
        data = read_private(self.path) if self.path else None
        if data is None:
            return None
        try:
            found = json.loads(data)
            if found["version"] != _VERSION or not isinstance(found["access_token"], str):
                return None
            refresh, launch = found.get("refresh_token"), found.get("launch_id")
            return Stored(
                access_token=found["access_token"],
                expires_at=float(found["expires_at"]),
                lifetime=float(found["lifetime"]),
                refresh_token=refresh if isinstance(refresh, str) else None,
                launch_id=launch if isinstance(launch, str) else None,
            )
        except (ValueError, KeyError, TypeError):
            return None

    def save(self, stored: Stored) -> bool:
        """Replace the file; False when that is not possible (read-only or full disk)."""
        if self.path is None:
            return False
        try:
            write_private(self.path, json.dumps(_content(stored)).encode())
        except OSError:
            return False
        return True

    @contextmanager
    def locked(
        self,
        wait_seconds: float,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> Iterator[bool]:
        """Hold the lock between processes; gives False when another kept it for `wait_seconds`.

        A lock dies with its holder, so a killed process blocks nobody. Gives True at once where
        there is nothing to share.
        """
        descriptor = self._open_lock()
        if descriptor is None:
            yield True
            return
        try:
            give_up = clock() + wait_seconds
            while not (got := _try_lock(descriptor)) and clock() < give_up:
                sleep(_POLL_SECONDS)
            yield got
        finally:
            os.close(descriptor)

    def _open_lock(self) -> int | None:
        if self.path is None or fcntl is None:
            return None
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        try:
            return os.open(self.path.with_name(self.path.name + ".lock"), flags, 0o600)
        except OSError:
            return None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def default_path(directory: Path, key: str) -> Path | None:
    """Where processes with the same launch credential meet; None when no private place exists.

    The proxy's address is no part of it: a forwarder may listen on another port each time.
    """
    try:
        private_dir(directory)
    except (OSError, DaypassError):
        return None
    return directory / f"{launch_id(key)}.json"
