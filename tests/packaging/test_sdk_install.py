"""The SDK as an agent image gets it: one small wheel, on every Python that it is promised for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.registries import ask

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".cache" / "uv" / "bin" / "uv"
LEAST = "3.10"
MOST_BYTES = 100_000
MOST_SECONDS = 0.05
# Every module but the one that runs on import, and then what all that brought with it.
IMPORT_ALL = """
import importlib, pkgutil, sys, daypass
names = [each.name for each in pkgutil.iter_modules(daypass.__path__) if each.name != "__main__"]
for name in names:
    importlib.import_module(f"daypass.{name}")
foreign = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(len(names), *sorted(foreign - {"__main__", "daypass"}))
"""
TIMED = "import time; t = time.perf_counter(); import daypass; print(time.perf_counter() - t)"


def works(python: str) -> bool:
    """Whether it is an interpreter, and not a stand-in for one that is not installed."""
    return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def found() -> dict[str, str]:
    """Interpreters of this machine by version, and always the one that runs the tests."""
    pythons = {"{}.{}".format(*sys.version_info): sys.executable}
    versions = Path.home() / ".pyenv" / "versions"
    for version in (LEAST, "3.12", "3.13", "3.14"):
        name = f"python{version}"
        places = [shutil.which(name), *versions.glob(f"{version}.*/bin/{name}")]
        usable = [str(place) for place in places if place and works(str(place))]
        if usable:
            pythons.setdefault(version, usable[0])
    return pythons


PYTHONS = found()


def run(*command: str | Path) -> str:
    """Run a command to its good end, without the network; what it printed."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        env=os.environ | {"UV_PYTHON_DOWNLOADS": "never"},  # noqa: TID251 - uv needs its own
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of `daypass`."""
    folder = tmp_path_factory.mktemp("wheel")
    ask([str(UV), "build", "-q", "--package", "daypass", "--wheel", "--out-dir", str(folder)], ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_is_small(wheel: Path) -> None:
    """Less than 100 kB, so an image that has it is hardly larger."""
    assert wheel.stat().st_size < MOST_BYTES


@pytest.mark.parametrize("version", PYTHONS)
def test_it_installs_alone_and_imports_in_no_time(
    wheel: Path, tmp_path: Path, version: str
) -> None:
    """Into a clean environment: one distribution, no network, every module, the command, and an
    import of less than 50 ms (the best of five).
    """
    python = tmp_path / "env" / "bin" / "python"
    run(UV, "venv", "-q", "--python", PYTHONS[version], tmp_path / "env")
    run(UV, "pip", "install", "-q", "--offline", "--python", python, wheel)
    listing = run(UV, "pip", "list", "--python", python, "--format", "freeze")
    assert [line.partition("==")[0] for line in listing.splitlines()] == ["daypass"]
    modules, *foreign = run(python, "-I", "-c", IMPORT_ALL).split()
    assert int(modules) > 20
    assert foreign == []
    assert "Agents get a day pass" in run(python.parent / "daypass", "--help")
    assert min(float(run(python, "-I", "-c", TIMED)) for _ in range(5)) < MOST_SECONDS


def types_on_the_oldest(*what: str | Path) -> subprocess.CompletedProcess[str]:
    """What mypy says of files as the oldest Python would have them, its standard library too."""
    command = [sys.executable, "-m", "mypy", "--python-version", LEAST, *map(str, what)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_it_uses_nothing_newer_than_the_oldest_python(tmp_path: Path) -> None:
    """By the types of the standard library as Python 3.10 has it, wherever the tests run; and what
    3.11 brought is found by the same means.
    """
    done = types_on_the_oldest("sdk/daypass")
    assert done.returncode == 0, done.stdout
    newer = tmp_path / "newer.py"
    newer.write_text("import tomllib\nfrom datetime import UTC\n")
    assert types_on_the_oldest(newer).stdout.count("error:") == 2
