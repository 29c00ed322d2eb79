"""Judges mutations in forked children: each imports a copy with one check less and runs tests.

Started by `test_mutations` as a process of its own with one argument, the run's folder, which holds
`jobs.json`. What every child needs of other people's code is imported once, before the forks; of
ours nothing is, so each child meets the mutated copy first. Compiled files lie below the run's
folder and are shared. Per job it leaves `result.json` in the job's folder.
"""

import compileall
import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

PARALLEL = 2
SECONDS = 120
"""A child that takes longer hangs; it is ended and leaves no result."""
_WARM = (
    "cryptography.hazmat.primitives.asymmetric.ec", "cryptography.x509", "httptools",
    "hvac", "hypothesis", "hypothesis.strategies", "jwt", "msgspec", "pytest_asyncio.plugin",
    "alembic.command", "jsonschema", "sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.sqlite",
    "starlette.applications", "starlette.testclient", "yaml",
    "uvicorn", "uvicorn.protocols.http.httptools_impl", "uvloop",
)  # fmt: skip
_OURS = ("daypass", "tests")
_MUTATED = ("daypass_core", "daypass_proxy", "daypass_broker")
_PLUGINS = ("no:cacheprovider", "no:anyio")  # what no test of a mutation needs


class Notes:
    """A pytest plugin that keeps what went wrong, and where."""

    def __init__(self) -> None:
        self.failed: list[dict[str, str]] = []
        self.errors: list[str] = []
        self.passed = 0

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep a file that could not be imported."""
        if report.failed:
            self.errors.append(f"{report.nodeid}: {report.longreprtext[-400:]}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep a failed test with the class of its exception, and a failed fixture."""
        report = yield
        if report.failed and report.when == "call":
            kind = call.excinfo.typename if call.excinfo else ""
            words = call.excinfo.exconly(tryshort=True)[:200] if call.excinfo else ""
            self.failed.append({"test": item.nodeid, "kind": kind, "words": words})
        elif report.failed:
            self.errors.append(f"{item.nodeid} ({report.when}): {report.longreprtext[-400:]}")
        elif report.when == "call":
            self.passed += 1
        return report


def judge(folder: Path, tests: list[str]) -> None:
    """Run the tests on the copy in `folder`; never returns to the parent's code."""
    signal.alarm(SECONDS)
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.path.insert(0, str(folder))
    from hypothesis import settings

    # No example is remembered: it would be tried against the sound code for ever after.
    settings.register_profile("mutations", database=None, derandomize=True)
    settings.load_profile("mutations")
    notes = Notes()
    began = time.perf_counter()
    options = ["-q", "-x", "--no-header", f"--basetemp={folder}/tmp"]
    options += [word for name in _PLUGINS for word in ("-p", name)]
    # Plugins that were imported before the fork are not rewritten any more, and need not be.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main([*options, *tests], plugins=[notes])
    modules = {name: sys.modules.get(name) for name in _MUTATED}
    result = {
        "exit": int(code),
        "failed": notes.failed,
        "errors": notes.errors,
        "passed": notes.passed,
        "seconds": round(time.perf_counter() - began, 2),
        "files": [module.__file__ for module in modules.values() if module is not None],
    }
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    os._exit(0)


def main(run: Path) -> None:
    """Judge every job, PARALLEL at a time."""
    compiled = run / "compiled"
    sys.pycache_prefix, sys.dont_write_bytecode = str(compiled), False
    for name in _WARM:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    early = [name for name in sys.modules if name.split(".")[0].startswith(_OURS)]
    assert not early, f"imported before the copy was in place: {early}"
    compileall.compile_dir(run / "whole", quiet=1)
    gc.freeze()
    running = 0
    for job in json.loads((run / "jobs.json").read_text(encoding="utf-8")):
        folder = Path(job["folder"])
        # A compiled file carries size and time of its source, so that of the edited one is stale.
        shutil.copytree(_below(compiled, run / "whole"), _below(compiled, folder))
        if running >= PARALLEL:
            os.wait()
            running -= 1
        if os.fork() == 0:
            judge(folder, job["tests"])
        running += 1
    for _ in range(running):
        os.wait()


def _below(prefix: Path, folder: Path) -> Path:
    return prefix / folder.relative_to("/")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
