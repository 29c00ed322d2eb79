"""How a bench with verdicts of its own ends: folder, words, figures, exit status."""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.install import say
from bench.process import BenchError, allow_descriptors

Found = tuple[str, bool, Any]
"""What is printed, whether every bound was kept, and the figures as JSON has them."""


def outcome(run: Callable[[Path], Found], figures_file: Path | None) -> int:
    """Run in a folder that goes away, print what was found, and write the figures where asked.

    Returns the exit status: 0 when every bound was kept, 1 when not, 2 when it could not run.
    """
    allow_descriptors()
    folder = Path(tempfile.mkdtemp(prefix="dpb-"))  # short: Unix socket paths are limited
    try:
        text, good, figures = run(folder)
    except BenchError as error:
        say(str(error))
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(text)
    if figures_file is not None:
        figures_file.write_text(json.dumps(figures), encoding="utf-8")
    return 0 if good else 1
