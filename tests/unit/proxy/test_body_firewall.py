"""Every class of field that gets around a scope: one body that passes, and one that does not.

`tests/vectors/body_firewall.json` has them by class, provider and endpoint, in the same form for
other proxies too; docs/reference/body-firewall.md is written from it.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from daypass_core.problem import Code, Problem
from daypass_core.scope import DETAIL_TYPE, Detail, endpoints_of, parse_scope
from daypass_proxy.providers import Call
from tests.fakes import anthropic, openai

FIREWALL: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "body_firewall.json").read_text(encoding="utf-8")
)
FIELDS, HEADERS = FIREWALL["fields"], FIREWALL["headers"]
MODELS = {
    "anthropic": ["claude-sonnet-*"],
    "openai": ["gpt-4o", "text-embedding-3-small"],
    "own": ["own"],
}
CLASSES = {"egress", "second model", "shared state", "price and placement", "who pays", "unknown"}
# What a class has not got there: OpenAI has nobody else to bill in a body, but only in headers.
NOT_THERE = {
    ("openai", "embeddings"): {"egress", "shared state"},
    ("own", "chat_completions"): {"shared state", "who pays"},
}


def scope(provider: str, narrowed: dict[str, Any]) -> Detail:
    """The scope of an example: what it says, and what all have."""
    wire = {
        "type": DETAIL_TYPE,
        "provider": provider,
        "endpoints": list(endpoints_of(provider) or ()),
        "models": MODELS[provider],
    }
    return parse_scope([wire | narrowed]).details[0]


def whole(body: dict[str, Any]) -> dict[str, Any]:
    """The body of an example; one that would be long is written in words."""
    if body.get("input") == "2049 texts":
        return body | {"input": ["x"] * 2049}
    return body


def read(entry: dict[str, Any], example: dict[str, Any]) -> Call:
    """Read an accepted body by the check of its provider."""
    detail = scope(entry["provider"], example["scope"])
    if entry["provider"] == "anthropic":
        return anthropic.read(whole(example["body"]), detail, endpoint=entry["endpoint"])
    provider = entry["provider"]
    return openai.read(entry["endpoint"], whole(example["body"]), detail, provider=provider)


def refused(entry: dict[str, Any], example: dict[str, Any]) -> Problem:
    """Return what a body is refused with."""
    detail = scope(entry["provider"], example["scope"])
    if entry["provider"] == "anthropic":
        return anthropic.refused(whole(example["body"]), detail, endpoint=entry["endpoint"])
    provider = entry["provider"]
    return openai.refused(entry["endpoint"], whole(example["body"]), detail, provider=provider)


def name(entry: dict[str, Any]) -> str:
    """What an example is called."""
    return f"{entry['endpoint']}-{entry['field']}"


@pytest.mark.parametrize("entry", FIELDS, ids=map(name, FIELDS))
def test_one_passes_and_one_does_not(entry: dict[str, Any]) -> None:
    """Rows 32, 34-37, 39: what the scope allows passes as it is; what it does not is refused by
    the name of the field, and says what would allow it."""
    accepted, wrong = entry["accepted"], entry["refused"]
    call = read(entry, accepted)
    sent = json.loads(call.body)
    assert sent | accepted["body"] == sent
    problem = refused(entry, wrong)
    assert problem.field == wrong["field"]
    said = f"{problem.title}; {problem.hint}"
    assert wrong["field"] in said or problem.code is Code.THREAD_UNSUPPORTED
    by = wrong["allowed_by"]
    if by.startswith("feature "):
        assert f"needs the {by}" in said
        assert by.removeprefix("feature ").strip('"') in accepted["scope"].get("features", ()) or (
            accepted["scope"].get("body", "compat") != wrong["scope"].get("body", "compat")
        )
    elif by == "models":
        assert "allowed: " in said
        assert accepted["scope"]["models"] != MODELS[entry["provider"]]
    elif by == "allowed_domains":
        assert "within those of this sandbox: docs.test" in said or "of this sandbox: docs" in said
    elif by == "max_output_tokens":
        assert f"from 1 to {wrong['scope'][by]} here" in said
    else:
        assert by.startswith("nothing: ")


@pytest.mark.parametrize("entry", HEADERS, ids=[entry["header"] for entry in HEADERS])
def test_headers_that_choose_a_bill_stay(entry: dict[str, Any]) -> None:
    """Row 37: a header that chooses whose data or whose bill does not go up."""
    header = ((entry["header"].encode(), b"theirs"), (b"user-agent", b"x"))
    if entry["provider"] == "anthropic":
        call = anthropic.read(headers=header)
    else:
        model = {"model": "text-embedding-3-small"} if entry["endpoint"] == "embeddings" else {}
        call = openai.read(
            entry["endpoint"], model, scope("openai", {"models": ["*"]}), headers=header
        )
    assert (b"user-agent", b"x") in call.headers
    assert entry["header"].encode() not in dict(call.headers)


@pytest.mark.parametrize(
    ("provider", "endpoint"),
    [
        ("anthropic", "messages"),
        ("openai", "chat_completions"),
        ("openai", "responses"),
        ("openai", "embeddings"),
        ("own", "chat_completions"),
    ],
)
def test_every_class_has_examples(provider: str, endpoint: str) -> None:
    """No class is left out at an endpoint that has it."""
    found = {
        each["class"]
        for each in (*FIELDS, *HEADERS)
        if (each["provider"], each["endpoint"]) == (provider, endpoint)
    }
    assert found == CLASSES - NOT_THERE.get((provider, endpoint), set())
