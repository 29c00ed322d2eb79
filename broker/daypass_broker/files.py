"""Files that hold private keys: written whole or not at all, readable by their owner only."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

PRIVATE_MODE = 0o600
PRIVATE_DIR_MODE = 0o700


def make_private_dir(path: Path) -> None:
    """Make `path` and its parents; a directory made here is its owner's alone. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)


def write_private(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically with mode 0600, durable before this returns.

    The mode is set when the file is created, so the bytes are at no moment readable by others, and
    a reader sees the old file or the new one, never half of one. Raises OSError.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def is_private(path: Path) -> bool:
    """Whether nobody but the owner may read or write `path`. Raises OSError."""
    return path.stat().st_mode & 0o077 == 0
