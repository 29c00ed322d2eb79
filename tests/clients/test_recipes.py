"""Every program of docs/recipes works as it is written there, and stops when its sandbox is over.

Each runs in a sandbox's environment with its framework, our SDK and nothing else, against the whole
product.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.installed import frameworks_python
from tests.clients.stock import PATIENCE, Place
from tests.servers import openai_wire as wire
from tests.servers.books import assert_books_right
from tests.servers.openai_stack import UPSTREAM_KEYS, openai_stack
from tests.servers.stack import Stack
from tests.servers.stub import StubUpstream

pytestmark = pytest.mark.sdk

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "docs/recipes").glob("*.py"))
TEXTS = ("Hello", "".join(wire.WORDS))
SENTENCE = "sandbox revoked; an administrator can lift this with: daypass sandbox restore"
# What each asks of the provider; Claude Code tries a second time when its first exchange failed.
CALLS = {"openai_client": 2}


@pytest.fixture(scope="module")
def recipe_stub() -> Iterator[StubUpstream]:
    """The stub provider."""
    with StubUpstream(UPSTREAM_KEYS) as server:
        yield server


@pytest.fixture(scope="module")
def recipe_stack(
    tmp_path_factory: pytest.TempPathFactory, recipe_stub: StubUpstream, keys: str
) -> Iterator[Stack]:
    """A stack that serves both APIs."""
    with openai_stack(tmp_path_factory.mktemp("recipes"), recipe_stub.url, keys) as stack:
        yield stack


@pytest.fixture
def stack(recipe_stack: Stack, recipe_stub: StubUpstream) -> Iterator[Stack]:
    """The module's stack; its books are right afterwards."""
    recipe_stub.reset()
    yield recipe_stack
    assert_books_right(recipe_stack.database_url)


@pytest.fixture
def upstream(recipe_stub: StubUpstream) -> StubUpstream:
    """The stub behind it."""
    return recipe_stub


def run(
    stack: Stack, sandbox: dict[str, Any], folder: Path, program: Path
) -> subprocess.CompletedProcess[str]:
    """Run a program in a sandbox to its end."""
    variables = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "XDG_RUNTIME_DIR": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": str(ROOT / "sdk"),
        # It would fetch a list of prices at import.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    return subprocess.run(
        [str(frameworks_python()), str(program)],
        env=variables | Place(stack.proxy_url, sandbox, "", folder).federation(),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_works(stack: Stack, upstream: StubUpstream, tmp_path: Path, recipe: Path) -> None:
    """It prints what the model says; one call, one usage row, booked by what the provider says."""
    sandbox = stack.sandbox()
    done = run(stack, sandbox, tmp_path, recipe)
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(done.stdout.splitlines()) <= set(TEXTS)
    calls = CALLS.get(recipe.stem, 1)
    rows = stack.settled(sandbox, calls)
    assert not [row for row in rows if row["estimated"]]
    assert len(upstream.requests) == calls


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_ends_with_its_sandbox(
    stack: Stack, upstream: StubUpstream, tmp_path: Path, recipe: Path
) -> None:
    """In a revoked sandbox it ends with an error that says so, and nothing reaches the provider."""
    sandbox = stack.sandbox()
    body = {"scope": "sandbox", "ident": sandbox["id"], "reason": "test"}
    assert stack.admin("POST", "/v1/revocations", body).status == 201
    done = run(stack, sandbox, tmp_path, recipe)
    assert done.returncode != 0, done.stdout
    assert SENTENCE in done.stdout + done.stderr
    assert upstream.requests == []
