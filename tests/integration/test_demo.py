"""`make demo` holds all it says."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.canary import CANARY

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.llm
@pytest.mark.openbao
@pytest.mark.sdk
def test_make_demo_exits_0_and_cleans_up(tmp_path: Path) -> None:
    """Every step of the demo holds, and it leaves no process and no file behind."""
    before = set(Path("/tmp").iterdir())
    done = subprocess.run(
        ["make", "-s", "demo"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},  # noqa: TID251 - make needs its PATH
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert CANARY not in done.stdout
    for words in ("0 hits", "revoke", "booked"):
        assert words in done.stdout.lower(), done.stdout
    assert list(tmp_path.iterdir()) == []
    assert not [p for p in set(Path("/tmp").iterdir()) - before if "daypass" in p.name]
