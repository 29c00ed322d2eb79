"""Webhooks of sandbox vendors: signed in one of two forms, counted once, obeyed."""

import base64
import hashlib
import hmac
import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from daypass_broker import schema, webhook
from daypass_broker.fields import FieldError
from daypass_broker.sandbox import LINGER_SECONDS
from daypass_broker.settings import load
from daypass_broker.webhook import NotSigned, UnusableSecret, VendorEvent
from daypass_core.secret import Secret
from daypass_core.settings import SettingsError
from tests.unit.broker.desk import Desk, Reply

NOW = 1_790_000_000
E2B_SECRET = "an-e2b-secret-of-some-length"
KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
WHEN = "2026-09-21T14:13:20Z"


def e2b_body(kind: str = "killed", sandbox: str = "i4x", **changes: object) -> bytes:
    """An event as E2B sends it."""
    said: dict[str, object] = {
        "version": "v2",
        "id": "evt-1",
        "type": f"sandbox.lifecycle.{kind}",
        "eventData": None,
        "sandboxBuildId": "b",
        "sandboxExecutionId": "x",
        "sandboxId": sandbox,
        "sandboxTeamId": "t",
        "sandboxTemplateId": "tpl",
        "timestamp": WHEN,
        **changes,
    }
    return json.dumps({name: value for name, value in said.items() if value != ...}).encode()


def e2b_signed(body: bytes, secret: str = E2B_SECRET) -> dict[str, str]:
    """The headers E2B adds."""
    digest = base64.b64encode(hashlib.sha256(secret.encode() + body).digest()).decode()
    return {"e2b-signature": digest.rstrip("="), "e2b-signature-version": "v1"}


def standard_body(kind: str = "sandbox.ended", sandbox: str = "i4x") -> bytes:
    """An event in the form of Standard Webhooks."""
    return json.dumps({"type": kind, "data": {"sandbox": sandbox, "why": "bored"}}).encode()


