"""Scopes: strict to read, never widened."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daypass_core.scope import (
    BODIES,
    ENDPOINTS,
    Detail,
    Scope,
    ScopeError,
    narrow,
    parse_scope,
    scope_to_wire,
)
from tests.support import make_scope

# A small alphabet, so that prefixes and equal names happen often.
words = st.text("ab-", min_size=1, max_size=4)
patterns = st.one_of(words, words.map(lambda word: f"{word}*"), st.just("*"))

WIDER_BODIES = {("open", "compat"), ("open", "strict"), ("compat", "strict")}
DOMAINS = ("a.test", "b.test", "x.a.test", "ya.test", "b.test.a.test")


def several(items: st.SearchStrategy[str], least: int = 1) -> st.SearchStrategy[tuple[str, ...]]:
    """Lists of different strings."""
    return st.lists(items, min_size=least, max_size=4, unique=True).map(tuple)


details = st.builds(
    Detail,
    provider=st.just("anthropic"),
    endpoints=several(st.sampled_from(ENDPOINTS["anthropic"])),
    models=several(patterns),
    features=several(st.sampled_from(("web_search", "code")), least=0),
    allowed_domains=several(st.sampled_from(DOMAINS), least=0),
    max_output_tokens=st.one_of(st.none(), st.integers(1, 3)),
    body=st.sampled_from(BODIES),
)
scopes = details.map(lambda detail: Scope((detail,)))


@given(scopes)
def test_round_trip(scope: Scope) -> None:
    """A scope survives the way to the wire and back unchanged."""
    assert parse_scope(scope_to_wire(scope)) == scope


def reaches(detail: Detail, host: str) -> bool:
    """Whether a host is one of the allowed domains or below one, as the proxy judges."""
    return any(host == domain or host.endswith(f".{domain}") for domain in detail.allowed_domains)


@given(parent=scopes, child=scopes, model=words)
def test_narrow_never_widens(parent: Scope, child: Scope, model: str) -> None:
    """Whatever a narrowed scope allows, its parent allows (or narrowing refuses)."""
    try:
        narrowed = narrow(parent, child)
    except ScopeError:
        return
    inner, outer = narrowed.for_provider("anthropic"), parent.for_provider("anthropic")
    assert inner is not None
    assert outer is not None
    for endpoint in ENDPOINTS["anthropic"]:
        assert not inner.allows_endpoint(endpoint) or outer.allows_endpoint(endpoint)
    assert not inner.allows_model(model) or outer.allows_model(model)
    assert set(inner.features) <= set(outer.features)
    for host in DOMAINS:
        assert not reaches(inner, host) or reaches(outer, host)
    if outer.max_output_tokens is not None:
        assert inner.max_output_tokens is not None
        assert inner.max_output_tokens <= outer.max_output_tokens
    assert (inner.body, outer.body) not in WIDER_BODIES


@given(scopes)
def test_narrow_to_itself(scope: Scope) -> None:
    """Every scope covers itself."""
    assert narrow(scope, scope) == scope


@given(first=scopes, second=scopes, third=scopes)
def test_narrow_is_transitive(first: Scope, second: Scope, third: Scope) -> None:
    """What a child of a child covers, the first parent covers too."""
    try:
        narrow(first, second)
        narrow(second, third)
    except ScopeError:
        return
    assert narrow(first, third) == third


@pytest.mark.parametrize(
    ("pattern", "model", "allowed"),
    [
        ("claude-sonnet-5", "claude-sonnet-5", True),
        ("claude-sonnet-5", "claude-sonnet-5-20260101", False),
        ("claude-sonnet-5", "CLAUDE-SONNET-5", False),
        ("claude-sonnet-*", "claude-sonnet-5", True),
        ("claude-sonnet-*", "claude-sonnet-", True),
        ("claude-sonnet-*", "claude-opus-5", False),
        ("claude-sonnet-*", "xclaude-sonnet-5", False),
        ("*", "anything", True),
        ("*", "*", False),
        ("claude-*", "claude-*", False),
        ("claude-*", "claude-sonnet-*", False),
        ("claude-?", "claude-5", False),
    ],
)
def test_models(pattern: str, model: str, allowed: bool) -> None:
    """Models match whole, or by prefix with one trailing star; a star in a request is nothing."""
    detail = make_scope(models=(pattern,)).details[0]
    assert detail.allows_model(model) is allowed


@pytest.mark.parametrize(
    ("parent", "child", "field"),
    [
        ({}, {"models": ("claude-sonnet-5", "claude-opus-5")}, "models[1]"),
        ({}, {"models": ("claude-*",)}, "models[0]"),
        ({}, {"models": ("*",)}, "models[0]"),
        ({"models": ("claude-5",)}, {"models": ("claude-5*",)}, "models[0]"),
        ({"endpoints": ("messages",)}, {"endpoints": ("messages", "models")}, "endpoints[1]"),
        ({}, {"features": ("web_search",)}, "features[0]"),
        ({}, {"allowed_domains": ("a.test",)}, "allowed_domains[0]"),
        (
            {"allowed_domains": ("x.a.test",)},
            {"allowed_domains": ("a.test",)},
            "allowed_domains[0]",
        ),
        ({"allowed_domains": ("a.test",)}, {"allowed_domains": ("xa.test",)}, "allowed_domains[0]"),
        ({"max_output_tokens": 10}, {"max_output_tokens": 11}, "max_output_tokens"),
        ({"max_output_tokens": 10}, {}, "max_output_tokens"),
        ({"body": "strict"}, {}, "body"),
        ({"body": "strict"}, {"body": "open"}, "body"),
        ({}, {"body": "open"}, "body"),
    ],
)
def test_narrow_names_the_field(parent: dict[str, Any], child: dict[str, Any], field: str) -> None:
    """A child that goes too far is refused with the path of what goes too far."""
    with pytest.raises(ScopeError) as caught:
        narrow(make_scope(**parent), make_scope(**child))
    assert caught.value.field == f"authorization_details[0].{field}"


def test_narrow_to_another_provider() -> None:
    """A provider the parent does not name cannot be had from it."""
    child = Scope((*make_scope().details, Detail("other", ("messages",), ("*",))))
    with pytest.raises(ScopeError) as caught:
        narrow(make_scope(), child)
    assert caught.value.field == "authorization_details[1].provider"


WIRE: dict[str, Any] = scope_to_wire(make_scope())[0]


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "authorization_details"),
        ([], "authorization_details"),
        ({}, "authorization_details"),
        ([1], "authorization_details[0]"),
        ([{**WIRE, "type": "other"}], "authorization_details[0].type"),
        ([{**WIRE, "limits": {}}], "authorization_details[0].limits"),
        ([{**WIRE, "provider": "Other"}], "authorization_details[0].provider"),
        ([{**WIRE, "provider": "v1"}], "authorization_details[0].provider"),
        ([{**WIRE, "provider": "a" * 33}], "authorization_details[0].provider"),
        ([{**WIRE, "provider": "other"}], "authorization_details[0].endpoints[0]"),
        ([{**WIRE, "provider": ["anthropic"]}], "authorization_details[0].provider"),
        ([{**WIRE, "endpoints": ["files"]}], "authorization_details[0].endpoints[0]"),
        ([{**WIRE, "endpoints": [["messages"]]}], "authorization_details[0].endpoints[0]"),
        ([{**WIRE, "models": ["a", "a"]}], "authorization_details[0].models[1]"),
        ([{**WIRE, "models": ["a*b"]}], "authorization_details[0].models[0]"),
        ([{**WIRE, "models": ["a\n"]}], "authorization_details[0].models[0]"),
        ([{**WIRE, "models": [""]}], "authorization_details[0].models[0]"),
        ([{**WIRE, "models": ["a"] * 65}], "authorization_details[0].models"),
        ([{**WIRE, "features": ["Web"]}], "authorization_details[0].features[0]"),
        ([{**WIRE, "features": None}], "authorization_details[0].features"),
        ([{**WIRE, "allowed_domains": ["*.test"]}], "authorization_details[0].allowed_domains[0]"),
        ([{**WIRE, "allowed_domains": ["a"]}], "authorization_details[0].allowed_domains[0]"),
        ([{**WIRE, "max_output_tokens": 1.5}], "authorization_details[0].max_output_tokens"),
        ([{**WIRE, "max_output_tokens": True}], "authorization_details[0].max_output_tokens"),
        ([{**WIRE, "body": "lenient"}], "authorization_details[0].body"),
        ([{**WIRE, "body": ["strict"]}], "authorization_details[0].body"),
        ([{**WIRE, "body": None}], "authorization_details[0].body"),
        ([WIRE, WIRE], "authorization_details[1].provider"),
    ],
)
def test_strict(value: object, field: str) -> None:
    """Whatever is not understood is refused by the path of the field."""
    with pytest.raises(ScopeError) as caught:
        parse_scope(value)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize("field", ["type", "provider", "endpoints", "models"])
def test_required(field: str) -> None:
    """A detail without one of its required fields says nothing, so it allows nothing."""
    with pytest.raises(ScopeError, match="missing"):
        parse_scope([{key: value for key, value in WIRE.items() if key != field}])


def test_unset_parts_stay_off_the_wire() -> None:
    """Parts that are not set are left out of the token, parts that are set are in it."""
    assert WIRE.keys() == {"type", "provider", "endpoints", "models"}
    full = make_scope(features=("web_search",), allowed_domains=("a.test",), max_output_tokens=9)
    assert scope_to_wire(full)[0].keys() - WIRE.keys() == {
        "features",
        "allowed_domains",
        "max_output_tokens",
    }
    assert scope_to_wire(make_scope(body="open"))[0] == WIRE | {"body": "open"}


def test_empty_optional_lists() -> None:
    """An empty list of features is the same as none at all."""
    assert parse_scope([{**WIRE, "features": [], "allowed_domains": []}]) == make_scope()


def test_other_provider_is_none() -> None:
    """A provider that is not named may not be called."""
    assert make_scope().for_provider("openai") is None


def test_a_scope_must_fit_into_a_token() -> None:
    """What could never be signed into a token of 4 KiB is refused when it is asked for."""
    models = [f"model-{number:02d}-{'x' * 20}" for number in range(64)]
    wire = scope_to_wire(make_scope())
    wire[0]["models"] = models[:40]
    parse_scope(wire)
    wire[0]["models"] = models
    with pytest.raises(ScopeError, match="fit into a token") as caught:
        parse_scope(wire)
    assert caught.value.field == "authorization_details"
