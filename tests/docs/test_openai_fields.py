"""The table of OpenAI's fields against the official client's types: what is new is named here."""

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from daypass_proxy.providers import openai_fields as fields
from tests.clients.installed import openai_python

pytestmark = pytest.mark.sdk

SCRIPT = Path(__file__).parent / "openai_names.py"
TOPS = {"chat": fields.CHAT, "responses": fields.RESPONSES, "embeddings": fields.EMBEDDINGS}
# Of other servers than OpenAI's own, and of other clients than this one (Codex).
BEYOND = {"chat": {"best_of"}, "responses": {"client_metadata"}, "embeddings": set[str]()}


@cache
def client() -> dict[str, Any]:
    """What the official client knows."""
    done = subprocess.run(
        [str(openai_python()), "-I", str(SCRIPT)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    known: dict[str, Any] = json.loads(done.stdout)
    return known


@pytest.mark.parametrize("endpoint", TOPS)
def test_every_name_at_the_top_is_decided(endpoint: str) -> None:
    """Each name that the client can send is in the table, and the table has no others."""
    assert TOPS[endpoint].known == set(client()[endpoint]) | BEYOND[endpoint]


def test_every_kind_of_tool_is_decided() -> None:
    """Each kind of tool that the client can send is in the table, and the table has no others."""
    found = {fields.base_of(kind) for kind in client()["tools"]}
    assert found == fields.CLIENT_TOOLS | set(fields.SERVER_TOOLS) | fields.FEE_TOOLS


def test_every_kind_of_part_and_item_is_decided() -> None:
    """Each kind of part and item that the client can send is in the table."""
    assert len(client()["parts"]) >= 8
    assert set(client()["parts"]) <= fields.PARTS | set(fields.REFUSED_PARTS)
    assert set(client()["items"]) == fields.ITEMS | fields.GATED_ITEMS


def test_the_table_is_of_the_client_that_is_tested() -> None:
    """The page names the version that the lock file pins."""
    lock = (SCRIPT.parents[1] / "clients" / "openai3.txt").read_text()
    assert f"openai=={fields.FIELDS['source'].split()[1].rstrip(',')} " in lock


def test_the_table_holds_together() -> None:
    """What is gated, refused or explained is a name that is known."""
    for endpoint, top in TOPS.items():
        table = fields.FIELDS[endpoint]
        assert not top.scalars & top.structures
        named = {*top.gated, *top.unseen, *top.refused, *top.values, *table["words"]}
        assert named <= top.known, endpoint
        assert top.unseen <= set(top.gated)
        assert set(table) <= {
            *("scalars", "structures", "gated", "unseen", "refused", "values", "words"),
        }
