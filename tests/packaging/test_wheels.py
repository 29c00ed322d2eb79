"""What is shipped: each wheel holds its own package, and the proxy's environment cannot sign."""

import ast
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.registries import ask

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".cache" / "uv" / "bin" / "uv"
PACKAGES = {
    "daypass": "daypass",
    "daypass_core": "daypass_core",
    "daypass_broker": "daypass_broker",
    "daypass_proxy": "daypass_proxy",
    "daypass_migrations": "daypass_migrations",
}


def uv(*arguments: str | Path) -> str:
    """Run uv in the workspace and return what it printed."""
    return ask([str(UV), "--quiet", *map(str, arguments)], ROOT)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of all distributions."""
    folder = tmp_path_factory.mktemp("wheels")
    uv("build", "--all-packages", "--wheel", "--out-dir", folder)
    return folder


def install(folder: Path, wheels: Path, package: str) -> Path:
    """A clean environment with one distribution and its locked dependencies; its Python."""
    python = folder / "bin" / "python"
    uv("venv", folder)
    locked = folder / "locked.txt"
    uv("export", "--frozen", "--no-dev", "--no-emit-workspace", "--package", package, "-o", locked)
    uv("pip", "install", "--python", python, "-r", locked)
    uv("pip", "install", "--python", python, "--offline", "--find-links", wheels, package)
    return python


def distributions(python: Path) -> set[str]:
    """Names of what is installed beside a Python."""
    listing = uv("pip", "list", "--python", python, "--format", "freeze")
    return {line.partition("==")[0] for line in listing.splitlines()}


def importable(python: Path, module: str) -> bool:
    """Whether a module can be imported there."""
    done = subprocess.run([str(python), "-I", "-c", f"import {module}"], capture_output=True)
    return done.returncode == 0


def test_each_wheel_holds_its_own_package_only(wheels: Path) -> None:
    """Five wheels, each with one package, typed."""
    found = {}
    for wheel in wheels.glob("*.whl"):
        names = zipfile.ZipFile(wheel).namelist()
        tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
        found[wheel.name.split("-")[0]] = tops
        assert f"{next(iter(tops))}/py.typed" in names
    assert found == {dist: {package} for dist, package in PACKAGES.items()}


def test_the_proxy_environment_holds_no_broker_and_signs_nothing(
    wheels: Path, tmp_path: Path
) -> None:
    """With the proxy's wheel: no broker, no SQL toolkit, and no file of ours that signs."""
    python = install(tmp_path / "env", wheels, "daypass-proxy")
    assert importable(python, "daypass_proxy.app")
    for module in ("daypass_broker", "sqlalchemy", "starlette", "alembic", "daypass", "psycopg"):
        assert not importable(python, module), module
    assert "pip install 'daypass-proxy[postgres]'" in problems(
        python, "postgresql://db.test/daypass"
    )
    ours = [p for p in (tmp_path / "env").rglob("*.py") if "daypass_" in str(p)]
    assert len(ours) > 30
    assert [p for p in ours if signs(p.read_text(encoding="utf-8"))] == []
    assert signs((ROOT / "broker/daypass_broker/signing.py").read_text(encoding="utf-8"))


def problems(python: Path, database_url: str) -> str:
    """What the proxy installed there says of its settings, given no more than this one."""
    command = [str(python), "-I", "-m", "daypass_proxy", "check"]
    environment = {"DAYPASS_DATABASE_URL": database_url}
    return subprocess.run(command, env=environment, capture_output=True, text=True).stderr


def signs(source: str) -> bool:
    """Whether a source file calls a signing function or names a private key type."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in {"sign", "private_bytes"}:
            return True
        if ast.unparse(node) in {"jwt.encode", "jws.encode", "jwt.PyJWS", "jwt.PyJWT"}:
            return True
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if "PrivateKey" in name or name == "load_pem_private_key":
                return True
    return False


def test_the_sdk_installs_exactly_one_distribution(wheels: Path, tmp_path: Path) -> None:
    """The wheel of `daypass` brings nothing but itself, and stays small."""
    python = install(tmp_path / "env", wheels, "daypass")
    assert distributions(python) == {"daypass"}
    assert importable(python, "daypass.anthropic")
    (wheel,) = wheels.glob("daypass-*.whl")
    assert wheel.stat().st_size < 100_000


def test_the_server_extra_brings_broker_and_proxy(wheels: Path, tmp_path: Path) -> None:
    """`daypass[server]` installs what `daypass up` starts."""
    python = tmp_path / "env" / "bin" / "python"
    uv("venv", tmp_path / "env")
    locked = tmp_path / "locked.txt"
    uv("export", "--frozen", "--no-dev", "--no-emit-workspace", "--all-packages", "-o", locked)
    uv("pip", "install", "--python", python, "-r", locked)
    uv("pip", "install", "--python", python, "--offline", "--find-links", wheels, "daypass[server]")
    for module in ("daypass_broker.app", "daypass_proxy.app", "daypass.up"):
        assert importable(python, module), module
