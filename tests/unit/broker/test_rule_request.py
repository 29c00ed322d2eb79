"""A rule as an administrator writes it down: templates, what must be pinned, what is ours."""

from typing import Any

import pytest

from daypass_broker.fields import FieldError
from daypass_broker.rule import AfterDeadline, Kind, Replay, Rule
from daypass_broker.rule_request import Own, read, templates
from tests.support import signing_key

OURS = signing_key("ours")
OWN = Own(("https://daypass.test/", "https://public.test"), frozenset({OURS.kid}))
GITHUB = "https://token.actions.githubusercontent.com"
GKE = "https://container.googleapis.com/v1/projects/p/locations/l/clusters/c"
ACCOUNT = "/kubernetes.io/serviceaccount/uid"

# What each platform's rule must say at least, and an issuer of it.
LEAST: dict[str, dict[str, Any]] = {
    "github": {"conditions": {"repository_id": "1"}},
    "vercel": {"issuer": "https://oidc.vercel.com/acme", "conditions": {"project_id": "prj_1"}},
    "modal": {"conditions": {"workspace_id": "ac-1"}},
    "e2b": {"issuer": "https://id.e2b.test", "conditions": {"sub": "spiffe://e2b.test/team/1/*"}},
    "gke": {"issuer": GKE, "conditions": {ACCOUNT: "u"}},
    "eks": {
        "issuer": "https://oidc.eks.eu-west-1.amazonaws.com/id/ABC123",
        "conditions": {ACCOUNT: "u"},
    },
    "aks": {
        "issuer": "https://westeurope.oic.prod-aks.azure.com/00aa-11/22bb-33/",
        "conditions": {ACCOUNT: "u"},
    },
    "google": {"conditions": {"sub": "1234"}},
    "cluster": {"issuer": "https://k8s.test", "conditions": {ACCOUNT: "u"}},
    "kubernetes": {
        "issuer": "https://kubernetes.default.svc.cluster.local",
        "conditions": {"service_account_uid": "u"},
    },
    "spiffe": {"issuer": "https://spire.test", "conditions": {"sub": "spiffe://td/ns/a/*"}},
    "oidc": {"issuer": "https://issuer.test", "conditions": {"sub": "robot"}},
}


def body(**fields: Any) -> dict[str, Any]:
    """A request with what every rule says."""
    said = {"name": "agents", "tenant": "acme", "profile": "coding", "audience": "daypass"}
    return {name: value for name, value in {**said, **fields}.items() if value is not None}


def rule(**fields: Any) -> Rule:
    """The rule of a request."""
    return read(body(**fields), "fdrl_a", OWN)


def field_of(**fields: Any) -> str:
    """The field that a request is refused for."""
    with pytest.raises(FieldError) as caught:
        rule(**fields)
    return caught.value.field


@pytest.mark.parametrize("name", LEAST)
def test_a_template_fills_in_what_its_platform_is(name: str) -> None:
    """Each ready-made rule is one that can be made, and pins a claim that never changes hands."""
    made = rule(template=name, **LEAST[name])
    template = templates()[name]
    assert made.identity == tuple(template["identity"])
    assert made.max_life_s == template["max_life_seconds"]
    assert (made.kind is Kind.KUBERNETES) == (name == "kubernetes")
    assert made.replay is Replay.UNTIL_EXP
    assert made.after_deadline == template.get("after_deadline", AfterDeadline.REFUSE)
    assert field_of(template=name, **{**LEAST[name], "conditions": {"name": "x"}}) == "conditions"


def test_every_template_is_tried_here() -> None:
    """A template without a test of its own would be a promise."""
    assert set(LEAST) == set(templates())


@pytest.mark.parametrize(
    "conditions",
    [
        {"repository": "acme/agents"},
        {"sub": "repo:acme/agents:ref:refs/heads/main"},
        {"repository_id": "1*"},
        {"repository_id": ["1", "2*"]},
        {"repository_id": True},
    ],
)
def test_names_that_can_be_given_away_are_not_enough(conditions: dict[str, Any]) -> None:
    """A repository can be renamed and its name taken by others; its id cannot."""
    assert field_of(template="github", conditions=conditions) == "conditions"


@pytest.mark.parametrize("template", [None, "oidc", "spiffe", "cluster"])
@pytest.mark.parametrize("issuer", [GITHUB, GITHUB + "/acme", "https://ghe.test/_services/token"])
def test_the_issuer_decides_what_must_be_pinned(template: str | None, issuer: str) -> None:
    """Another template, or none, does not get a GitHub rule past GitHub's ids."""
    conditions = {"sub": "repo:acme/agents:ref:refs/heads/main"}
    refused = field_of(template=template, issuer=issuer, conditions=conditions)
    assert refused == ("conditions" if template is None else "template")


