"""The search for the canary finds what it must find."""

import base64
from pathlib import Path

from tests.canary import CANARY, key_files, leaks_below


def test_search_finds_plain_and_base64(tmp_path: Path) -> None:
    """The canary is found in the clear and in base64 at every alignment, not in a key file."""
    word = CANARY[:4] + CANARY[4:]  # joined here so that this file's bytecode says nothing more
    (tmp_path / "clear.log").write_text(f"key {word} end")
    for shift in range(3):
        data = base64.b64encode(b"x" * shift + f"sk-ant-{word}-acme".encode())
        (tmp_path / f"b64-{shift}.log").write_bytes(data)
    (tmp_path / "key.secret").write_text(word)
    (tmp_path / "clean.log").write_text("nothing")
    found = leaks_below(tmp_path, except_for=key_files(tmp_path))
    for path in tmp_path.iterdir():
        path.unlink()
    assert found == ["b64-0.log", "b64-1.log", "b64-2.log", "clear.log"]
