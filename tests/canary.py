"""The canary: a word that every provider key of the tests contains, and the search for it."""

import base64
from collections.abc import Iterable
from pathlib import Path

CANARY = "CANARY7f3a1c9e5b2d"
KEY_SUFFIX = ".secret"  # a file with this ending is where a test keeps a key on purpose


def forms(word: str = CANARY) -> tuple[bytes, ...]:
    """The word as it may turn up: plain, and base64 at each of the three alignments."""
    plain = word.encode()
    encoded = []
    for shift in range(3):
        whole = base64.b64encode(b"\0" * shift + plain)
        encoded.append(whole[4:-4])  # without the parts that depend on the neighbours
    return (plain, *encoded)


def key_files(folder: Path) -> set[Path]:
    """The files below a folder that hold a key on purpose."""
    return {path for path in folder.rglob(f"*{KEY_SUFFIX}") if path.is_file()}


def leaks_below(folder: Path, except_for: Iterable[Path] = ()) -> list[str]:
    """Every file below a folder that contains the canary in one of its forms."""
    allowed = set(except_for)
    searched = forms()
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file() or path in allowed:
            continue
        try:
            data = path.read_bytes()
        except FileNotFoundError:  # gone since it was listed
            continue
        if any(form in data for form in searched):
            found.append(str(path.relative_to(folder)))
    return found