def standard_signed(
    body: bytes, ident: str = "msg_1", second: int = NOW, key: bytes = KEY
) -> dict[str, str]:
    """The headers of Standard Webhooks."""
    digest = hmac.digest(key, f"{ident}.{second}.".encode() + body, "sha256")
    return {
        "webhook-id": ident,
        "webhook-timestamp": str(second),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def read(vendor: str, headers: dict[str, str], body: bytes, now: float = NOW) -> VendorEvent:
    """Read a webhook with the secret of its form."""
    secret = E2B_SECRET if vendor == "e2b" else SECRET
    return webhook.read(vendor, Secret(secret), headers, body, now)


@pytest.mark.parametrize(
    ("kind", "meant"),
    [("killed", "ended"), ("paused", "paused"), ("created", "other"), ("resumed", "other")],
)
def test_e2bs_form_is_read(kind: str, meant: str) -> None:
    """The event, and the sandbox under either spelling."""
    body = e2b_body(kind)
    assert read("e2b", e2b_signed(body), body) == VendorEvent("evt-1", meant, "i4x")  # type: ignore[arg-type]
    body = e2b_body(kind, sandboxId=..., sandbox_id="i5y")
    assert read("e2b", e2b_signed(body), body).sandbox == "i5y"


def test_e2bs_example_holds() -> None:
    """The signature is base64 of SHA-256 over secret and body, its padding left out."""
    body = b'{"id":"a","type":"sandbox.lifecycle.killed","sandboxId":"s","timestamp":"' + (
        WHEN.encode() + b'"}'
    )
    given = base64.b64encode(hashlib.sha256(E2B_SECRET.encode() + body).digest()).decode()
    assert given[-1] == "="
    assert len(given.rstrip("=")) == 43
    assert read("e2b", {"e2b-signature": given.rstrip("=")}, body).ident == "a"


def test_standard_webhooks_are_read() -> None:
    """Any other vendor's; the id is that of the headers, which is signed too."""
    body = standard_body()
    assert read("modal", standard_signed(body), body) == VendorEvent("msg_1", "ended", "i4x")
    body = standard_body("sandbox.paused")
    assert read("modal", standard_signed(body), body).kind == "paused"
    body = b'{"type":"invoice.paid"}'
    assert read("modal", standard_signed(body), body) == VendorEvent("msg_1", "other", "")


def test_one_of_several_signatures_is_enough() -> None:
    """While a secret is changed there are two, of which one holds."""
    body = standard_body()
    headers = standard_signed(body)
    other = standard_signed(body, key=b"x" * 32)["webhook-signature"]
    headers["webhook-signature"] = f"{other} v2,AAAA {headers['webhook-signature']}"
    assert read("modal", headers, body).kind == "ended"


@pytest.mark.parametrize("vendor", ["e2b", "modal"])
def test_what_is_not_signed_is_not_read(vendor: str) -> None:
    """No signature, another secret's, another body's, another form's: all the same."""
    body = e2b_body() if vendor == "e2b" else standard_body()
    good = e2b_signed(body) if vendor == "e2b" else standard_signed(body)
    wrong = e2b_signed(body, "another-secret-of-that-length")
    if vendor != "e2b":
        wrong = standard_signed(body, key=b"y" * 32)
    swapped = standard_signed(body) if vendor == "e2b" else e2b_signed(body)
    for headers, said in (
        ({}, body),
        (wrong, body),
        (swapped, body),
        (good, body + b" "),
        (dict.fromkeys(good, ""), body),
        ({name: value.lower() for name, value in good.items()}, body),
    ):
        with pytest.raises(NotSigned):
            read(vendor, headers, said)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp"])
def test_id_and_time_are_signed_too(name: str) -> None:
    """Neither can be changed to make an old event a new one."""
    body = standard_body()
    headers = {**standard_signed(body), name: {"webhook-id": "msg_2"}.get(name, str(NOW + 1))}
    with pytest.raises(NotSigned):
        read("modal", headers, body)


@pytest.mark.parametrize(("vendor", "window"), [("e2b", 24 * 3600), ("modal", 300)])
def test_an_old_event_is_refused(vendor: str, window: int) -> None:
    """Within its window it is taken, beyond it and from the future it is not."""
    body = e2b_body() if vendor == "e2b" else standard_body()
    headers = e2b_signed(body) if vendor == "e2b" else standard_signed(body)
    for now in (NOW, NOW + window, NOW - 300):
        assert read(vendor, headers, body, now).kind == "ended"
    for now in (NOW + window + 1, NOW - 301):
        with pytest.raises(NotSigned):
            read(vendor, headers, body, now)


def test_nothing_can_be_added_to_a_signed_body() -> None:
    """E2B's hash can be continued by its padding, which is no UTF-8: refused as unreadable."""
    body = e2b_body("created")
    length = (len(E2B_SECRET) + len(body)) * 8
    padding = (
        b"\x80" + b"\0" * ((55 - len(E2B_SECRET) - len(body)) % 64) + length.to_bytes(8, "big")
    )
    longer = body + padding + b'{"type":"sandbox.lifecycle.killed"}'
    with pytest.raises(ValueError, match="UTF-8"):
        read("e2b", e2b_signed(longer), longer)


@pytest.mark.parametrize(
    ("vendor", "text"),
    [
        ("e2b", "short"),
        ("modal", "whsec_"),
        ("modal", "whsec_AAAA"),
        ("modal", base64.b64encode(KEY).decode()),
        ("modal", "whsec_not base64 at all, not base64 at all"),
    ],
)
def test_a_weak_secret_is_no_secret(vendor: str, text: str) -> None:
    """What could be guessed signs nothing."""
    with pytest.raises(UnusableSecret):
        webhook.read(vendor, Secret(text), {}, b"", NOW)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"id":"a"}',
        e2b_body(id=1),
        e2b_body(id="a b"),
        e2b_body(id="x" * 300),
        e2b_body(sandboxId=""),
        e2b_body(type=None),
        e2b_body(timestamp="soon"),
        e2b_body(timestamp=...),
        e2b_body()[:-1] + b',"id":"b"}',
    ],
)
def test_a_signed_body_that_says_nothing_is_refused(body: bytes) -> None:
    """The vendor hears what is wrong, for it is no stranger."""
    with pytest.raises(FieldError):
        read("e2b", e2b_signed(body), body)


# -- over HTTP


@pytest.fixture
def hooked(desk: Desk, tmp_path: Path) -> Desk:
    """A desk that listens to two vendors, of which one has lost its secret."""
    (tmp_path / "e2b").write_text(E2B_SECRET + "\n")
    files = {"e2b": tmp_path / "e2b", "lost": tmp_path / "lost"}
    settings = replace(desk.settings, webhooks=files)
    desk.services = replace(desk.services, settings=settings)
    desk.serve(desk.services)
    return desk


def deliver(desk: Desk, body: bytes, vendor: str = "e2b", **headers: str) -> Reply:
    """One delivery."""
    signed = headers or e2b_signed(body)
    path = f"/v1/webhooks/{vendor}"
    return desk.call("POST", path, body, credential=None, **signed)


def now_body(kind: str, ident: str, sandbox: str = "i4x") -> bytes:
    """An event of this moment."""
    moment = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return e2b_body(kind, sandbox, id=ident, timestamp=moment)


def test_a_killed_sandbox_is_ended_and_revoked(hooked: Desk) -> None:
    """Once, however often it is told; the audit says who told it."""
    made = hooked.sandbox(vendor="e2b", vendor_id="i4x")
    other = hooked.sandbox(vendor="e2b", vendor_id="i5y")
    body = now_body("killed", "evt-1")
    assert [deliver(hooked, body).body for _ in range(2)] == [
        {"status": "ended"},
        {"status": "repeated"},
    ]
    states = {row.id: row.state for row in hooked.rows(schema.sandbox)}
    assert states == {made["id"]: "ended", other["id"]: "active"}
    (revoked,) = hooked.rows(schema.revocation)
    assert (revoked.scope, revoked.ident, revoked.not_before) == ("sandbox", made["id"], None)
    (told,) = hooked.rows(schema.audit, tag="sandbox.ended")
    assert (told.actor, json.loads(told.detail)["cause"]) == ("webhook:e2b", "vendor:e2b")
    assert deliver(hooked, now_body("killed", "evt-2")).body == {"status": "ignored"}


