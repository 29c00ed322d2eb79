"""The images: their files say what they should, and what they build starts."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.packaging.chart_values import pods
from tests.packaging.containerfile import Stage, build, parse
from tests.packaging.test_wheels import ROOT, UV, importable, signs

IMAGES = ROOT / "deploy" / "images"
NAMES = ("broker", "proxy")
LIST = """
import importlib.metadata
print(*(f"{each.name}=={each.version}" for each in importlib.metadata.distributions()))
"""


def stages(name: str) -> tuple[Stage, Stage]:
    """The build stage and the runtime stage of an image."""
    _, found = parse((IMAGES / f"{name}.Containerfile").read_text("utf-8"))
    first, second = found
    return first, second


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What the build stages leave in /opt/daypass, by image."""
    home = {"HOME": os.path.expanduser("~"), "PATH": os.defpath}
    passed = {n: v for n, v in os.environ.items() if n.startswith(("UV_", "PIP_", "SSL_", "HTTP"))}  # noqa: TID251
    found = {}
    for name in NAMES:
        root = tmp_path_factory.mktemp(name)
        stage, _ = stages(name)
        python = {"UV_PYTHON_DOWNLOADS": "never", "UV_PYTHON": str(UV.with_name("python"))}
        patient = {"UV_HTTP_RETRIES": "10"}  # a registry may be away for a moment
        build(stage, ROOT, root, UV, home | passed | python | patient)
        found[name] = root / "opt" / "daypass"
    return found


