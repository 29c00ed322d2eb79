"""House limits: no Python file over 400 lines, no function over 60 (part of `make check`)."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("sdk", "core", "broker", "proxy", "migrations", "demo", "bench", "tests")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def python_files() -> Iterator[Path]:
    """Every Python file of the project itself."""
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


def violations() -> Iterator[str]:
    """One sentence for each file or function that is too long."""
    for path in python_files():
        source = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT)
        lines = source.count("\n")
        if lines > MAX_FILE_LINES:
            yield f"{name}: {lines} lines, more than {MAX_FILE_LINES}"
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    yield f"{name}:{node.lineno} {node.name}: {length} lines, more than 60"


def main() -> int:
    """Print every violation; exit status 1 if there is one."""
    found = list(violations())
    for line in found:
        sys.stdout.write(line + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
