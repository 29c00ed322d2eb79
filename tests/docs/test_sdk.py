"""The pages on the SDK, E2B and agents: recipes that exist, code that runs, profiles that hold."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import daypass
from daypass import _errors, e2b
from tests.servers.stack import Stack

DOCS = Path(__file__).resolve().parents[2] / "docs"
SDK, E2B, AGENTS = (
    (DOCS / name).read_text(encoding="utf-8") for name in ("sdk.md", "e2b.md", "agents.md")
)
PROGRAMS = re.findall(r"```python\n(.*?)```", SDK + E2B, re.DOTALL)


def test_every_recipe_is_on_the_page() -> None:
    """The table links each file of docs/recipes, and no other."""
    linked = set(re.findall(r"\(recipes/(\w+\.py)\)", SDK))
    assert linked == {path.name for path in (DOCS / "recipes").glob("*.py")}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_names_what_there_is(program: str) -> None:
    """Each parses, and what it imports from us exists."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(program, "page", "exec", flags)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("daypass"):
            exec(compile(ast.Module([node], []), "page", "exec"), {})


def test_the_hosts_are_judged_as_it_says() -> None:
    """The program with `Hosts` runs, its assertions included."""
    (program,) = [each for each in PROGRAMS if "daypass.hosts" in each]
    exec(program, {})


def test_the_errors_are_all_there() -> None:
    """The table has every error that the SDK raises towards an agent."""
    shown = set(re.findall(r"^\| `(\w+)` \| ", SDK, re.MULTILINE))
    agents = {"SettingsError", "NotInstalled", "Revoked", "Refused", "Unavailable", "Unreachable"}
    assert agents <= shown
    assert all(issubclass(getattr(_errors, name), daypass.DaypassError) for name in agents)


def test_the_parts_of_e2b_are_named_as_they_are() -> None:
    """`e2b.name` in the page is a name of our module, or of E2B's."""
    named = set(re.findall(r"\be2b\.([a-z_]+)\b", E2B)) - {"md", "sh"}
    assert {name for name in named if not hasattr(e2b, name)} == set()


def test_the_branches_have_their_profiles(make_stack: Callable[..., Stack]) -> None:
    """The policy of the page can be applied; a tool's token calls what its branch says, no more."""
    (policy,) = re.findall(r"```yaml\n(.*?)```", AGENTS, re.DOTALL)
    stack = make_stack(policy=policy)
    used = set(re.findall(r'profile="(\w+)"', AGENTS))
    assert used == {"coder", "tool"}
    tool = stack.access_token(stack.sandbox(profile="tool", lifetime_seconds=600))
    asked = {"model": "claude-haiku-4-5", "max_tokens": 64}
    assert stack.message(tool, **asked).status == 200
    assert stack.message(tool, model="claude-sonnet-4-5").status == 400
    assert stack.post(tool, "/v1/messages/count_tokens", asked).status == 403
    coder = stack.sandbox(profile="coder")
    assert coder["source"] == "first"
    assert stack.message(stack.access_token(coder)).status == 200