@pytest.mark.parametrize("state", ["idle", "revoked"])
def test_a_killed_sandbox_is_ended_whatever_it_was(hooked: Desk, state: str) -> None:
    """Neither a warm one nor a revoked one can come back after its vendor killed it."""
    made = hooked.sandbox(vendor="e2b", vendor_id="i4x")
    hooked.change(schema.sandbox, made["id"], state=state)
    assert deliver(hooked, now_body("killed", "evt-1")).body == {"status": "ended"}


def test_a_paused_sandbox_loses_its_live_tokens_alone(hooked: Desk) -> None:
    """What lies in the vendor's store is of no use; the sandbox fetches a new one when it wakes."""
    made = hooked.sandbox(vendor="e2b", vendor_id="i4x")
    (grant,) = hooked.rows(schema.grant_)
    (now,) = {row.created_at // 1000 for row in hooked.rows(schema.sandbox)}
    with hooked.acting() as act:
        for name, exp in (("tok_live", now + 600), ("tok_over", now - 1)):
            token: dict[str, Any] = {"jti": name, "sandbox": made["id"], "tenant": "acme"}
            token |= {"grant_id": grant.id, "kid": "k", "iat": now, "exp": exp, "created_at": 0}
            act.conn.execute(schema.token.insert().values(**token))
    assert deliver(hooked, now_body("paused", "evt-1")).body == {"status": "paused"}
    (revoked,) = hooked.rows(schema.revocation)
    assert (revoked.scope, revoked.ident, revoked.not_before) == ("jti", "tok_live", None)
    assert revoked.expires_at == now + 600 + LINGER_SECONDS, "and is not polled for a day"
    assert [row.state for row in hooked.rows(schema.sandbox)] == ["active"]
    (told,) = hooked.rows(schema.audit, tag="sandbox.paused")
    assert json.loads(told.detail) == {"vendor": "e2b", "tokens": 1}


def test_an_unknown_sandbox_is_no_error(hooked: Desk) -> None:
    """A vendor tells of all of an account's sandboxes, ours or not."""
    assert deliver(hooked, now_body("killed", "evt-1", "nobody")).body == {"status": "ignored"}
    assert deliver(hooked, now_body("created", "evt-2")).body == {"status": "ignored"}
    (one, two) = hooked.rows(schema.vendor_event)
    assert (one.sandbox, two.sandbox) == (None, None)


def test_a_stranger_is_told_one_thing_and_writes_nothing(hooked: Desk) -> None:
    """An unknown vendor, no signature, a wrong one, an old one: the same 401 in the same words."""
    hooked.sandbox(vendor="e2b", vendor_id="i4x")
    before = len(hooked.rows(schema.audit))
    old = e2b_body(timestamp="2020-01-01T00:00:00Z")
    body = now_body("killed", "evt-1")
    told = [
        deliver(hooked, body, "nobody"),
        deliver(hooked, body, e2b_signature=""),
        deliver(hooked, body, **e2b_signed(body, "another-secret-of-that-length")),
        deliver(hooked, old, **e2b_signed(old)),
    ]
    assert {(reply.status, reply.content) for reply in told} == {(401, told[0].content)}
    assert hooked.rows(schema.vendor_event) == hooked.rows(schema.incident) == []
    assert len(hooked.rows(schema.audit)) == before
    assert hooked.call("GET", "/v1/webhooks/e2b").status == 405


def test_a_lost_secret_is_our_fault(hooked: Desk, tmp_path: Path) -> None:
    """500, so that the vendor tries again; a secret that is there again is in force at once."""
    body = standard_body()
    headers = standard_signed(body, second=int(time.time()))
    assert deliver(hooked, body, "lost", **headers).status == 500
    (tmp_path / "lost").write_text("whsec_short")
    assert deliver(hooked, body, "lost", **headers).status == 500
    (tmp_path / "lost").write_text(SECRET)
    assert deliver(hooked, body, "lost", **headers).body == {"status": "ignored"}


def test_a_webhook_is_bounded(hooked: Desk) -> None:
    """A body of more than 64 KiB is refused unread."""
    assert deliver(hooked, b"x" * (64 * 1024 + 1), e2b_signature="x").status == 413


@pytest.mark.parametrize("value", ["e2b", "e2b=secret", "E2B=/a", "e2b=/a,e2b=/b", "=/a"])
def test_the_setting_names_files(value: str) -> None:
    """A secret put there by mistake is not repeated."""
    with pytest.raises(SettingsError) as told:
        load({"DAYPASS_WEBHOOK_SECRETS": value})
    (said,) = [line for line in told.value.problems if "WEBHOOK" in line]
    assert "secret" not in said.replace("DAYPASS_WEBHOOK_SECRETS", "")
