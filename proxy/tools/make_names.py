"""Write `providers/names.json` from the types of the official clients.

`python proxy/tools/make_names.py`; what is no name of a client (`own`) stays as it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "proxy" / "daypass_proxy" / "providers" / "names.json"
SCRIPT = ROOT / "tests" / "docs" / "known_names.py"


def found(python: str, client: str) -> dict[str, Any]:
    """Return what a client knows; `python` is of an environment that has it."""
    command = [python, "-I", str(SCRIPT), client]
    done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=60)
    known: dict[str, Any] = json.loads(done.stdout)
    return known


def text(clients: dict[str, dict[str, Any]]) -> str:
    """Return the file for what the clients know."""
    before: dict[str, Any] = json.loads(TARGET.read_text(encoding="utf-8"))
    merged = {name: {**before[name], **known} for name, known in clients.items()}
    return json.dumps(merged, indent=1) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from tests.clients.installed import openai_python

    clients = {
        "anthropic": found(sys.executable, "anthropic"),
        "openai": found(str(openai_python()), "openai"),
    }
    TARGET.write_text(text(clients), encoding="utf-8")