def test_a_template_is_for_its_issuers() -> None:
    """Google's template with somebody else's issuer is a mistake, not a wish."""
    assert field_of(template="google", issuer="https://evil.test", conditions={"sub": "1"}) == (
        "issuer"
    )


@pytest.mark.parametrize(
    ("value", "good"),
    [
        ("spiffe://td/ns/agents/sa/runner", True),
        ("spiffe://td/ns/*", True),
        ("spiffe://td/ns/agents/*", True),
        ("spiffe://td/*", False),
        ("spiffe://td*", False),
        ("spiffe://td/ns/agen*", False),
        ("spiffe://*", False),
        ("*", False),
    ],
)
def test_a_spiffe_id_is_pinned_to_whole_parts(value: str, good: bool) -> None:
    """`agents` must not let `agents-of-somebody-else` in."""
    conditions = {"sub": value}
    asked = {"template": "spiffe", "issuer": "https://spire.test", "conditions": conditions}
    if good:
        assert rule(**asked).conditions == {"sub": (value,)}
    else:
        assert field_of(**asked).startswith("conditions")


@pytest.mark.parametrize(
    "issuer",
    [
        "https://daypass.test",
        "https://daypass.test/",
        "https://DAYPASS.test:443",
        "https://daypass.test.",
        "https://public.test",
    ],
)
def test_our_own_issuer_is_nobodys(issuer: str) -> None:
    """However it is spelled: a token of ours must not buy a sandbox."""
    assert field_of(issuer=issuer, conditions={"sub": "x"}) == "issuer"


def test_our_own_keys_are_nobodys() -> None:
    """Neither by the URL of our key set nor by the keys themselves."""
    asked: dict[str, Any] = {"issuer": "https://other.test", "conditions": {"sub": "x"}}
    url = {"url": "https://daypass.test/.well-known/jwks.json"}
    assert field_of(**asked, keys=url) == "keys.url"
    assert field_of(**asked, keys={"inline": {"keys": [OURS.jwk]}}) == "keys.inline"
    other = {"inline": {"keys": [signing_key("other").jwk]}}
    assert rule(**asked, keys=other).keys.inline == other["inline"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("issuer", "http://issuer.test"),
        ("issuer", "issuer.test"),
        ("issuer", "https://user@issuer.test"),
        ("issuer", "https://issuer.test?x=1"),
        ("issuer", "https://issuer.test/a b"),
        ("audience", "two words"),
        ("audience", None),
        ("conditions", None),
        ("conditions", {}),
        ("conditions", {"sub": []}),
        ("conditions", {"sub": ["a", None]}),
        ("conditions", {"sub": {"a": 1}}),
        ("conditions", {"sub": "a*b"}),
        ("conditions", {"sub": "x", "aud": "y"}),
        ("conditions", {"sub": "x", "a b": "y"}),
        ("identity", []),
        ("identity", ["sub", "sub"]),
        ("identity", ["exp"]),
        ("identity", ["/jti"]),
        ("identity", [1]),
        ("keys", {}),
        ("keys", {"url": "https://a.test", "inline": {}}),
        ("keys", {"url": "http://a.test"}),
        ("keys", {"inline": {"keys": []}}),
        ("keys", {"inline": {"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "a"}]}}),
        ("keys", {"other": 1}),
        ("replay", "never"),
        ("max_life_seconds", 176_401),
        ("max_life_seconds", 59),
        ("max_sandboxes", 0),
        ("template", "nobody"),
        ("other", 1),
        ("name", "Not A Name"),
        ("tenant", None),
    ],
)
def test_what_cannot_be_is_refused_by_name(field: str, value: object) -> None:
    """Every refusal names its field."""
    asked = {"issuer": "https://issuer.test", "conditions": {"sub": "robot"}, field: value}
    assert field_of(**asked).split(".")[0] == field


def test_a_cluster_that_is_asked_has_no_keys() -> None:
    """TokenReview and a key set are two ways, not one."""
    asked = {"template": "kubernetes", **LEAST["kubernetes"]}
    assert field_of(**asked, keys={"url": "https://k8s.test/keys"}) == "keys"


def test_an_issuer_that_is_no_url_needs_its_keys_here() -> None:
    """SPIRE's `iss` may be any text; then nothing can be discovered."""
    asked: dict[str, Any] = {"issuer": "spire", "conditions": {"sub": "x"}}
    assert field_of(**asked) == "issuer"
    inline = {"inline": {"keys": [signing_key("spire").jwk]}}
    assert rule(**asked, keys=inline).issuer == "spire"
