"""Files that rows are exported to before they leave the database: whole, durable, verifiable.

An export is gzip of one JSON object a line, and beside it a manifest that says what it holds and
its SHA-256. The same rows give the same bytes, so an export that is made again is the same file,
and one that differs never takes another's place.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daypass_broker import db
from daypass_broker.files import PRIVATE_MODE, write_private

FORMAT = 1
_SUFFIX = ".ndjson.gz"
_MANIFEST = ".manifest.json"
_LEVEL = 6
_CHUNK = 1 << 20
_LEFT_SECONDS = 3600
_UNFINISHED = re.compile(r"\.(usage|audit)-[\w.-]+\.[0-9a-f]{16}", re.ASCII)
_SAID = {"rows", "sha256"}
_SAID_OF_TRAIL = {"first", "last", "previous"}


@dataclass(frozen=True, slots=True)
class Export:
    """One file: its name in the directory, how many rows and bytes it has, its SHA-256 in hex."""

    file: str
    rows: int
    bytes: int
    sha256: str


class _Hashing:
    """A file to be written that keeps the SHA-256 of what went into it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.bytes += len(data)
        return int(self._file.write(data))

    def flush(self) -> None:
        self._file.flush()


def write(directory: Path, stem: str, rows: Iterable[Mapping[str, object]]) -> Export:
    """Write rows to `stem`.ndjson.gz in a directory, durable before this returns.

    Where that name is taken by other rows, the file gets the next number instead. Raises OSError,
    leaving nothing behind.
    """
    unfinished = directory / f".{stem}.{secrets.token_hex(8)}"
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
    count = 0
    try:
        with os.fdopen(descriptor, "wb") as file:
            hashing = _Hashing(file)
            # No name and no time in it: equal rows are equal bytes.
            with gzip.GzipFile("", "wb", _LEVEL, hashing, mtime=0) as packed:
                for row in rows:
                    packed.write(db.to_json(dict(row)).encode() + b"\n")
                    count += 1
            file.flush()
            os.fsync(file.fileno())
        sha256 = hashing.sha256.hexdigest()
        final = _place(directory, stem, sha256)
        unfinished.replace(final)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _sync(directory)
    return Export(final.name, count, hashing.bytes, sha256)


def sweep(directory: Path, now: float) -> None:
    """Remove what killed runs have left unfinished; `now` in epoch seconds. Raises OSError.

    What was written to within the hour stays: another run may be at it.
    """
    for path in directory.glob(".*"):
        if _UNFINISHED.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError):  # finished at this moment
                if path.stat().st_mtime < now - _LEFT_SECONDS:
                    path.unlink()


def write_manifest(directory: Path, export: Export, about: Mapping[str, object]) -> None:
    """Write the manifest of an export beside it; `about` is what else is known. Raises OSError."""
    manifest = {"format": FORMAT, **about, "file": export.file, "rows": export.rows}
    manifest |= {"bytes": export.bytes, "sha256": export.sha256}
    text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
    write_private(directory / (export.file.removesuffix(_SUFFIX) + _MANIFEST), text.encode())


def is_there(directory: Path, file: str, sha256: str) -> bool:
    """Whether a directory has this file with this content. Raises OSError."""
    path = directory / file
    return path.is_file() and sha256_of(path) == sha256


def manifests(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the manifests of a directory by the names of their files.

    Raises OSError, and ValueError for one that is none.
    """
    for path in sorted(directory.glob(f"*{_MANIFEST}")):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["format"] != FORMAT or Path(found["file"]).name != found["file"]:
                raise ValueError("is of another format")
            needed = _SAID | (_SAID_OF_TRAIL if found["kind"] == "audit" else set())
            for name in sorted(needed - found.keys()):
                raise ValueError(f"does not say {name}")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path.name}: {error}") from None
        yield found


def objections(directory: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the file of a manifest: nothing for one that is whole."""
    path = directory / manifest["file"]
    if not path.is_file():
        yield f"{path.name}: is not there"
        return
    if sha256_of(path) != manifest["sha256"]:
        yield f"{path.name}: has another SHA-256 than its manifest says"
        return
    with gzip.open(path) as lines:
        count = sum(1 for _ in lines)
    if count != manifest["rows"]:
        yield f"{path.name}: has {count} rows, its manifest says {manifest['rows']}"


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _place(directory: Path, stem: str, sha256: str) -> Path:
    path, number = directory / f"{stem}{_SUFFIX}", 1
    while not _took(path) and sha256_of(path) != sha256:
        number += 1
        path = directory / f"{stem}.{number}{_SUFFIX}"
    return path


def _took(path: Path) -> bool:
    """Take a name that nobody has: a prune of another database may want it at this moment."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE))
    except FileExistsError:
        return False
    return True


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        os.fsync(descriptor)
