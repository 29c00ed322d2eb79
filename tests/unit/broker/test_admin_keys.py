"""`/v1/keys`: listed and rotated by admins, and what everybody is told while nothing can sign."""

from typing import Any

import pytest

from daypass_broker import schema
from daypass_broker.keys import KeyRingError, NewKey, Purpose, SigningUnavailable
from tests.unit.broker.desk import Desk, check_request


def listed(desk: Desk, query: str = "") -> list[dict[str, Any]]:
    """The keys as the API lists them."""
    reply = desk.call("GET", f"/v1/keys{query}")
    assert reply.status == 200
    keys: list[dict[str, Any]] = reply.body["keys"]
    return keys


def test_keys_are_listed(desk: Desk) -> None:
    """Each purpose has one active key, in a file; a query takes one purpose."""
    keys = listed(desk)
    assert {(key["purpose"], key["state"], key["store"]) for key in keys} == {
        (purpose.value, "active", "file") for purpose in Purpose
    }
    (launch,) = listed(desk, "?purpose=launch")
    assert launch["kid"] == desk.keys.active(Purpose.LAUNCH).kid
    assert desk.call("GET", "/v1/keys?purpose=x").status == 400


def test_a_rotation_prepares_the_next_key(desk: Desk) -> None:
    """The answer shows the next key, published already; asked again it is the same answer."""
    first = desk.call("POST", "/v1/keys/rotate", {})
    prepared, active = first.body["keys"]
    assert (prepared["state"], active["state"]) == ("prepared", "active")
    published: Any = desk.keys.jwks()["keys"]
    assert {key["kid"] for key in published} == {prepared["kid"], active["kid"]}
    assert desk.call("POST", "/v1/keys/rotate", {}).body == first.body
    sooner = desk.call("POST", "/v1/keys/rotate", {"now": True}).body["keys"][0]
    assert sooner["kid"] == prepared["kid"]
    assert sooner["usable_at"] < prepared["usable_at"]
    assert len(listed(desk, "?purpose=renewal")) == 1


def test_a_key_of_another_purpose_is_rotated(desk: Desk) -> None:
    """`purpose` says which; the audit says who."""
    (prepared, _) = desk.call("POST", "/v1/keys/rotate", {"purpose": "launch"}).body["keys"]
    assert prepared["purpose"] == "launch"
    (event,) = desk.rows(schema.audit, tag="key.prepared")
    assert event.subject == prepared["kid"]
    assert event.actor.startswith("crd_")


def test_keys_are_for_admins(desk: Desk) -> None:
    """Orchestrators see no keys and rotate none."""
    assert desk.call("GET", "/v1/keys", credential=desk.acme).status == 403
    assert desk.call("POST", "/v1/keys/rotate", {}, credential=desk.acme).status == 403
    assert len(listed(desk)) == 3


@pytest.mark.parametrize("body", [{"purpose": "x"}, {"now": "yes"}, {"kid": "a"}, []])
def test_a_request_that_says_something_else(desk: Desk, body: object) -> None:
    """What is not described is refused, by the description too."""
    assert desk.call("POST", "/v1/keys/rotate", body).status == 400
    assert not check_request("RotationRequest", body)


@pytest.mark.parametrize(
    "error", [SigningUnavailable("vault sealed"), KeyRingError("vault has no engine")]
)
def test_a_key_that_cannot_be_made(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A rotation that fails is 503 with the reason and when to try again; nothing is written."""

    def make(purpose: Purpose, known: frozenset[str]) -> NewKey:
        raise error

    monkeypatch.setattr(desk.keys._stores["file"], "make", make)
    reply = desk.call("POST", "/v1/keys/rotate", {})
    assert (reply.status, reply.headers["retry-after"]) == (503, "5")
    assert reply.body["code"] == "signing_unavailable"
    assert str(error) in reply.body["detail"]
    assert len(listed(desk)) == 3


def test_no_sandbox_without_a_credential(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing can be signed no sandbox is made: its only credential would be lost."""

    def check(*purposes: Purpose) -> None:
        raise SigningUnavailable

    monkeypatch.setattr(desk.services.signer, "check", check)
    reply = desk.call("POST", "/v1/sandboxes", {"tenant": "acme"})
    assert (reply.status, reply.body["code"]) == (503, "signing_unavailable")
    assert reply.headers["retry-after"] == "5"
    assert desk.rows(schema.sandbox) == []
