"""The gates of `make check` catch what they are for."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging import sizes

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = ("sdk", "core", "broker", "proxy", "migrations")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the import contracts over a copy of the packages."""
    paths = os.pathsep.join(str(folder / member) for member in MEMBERS)
    return subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=folder,
        env={"PATH": os.defpath, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the packages and the contracts."""
    for member in MEMBERS:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / member, tmp_path / member, ignore=ignore)
    shutil.copy(ROOT / ".importlinter", tmp_path)
    return tmp_path


def test_import_contracts_hold(copy: Path) -> None:
    """As it stands, every import goes downwards."""
    done = lint_imports(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line", "named"),
    [
        ("proxy/daypass_proxy/forward.py", "import daypass_broker.issue", "proxy holds no broker"),
        ("broker/daypass_broker/issue.py", "import daypass_proxy.app", "broker holds no proxy"),
        ("core/daypass_core/claims.py", "import daypass_core.server", "core: layers"),
        ("sdk/daypass/_token.py", "import jwt", "standard library only"),
        ("proxy/daypass_proxy/newcomer.py", "", "proxy: layers"),
    ],
)
def test_a_planted_import_fails_the_check(copy: Path, file: str, line: str, named: str) -> None:
    """A forbidden import, an upward import and an unplaced module are each reported by name."""
    with (copy / file).open("a") as source:
        source.write(f"\n{line}\n")
    done = lint_imports(copy)
    assert done.returncode != 0
    assert f"{named} BROKEN" in done.stdout or named in done.stdout.partition("Broken")[2]


def test_banned_calls_are_found(tmp_path: Path) -> None:
    """Signing outside signing.py and reading the environment outside settings.py fail the lint."""
    planted = tmp_path / "planted.py"
    planted.write_text('"""x."""\nimport os\n\nimport jwt\n\njwt.encode({}, "")\nos.environ["A"]\n')
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), planted],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "jwt.encode" in done.stdout
    assert "os.environ" in done.stdout


def test_sizes_hold() -> None:
    """No Python file over 400 lines, no function over 60."""
    assert list(sizes.violations()) == []


def reveals(path: Path) -> bool:
    """Whether a file calls `.reveal()`."""
    calls = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call))
    return any(isinstance(c.func, ast.Attribute) and c.func.attr == "reveal" for c in calls)


def test_reveal_stands_in_few_files() -> None:
    """`.reveal()` is called where a secret is used: on its way to a provider, to Vault, to the
    cluster, and where a vendor's signature is checked; nowhere else.
    """
    found = {
        member: sorted(path.name for path in (ROOT / member).rglob("*.py") if reveals(path))
        for member in MEMBERS
    }
    assert found == {
        "core": ["vault.py"],
        "proxy": ["keyring.py"],
        "broker": ["kubernetes.py", "webhook.py"],
        "sdk": [],
        "migrations": [],
    }


def test_versions_agree() -> None:
    """One version in every distribution, in the changelog's newest release or Unreleased."""
    import tomllib

    versions = set()
    for member in MEMBERS:
        project = tomllib.loads((ROOT / member / "pyproject.toml").read_text())["project"]
        versions.add(project["version"])
        ours = [d for d in project["dependencies"] if d.startswith("daypass")]
        assert all(d.endswith(f"=={project['version']}") for d in ours)
    assert len(versions) == 1
    chart = (ROOT / "deploy/helm/daypass/Chart.yaml").read_text()
    assert f'appVersion: "{versions.pop()}"' in chart
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text()
