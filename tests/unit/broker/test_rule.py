"""Conditions and identities: what a rule demands of claims, and how claims name a workload."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daypass_broker.rule import Kind, NoIdentity, Rule, claim

RULE = Rule(
    id="fdrl_a",
    name="agents",
    tenant="acme",
    profile="coding",
    kind=Kind.OIDC,
    issuer="https://issuer.test",
    audience="https://daypass.test",
    conditions={"repository_id": ("1",)},
    identity=("sub",),
)

scalars = st.one_of(st.text(max_size=8), st.integers(-3, 3), st.booleans())
values = st.recursive(
    st.one_of(scalars, st.none(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)
exact = scalars.filter(lambda value: not (isinstance(value, str) and value.endswith("*")))

named = st.fixed_dictionaries(dict.fromkeys("ab", st.one_of(st.text(min_size=1), st.integers())))


def demanding(**conditions: Any) -> Rule:
    """A rule with these conditions."""
    return replace(RULE, conditions=conditions)


@example(allowed=[1], found=True)
@example(allowed=[0, "1"], found=1.0)
@given(allowed=st.lists(exact, min_size=1, max_size=3), found=values)
def test_an_exact_condition_is_met_by_its_values_alone(allowed: list[Any], found: object) -> None:
    """Property: equal by value and by JSON type to one that is allowed, or refused."""
    same = any(type(found) is type(one) and found == one for one in allowed)
    assert (demanding(c=tuple(allowed)).unmet({"c": found}) is None) == same


@given(beginning=st.text(min_size=1, max_size=6), found=values)
def test_a_beginning_is_met_by_texts_that_begin_so(beginning: str, found: object) -> None:
    """Property: a star allows texts with that beginning and no value of another kind."""
    rule = demanding(c=(beginning + "*",))
    assert (rule.unmet({"c": found}) is None) == (
        isinstance(found, str) and found.startswith(beginning)
    )


@given(claims=st.dictionaries(st.sampled_from("abcd"), scalars), data=st.data())
def test_every_condition_counts(claims: dict[str, Any], data: st.DataObject) -> None:
    """Property: taking away or changing any demanded claim refuses what was taken before."""
    exactly = {name: (value,) for name, value in claims.items() if not str(value).endswith("*")}
    rule = demanding(**exactly)
    assert rule.unmet(claims) is None
    if exactly:
        name = data.draw(st.sampled_from(sorted(exactly)))
        assert rule.unmet({key: claims[key] for key in claims if key != name}) == name
        assert rule.unmet({**claims, name: [claims[name]]}) == name


@pytest.mark.parametrize("found", [1, True, ["1"], {"1": 1}, None, "1 ", "11", "", 1.0])
def test_one_is_not_one_of_another_kind(found: object) -> None:
    """The text 1 is met by the text 1 and by nothing that looks like it."""
    assert RULE.unmet({"repository_id": found}) == "repository_id"
    assert RULE.unmet({"repository_id": "1"}) is None


def test_claims_inside_of_others_have_pointers() -> None:
    """RFC 6901: slashes lead inside, ~1 and ~0 stand for the two characters."""
    claims = {"kubernetes.io": {"pod": {"uid": "u"}}, "a/b~": {"c": 1}, "/x": 2}
    assert claim(claims, "/kubernetes.io/pod/uid") == "u"
    assert claim(claims, "/a~1b~0/c") == 1
    assert demanding(**{"/kubernetes.io/pod/uid/deeper": ("u",)}).unmet(claims) is not None
    assert demanding(**{"kubernetes.io/pod/uid": ("u",)}).unmet(claims) is not None


@given(one=named, other=named)
def test_two_workloads_never_share_a_name(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Property: identities are equal exactly when the values of all their claims are."""
    rule = replace(RULE, identity=("a", "b"))
    assert (rule.name_workload(one) == rule.name_workload(other)) == (one == other)
    assert json.loads(rule.name_workload(one)) == one


@pytest.mark.parametrize("value", [None, "", [], ["w"], {}, True, False, 1.5])
def test_what_names_nobody_is_no_identity(value: object) -> None:
    """A claim that is empty, missing or no scalar would make one workload of many."""
    with pytest.raises(NoIdentity, match="sub"):
        RULE.name_workload({"sub": value})
    with pytest.raises(NoIdentity, match="sub"):
        RULE.name_workload({})
    with pytest.raises(NoIdentity, match="too long"):
        RULE.name_workload({"sub": "x" * 2048})
