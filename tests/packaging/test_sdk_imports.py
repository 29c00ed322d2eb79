"""The SDK stands alone: standard library only, opaque tokens, and next to nothing to import."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SDK = Path(__file__).resolve().parents[2] / "sdk" / "daypass"
FILES = sorted(SDK.rglob("*.py"))
# Heavy modules that `import daypass` must not bring: they are loaded by what needs them.
HEAVY = {"ssl", "socket", "http", "urllib", "email", "argparse", "asyncio", "logging", "typing"}
# What a module of ours imports when it is called, never before.
FOREIGN = {
    "anthropic.py": {"anthropic"},
    "openai.py": {"openai", "httpx2"},
    "langchain.py": {"langchain_anthropic", "pydantic"},
    "e2b.py": {"e2b"},
}
LOADED = """
import sys
before = set(sys.modules)
import {}
print(*sorted(set(sys.modules) - before))
"""


def loaded_by(module: str) -> set[str]:
    """Top-level names of what an import brings into an empty interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(module)], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def imports(path: Path) -> Iterator[tuple[str, ast.stmt]]:
    """Every import statement of a file, with the module it names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            yield node.module or "", node


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_only_the_standard_library_is_imported(path: Path) -> None:
    """Except the official clients, which their adapters import when they are called."""
    foreign = set()
    for module, node in imports(path):
        top = module.partition(".")[0]
        if top not in sys.stdlib_module_names and top != "daypass":
            foreign.add(top)
            assert node.col_offset > 0, f"{path.name} imports {top} for everybody"
    assert foreign == FOREIGN.get(path.name, set())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_looks_into_a_token(path: Path) -> None:
    """The access token is opaque: no file decodes base64 or names a JWT library."""
    named = {module for module, _ in imports(path)}
    assert not {"base64", "binascii", "hmac", "jwt"} & named


def test_importing_the_package_loads_next_to_nothing() -> None:
    """`import daypass` brings itself and, from the standard library, nothing heavy."""
    loaded = loaded_by("daypass")
    assert loaded - set(sys.stdlib_module_names) == {"daypass"}
    assert not HEAVY & loaded


@pytest.mark.parametrize(
    "module", [f"daypass.{path.stem}" for path in FILES if path.stem != "__init__"]
)
def test_importing_a_module_loads_no_other_distribution(module: str) -> None:
    """Not the official client, not broker, proxy or core, even where they are installed."""
    assert loaded_by(module) - set(sys.stdlib_module_names) == {"daypass"}


def test_importing_the_package_takes_less_than_50_ms() -> None:
    """The best of five imports, as an agent's start-up sees it."""
    script = "import time; t = time.perf_counter(); import daypass; print(time.perf_counter() - t)"
    took = [
        float(
            subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
        )
        for _ in range(5)
    ]
    assert min(took) < 0.05


def test_the_public_names_are_complete_and_sorted() -> None:
    """Every name of `__all__` loads, every error class is in it, and the list is in order."""
    import daypass
    from daypass import _errors

    assert list(daypass.__all__) == sorted(daypass.__all__)
    assert all(getattr(daypass, name) is not None for name in daypass.__all__)
    errors = {name for name, kind in vars(_errors).items() if isinstance(kind, type)}
    assert errors <= set(daypass.__all__)
    assert set(daypass.__all__) <= set(dir(daypass))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        daypass.nothing  # noqa: B018


def test_every_error_draws_its_place_in_the_tree() -> None:
    """The picture at the top of `_errors.py` shows every class below its base."""
    from daypass import _errors

    picture = (_errors.__doc__ or "").splitlines()
    for name, kind in vars(_errors).items():
        if isinstance(kind, type):
            (line,) = [line for line in picture if name in line.split()]
            indent = len(line) - len(line.lstrip(" │├└─"))
            assert indent == 4 + 4 * (len(kind.__mro__) - 4), name