def inside(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the image, with nothing in the environment but its PATH."""
    path = f"{folder}/bin:{os.defpath}"
    return subprocess.run(
        command, cwd="/", env={"PATH": path}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_runtime_takes_the_environment_and_nothing_else(name: str) -> None:
    """The second stage runs nothing: it copies from the first, and needs no shell."""
    _, runtime = stages(name)
    assert runtime.all("RUN") == runtime.all("ADD") == runtime.all("SHELL") == []
    assert all(copy.startswith("--from=build ") for copy in runtime.all("COPY"))
    assert runtime.all("HEALTHCHECK") == []  # the cluster's probes; Compose would need a client


@pytest.mark.parametrize("name", NAMES)
def test_the_image_starts_as_nobody_by_an_exec_form(name: str) -> None:
    """The user is a number, so that `runAsNonRoot` can be checked; entry point and command are
    lists, so that signals reach the process (B53, B54).
    """
    _, runtime = stages(name)
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", runtime.one("USER"))
    assert json.loads(runtime.one("ENTRYPOINT")) == ["python", "-m", f"daypass_{name}"]
    assert json.loads(runtime.one("CMD")) == ["serve"]
    assert runtime.one("STOPSIGNAL") == "SIGTERM"


@pytest.mark.parametrize("name", NAMES)
def test_the_chart_runs_what_the_image_has(name: str) -> None:
    """Command, arguments, user and ports of the chart are those of the image."""
    _, runtime = stages(name)
    pod = pods("default")[name]
    assert list(pod.command) == json.loads(runtime.one("ENTRYPOINT"))
    assert list(pod.args) == json.loads(runtime.one("CMD"))
    assert runtime.one("USER") == f"{pod.uid}:{pod.gid}"
    assert set(map(int, runtime.one("EXPOSE").split())) == set(pod.ports.values())


@pytest.mark.parametrize("name", NAMES)
def test_bases_are_named_by_a_version_and_can_be_pinned(name: str) -> None:
    """One base for both stages, not `latest`, replaceable by a digest; uv is the project's."""
    text = (IMAGES / f"{name}.Containerfile").read_text("utf-8")
    arguments, found = parse(text)
    assert {stage.base for stage in found} == {arguments["BASE"]}
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+-slim-\w+", arguments["BASE"])
    version = re.search(r"UV_VERSION := (\S+)", (ROOT / "Makefile").read_text("utf-8"))
    assert version is not None
    assert f"uv=={version[1]} \\\n" in (IMAGES / "build.txt").read_text("utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_from_outside_has_its_hash(name: str) -> None:
    """Dependencies are those of the lock file, by hash, and so is what builds them; our own wheels
    are installed offline.
    """
    stage, _ = stages(name)
    export, lock, own = (
        [run for run in stage.all("RUN") if run.startswith(f"uv {word}")]
        for word in ("export", "pip install --quiet --python /opt/daypass/bin/python --req", "pip")
    )
    assert "--frozen" in export[0]
    assert "-r locked.txt" in lock[0]
    assert "--no-index --no-deps" in own[-1]
    assert len(own) == 2
    (installer,) = [run for run in stage.all("RUN") if run.startswith("python -m pip install")]
    assert installer.endswith("--require-hashes -r build.txt")
    builds = [run for run in stage.all("RUN") if run.startswith("uv build")]
    assert builds
    assert all("--require-hashes --build-constraints build.txt" in run for run in builds)


@pytest.mark.parametrize("name", NAMES)
def test_the_label_bears_the_version(name: str) -> None:
    """The image says of which version it is: that of the chart."""
    _, runtime = stages(name)
    chart = (ROOT / "deploy/helm/daypass/Chart.yaml").read_text("utf-8")
    version = re.search(r'appVersion: "(.+)"', chart)
    assert version is not None
    assert f'image.version="{version[1]}"' in runtime.one("LABEL")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_tree_but_what_is_built_is_sent(name: str) -> None:
    """The list of what is sent lets through every source of a COPY, and no working files."""
    lines = (IMAGES / f"{name}.Containerfile.dockerignore").read_text("utf-8").splitlines()
    sent = {line[1:] for line in lines if line.startswith("!")}
    stage, _ = stages(name)
    sources = {each for copy in stage.all("COPY") for each in copy.split()[:-1]}
    assert "*" in lines
    assert all(any(each == s or each.startswith(f"{s}/") for s in sent) for each in sources)


def test_the_proxy_s_image_holds_no_broker(built: dict[str, Path]) -> None:
    """Built by its own steps, the proxy starts, knows PostgreSQL, and has neither broker, SQL
    toolkit nor a file of ours that signs.
    """
    folder = built["proxy"]
    python = folder / "bin" / "python"
    shown = inside(folder, "python", "-m", "daypass_proxy", "--help")
    assert shown.returncode == 0, shown.stderr
    assert "serve" in shown.stdout
    for module in ("daypass_broker", "daypass_migrations", "sqlalchemy", "alembic", "starlette"):
        assert not importable(python, module), module
    assert importable(python, "psycopg")
    ours = [path for path in folder.rglob("*.py") if "/daypass_" in str(path)]
    assert len(ours) > 30
    assert [path for path in ours if signs(path.read_text("utf-8"))] == []


def test_the_broker_s_image_can_migrate(built: dict[str, Path], tmp_path: Path) -> None:
    """Built by its own steps, the broker brings a database to the newest schema; no proxy in it."""
    folder = built["broker"]
    assert not importable(folder / "bin" / "python", "daypass_proxy")
    environment = {"PATH": f"{folder}/bin", "DAYPASS_DATABASE_URL": f"sqlite:///{tmp_path}/x.db"}
    command = ["python", "-m", "daypass_broker", "migrate"]
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.db").exists()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_installed_is_what_is_locked(built: dict[str, Path], name: str) -> None:
    """Every foreign distribution of the image has the version and a hash of the lock file."""
    locked = dict(
        re.findall(
            r"^([a-z0-9-]+)(?:\[[a-z,]+\])?==(\S+)",
            (built[name].parents[1] / "src/locked.txt").read_text(),
            re.M,
        )
    )
    assert len(locked) > 8
    listed = inside(built[name], "python", "-Ic", LIST).stdout.split()
    found = {
        re.sub(r"[._]", "-", each.partition("==")[0]).lower(): each.partition("==")[2]
        for each in listed
    }
    foreign = {n: version for n, version in found.items() if not n.startswith("daypass")}
    assert foreign.items() <= locked.items()
    assert "pip" not in found
