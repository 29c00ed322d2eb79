"""Strangers' bytes: the corpus in this process, and a bounded, repeatable run by coverage each."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).with_name("corpus")
RUNS, SECONDS = 60_000, 8
"""Whichever comes first; `make fuzz` runs each target for a minute."""
_INPUTS = sorted(path.relative_to(CORPUS) for path in CORPUS.glob("*/*"))


@pytest.mark.parametrize("path", _INPUTS, ids=map(str, _INPUTS))
def test_corpus(path: Path) -> None:
    """Every input of the corpus, once-failing ones among them, is handled as promised."""
    TARGETS[path.parts[0]]((CORPUS / path).read_bytes())


def test_every_target_has_a_corpus() -> None:
    """No target starts from nothing, and no folder is without its target."""
    assert {path.parts[0] for path in _INPUTS} == set(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_by_coverage(target: str, tmp_path: Path) -> None:
    """Row 31, B27, row 20, row 7: no input that a fuzzer makes of the corpus is mishandled."""
    corpus = shutil.copytree(CORPUS / target, tmp_path / "corpus")
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.fuzz.fuzz", target, "-seed=1", "-max_len=4096",
            f"-runs={RUNS}", f"-max_total_time={SECONDS}", "-timeout=10",
            f"-artifact_prefix={tmp_path}/", str(corpus),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )  # fmt: skip
    found = [f"{path.name}: {path.read_bytes()!r}" for path in tmp_path.glob("crash-*")]
    assert done.returncode == 0, "\n".join([*found, done.stdout[-2000:], done.stderr[-3000:]])
    assert "DONE" in done.stderr or "Done" in done.stderr
