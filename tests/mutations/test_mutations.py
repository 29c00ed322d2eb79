"""Each single check of the request path is switched off in turn, and a test has to notice.

`mutations.toml` lists the checks: which line to replace by what, and the tests that guard it. The
line must stand in the code exactly once, so the list cannot rot unseen. A mutation that survives
is a missing test; write it and name it there.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomllib

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGES = (
    ROOT / "core" / "daypass_core",
    ROOT / "proxy" / "daypass_proxy",
    ROOT / "broker" / "daypass_broker",
)
# A test speaks by these; any other exception may only mean that the edit broke the code.
SPOKEN = ("AssertionError", "Failed")


@dataclass(frozen=True)
class Mutation:
    """One check less. `file` is a pattern below the packages' folders."""

    id: str
    check: str
    attack: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    by: str = ""
    """The exception by which a test may notice, besides an assertion."""

    def apply(self, folder: Path) -> None:
        """Edit the copy in `folder`; fails when `old` is not there exactly once."""
        found = [
            path
            for path in sorted(folder.glob(self.file))
            for _ in range(path.read_text(encoding="utf-8").count(self.old))
        ]
        if len(found) != 1:
            pytest.fail(
                f"mutation {self.id} no longer applies: {self.old!r} stands {len(found)} times in"
                f" {self.file}; find the check that is now in its place"
            )
        text = found[0].read_text(encoding="utf-8")
        found[0].write_text(text.replace(self.old, self.new), encoding="utf-8")


def _load() -> list[Mutation]:
    listed = tomllib.loads((HERE / "mutations.toml").read_text(encoding="utf-8"))["mutation"]
    return [Mutation(**{**each, "tests": tuple(each["tests"])}) for each in listed]


MUTATIONS = _load()
Results = Mapping[str, dict[str, Any] | str]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Judge every mutation whose test was asked for; a word instead of a result is a failure."""
    asked = {
        item.callspec.params["mutation"].id
        for item in request.session.items
        if "mutation" in getattr(item, "fixturenames", ()) and hasattr(item, "callspec")
    }
    run = tmp_path_factory.mktemp("mutations")
    for package in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, run / "whole" / package.name, ignore=ignore)
    results: dict[str, dict[str, Any] | str] = {}
    jobs = []
    for mutation in MUTATIONS:
        if mutation.id not in asked:
            continue
        folder = run / mutation.id
        shutil.copytree(run / "whole", folder)
        try:
            mutation.apply(folder)
        except pytest.fail.Exception as failure:
            results[mutation.id] = str(failure)
            continue
        jobs.append({"folder": str(folder), "tests": mutation.tests})
    (run / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    command = [sys.executable, str(HERE / "worker.py"), str(run)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=1800)
    for job in jobs:
        folder = Path(str(job["folder"]))
        said = folder / "result.json"
        results[folder.name] = (
            json.loads(said.read_text(encoding="utf-8"))
            if said.exists()
            else f"no result; {(folder / 'log.txt').read_text(encoding='utf-8')[-2000:]}"
        )
    # What failing tests say of the fakes' keys is no leak to be found when the whole run ends.
    shutil.rmtree(run)
    return results


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.id for mutation in MUTATIONS])
def test_a_check_less_is_noticed(mutation: Mutation, results: Results) -> None:
    """With this check of the request path switched off, a named test fails by its own words."""
    result = results[mutation.id]
    if isinstance(result, str):
        pytest.fail(result)
    assert all(mutation.id in file for file in result["files"]), "the copy was not what ran"
    assert result["errors"] == [], "the edit broke the code or its tests"
    assert result["exit"] != pytest.ExitCode.OK, f"survived {result['passed']} tests"
    assert result["exit"] == pytest.ExitCode.TESTS_FAILED, "its tests could not be run"
    kinds = {failure["kind"] for failure in result["failed"]}
    assert kinds <= {*SPOKEN, mutation.by}, result["failed"]


def test_the_list_is_long_and_plain() -> None:
    """At least forty checks are listed, each once, each with the attack that it stops."""
    ids = [mutation.id for mutation in MUTATIONS]
    assert len(set(ids)) == len(ids) >= 40
    assert all(each.check and each.attack and each.tests for each in MUTATIONS)
    edits = [(each.file, each.old, each.new) for each in MUTATIONS]
    assert len(set(edits)) == len(edits)
