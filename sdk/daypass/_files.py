"""Files that hold credentials: written whole or not at all, readable by nobody else.

Used by the token cache, `daypass run` (token file, profile) and `daypass up` (state directory).
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from daypass._errors import SettingsError

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)


def private_dir(path: Path) -> Path:
    """Create `path` with mode 0700, or check that it is a real directory of ours and private.

    The place may lie in a world-writable /tmp, where anybody can create the name first.
    Raises `SettingsError` when it is a link, someone else's or open to others.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = os.lstat(path)
    ours = not hasattr(os, "geteuid") or found.st_uid == os.geteuid()
    if (
        not stat.S_ISDIR(found.st_mode)
        or not ours
        or (os.name == "posix" and found.st_mode & 0o077)
    ):
        raise SettingsError(
            f"{path} is not a private directory of this user",
            hint=f"run `chmod 700 {path}`, or choose another directory",
        )
    return path


def write_private(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` atomically by `data`; a reader sees the old bytes or the new, never a mix."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(6).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_private(path: Path, *, limit: int = 65_536) -> bytes | None:
    """The bytes of a private file of ours, or None when it is missing, foreign or not private.

    A doubtful file is treated like a missing one: its content could have been planted.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            return None
        if os.name == "posix" and (found.st_uid != os.geteuid() or found.st_mode & 0o077):
            return None
        data = file.read(limit + 1)
    return None if len(data) > limit else data


def read_credential(path: Path) -> str:
    """The text of a launch credential file, read anew each time because it may be replaced.

    Links are followed here: Kubernetes projects its files through them.
    Raises `SettingsError` when there is nothing usable.
    """
    try:
        value = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise SettingsError(
            f"cannot read the launch credential {path}: {reason}",
            hint="check that the orchestrator put it there",
        ) from None
    if not value:
        raise SettingsError(
            f"the launch credential {path} is empty", hint="ask the orchestrator for a new one"
        )
    return value
