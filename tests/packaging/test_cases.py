"""Every known fault of comparable software that we build against has a test that names it.

The ids (`B28`) stand in the docstrings of the tests. Listed are the cases that the parts built so
far must pass; a case is taken off only with the part that it is about.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
CASES = {
    "B01": "no credential but a good token of ours is served",
    "B03": "the key goes to the configured origin only",
    "B04": "no credential of a client goes up",
    "B09": "no other spelling of a path passes",
    "B10": "the model that is checked is the model that is sent",
    "B17": "a stream may outlive its token",
    "B19": "401 for the token, 403 for the scope",
    "B20": "small clock skew is forgiven, large is not",
    "B22": "revocations outlive a restart and are pruned",
    "B25": "a torn stream never ends tidily",
    "B26": "compressed streams are relayed and metered",
    "B27": "any cut of a stream into writes is relayed alike",
    "B28": "frames are relayed at once",
    "B29": "a silent stream is kept alive",
    "B30": "a client that leaves ends the call upstream",
    "B31": "failed and aborted calls leave nothing open",
    "B33": "cumulative usage is not added up",
    "B37": "versions and betas go up verbatim",
    "B38": "one credential, by position, in any header",
    "B39": "model patterns match the whole name",
    "B40": "models are listed and refused by the scope",
    "B41": "counting tokens and closed endpoints",
    "B42": "a body too large is answered readably",
    "B43": "thirty megabytes pass unchanged in bounded memory",
    "B44": "idle connections live longer than clients keep them",
    "B45": "connect, first byte and silence have limits of their own",
    "B46": "base URLs with and without /v1",
    "B47": "coding and length agree with the body",
    "B48": "headers of errors and limits",
    "B50": "every refusal has the provider's shape",
    "B51": "limits are as configured; nothing is sent twice unsafely",
    "B58": "no secret in logs, answers or audit",
}


def claims() -> Iterator[tuple[str, str]]:
    """Yield each test's name with its docstring."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test_"
            ):
                yield f"{path.relative_to(TESTS)}::{node.name}", ast.get_docstring(node) or ""


NAMED: dict[str, list[str]] = {}
for _test, _claim in claims():
    for _case in re.findall(r"\bB\d\d\b", _claim):
        NAMED.setdefault(_case, []).append(_test)


@pytest.mark.parametrize("case", CASES)
def test_the_case_has_a_test(case: str) -> None:
    """The docstring of at least one test names the case."""
    assert NAMED.get(case), f"no test names {case}: {CASES[case]}"
