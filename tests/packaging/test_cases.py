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
    "B11": "a database that is gone is no bad credential",
    "B12": "a start without what is needed is not ready, says so and heals",
    "B13": "vault tokens are replaced before they end, without a storm",
    "B17": "a stream may outlive its token",
    "B18": "an agent that outlives its tokens fails no call",
    "B19": "401 for the token, 403 for the scope",
    "B20": "small clock skew is forgiven, large is not",
    "B22": "revocations outlive a restart and are pruned",
    "B23": "files of tokens and authorities are read again",
    "B24": "a rotated provider key is used without a restart",
    "B25": "a torn stream never ends tidily",
    "B26": "compressed streams are relayed and metered",
    "B27": "any cut of a stream into writes is relayed alike",
    "B28": "frames are relayed at once",
    "B29": "a silent stream is kept alive",
    "B30": "a client that leaves ends the call upstream",
    "B31": "failed and aborted calls leave nothing open",
    "B32": "no database connection is held for a call, none is kept by who left",
    "B33": "cumulative usage is not added up",
    "B36": "a limit of calls holds over all proxies together",
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
    "B49": "a budget that is used up stops clients at once",
    "B50": "every refusal has the provider's shape",
    "B51": "limits are as configured; nothing is sent twice unsafely",
    "B52": "several that migrate at once migrate once",
    "B53": "a pod has more time to end than its streams",
    "B54": "nobody is root, nothing is writable but what is named",
    "B55": "probes give time, need no token and find a wedged process",
    "B56": "a disruption budget never blocks a drain",
    "B57": "variables of forward proxies are obeyed where they should be",
    "B58": "no secret in logs, answers or audit",
    "B91": "a client at the wrong route reads the right base URL",
    "B92": "localhost, IPv4 and IPv6 addresses all work",
    "B86": "HTTP/2 is not spoken upstream, so no GOAWAY ends what was begun",
    "B87": "a release serves while and after the next one migrates",
    "B89": "streams that never end do not keep the service from its end",
    "B90": "nothing cancels a stream the moment the end begins",
    "B88": "migration and services have the database by one reference",
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
