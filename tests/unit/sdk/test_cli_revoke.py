"""`daypass revoke`, `tenant`, `incidents`, `token inspect`: nobody ends anything by accident."""

import io
import json
from urllib.parse import parse_qs

import pytest

from daypass import NotRevoked
from daypass.__main__ import main
from daypass.broker import Broker
from tests.unit.sdk.admin_server import AdminServer
from tests.unit.sdk.cli import run

pytestmark = pytest.mark.usefixtures("admin_environment")

TENANTS = {"tenants": [{"id": "a", "state": "active", "active_sandboxes": 2, "profiles": ["x"]}]}
EFFECT = {"tenants": 0, "sandboxes": 2, "grants": 1, "tokens": 0}
TOKEN = "eyJhbGciOiJFUzI1NiJ9.e30.c2ln"


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (
            "--sandbox sbx_a --reason stolen",
            {"scope": "sandbox", "ident": "sbx_a", "reason": "stolen"},
        ),
        ("--tenant acme --before now", {"scope": "tenant", "ident": "acme", "not_before": "now"}),
        ("--all --yes --before 1795975649", {"scope": "global", "not_before": 1795975649}),
        ("--jti tok_a", {"scope": "jti", "ident": "tok_a"}),
    ],
)
def test_one_thing_is_revoked(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], words: str, body: dict[str, object]
) -> None:
    """Each scope has its flag, and everything at once has one too."""
    named = f"{body['scope']} {body['ident']}" if "ident" in body else "everything"
    before = f", only what was issued up to {body['not_before']}" if "not_before" in body else ""
    assert run(capsys, "revoke", *words.split()).startswith(f"revoked {named}{before}: ")
    assert admin.asked[0].json() == body


@pytest.mark.parametrize(
    "words", ["", "--all --sandbox a", "--sandbox a --tenant b", "--token x --all"]
)
def test_revoking_nothing_or_two_things_is_refused(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    """Nobody is revoked by accident."""
    assert main(["revoke", *words.split()]) == 2
    assert capsys.readouterr().err.startswith("daypass: say exactly one thing to revoke; ")
    assert admin.asked == []


def test_what_has_ended_is_said(admin: AdminServer, capsys: pytest.CaptureFixture[str]) -> None:
    """The counts of the answer are told in words, without those that are nothing."""
    admin.answers["POST /v1/revocations"] = (201, {"effect": EFFECT, "version": 7})
    assert run(capsys, "revoke", "--sandbox", "sbx_a").splitlines() == [
        "revoked sandbox sbx_a: running calls are being cut",
        "ended: 2 sandboxes, 1 grant",
        "in force at every proxy from version 7 of the revocations on",
    ]
    admin.answers["POST /v1/revocations"] = (201, {"effect": {**EFFECT, "tenants": 1}})
    out = run(capsys, "revoke", "--tenant", "acme")
    assert out.splitlines()[1:] == [
        "ended: 1 tenant closed, 2 sandboxes, 1 grant",
        "tenant acme is closed until: daypass tenant restore acme",
    ]


@pytest.mark.parametrize("words", [["--jti", "lch_a"], ["--token", "x"]])
def test_a_launch_credential_ends_without_its_tokens(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """No call is cut by it, and whoever believes that is told what would."""
    answer = {"scope": "jti", "ident": "lch_a", "effect": {"tokens": 0}, "version": 3}
    for path in ("/v1/revocations", "/v1/oauth/revoke"):
        admin.answers[f"POST {path}"] = (201, answer)
    assert run(capsys, "revoke", *words).splitlines() == [
        "revoked jti lch_a, a launch credential: nobody gets a token with it any more",
        "tokens that it brought go on; `daypass revoke --sandbox ID` ends these too",
        "in force at every proxy from version 3 of the revocations on",
    ]


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("ident", "--jti tok_a: no such"),
        ("not_before", "--before: no such"),
        ("reason", "reason: "),
    ],
)
def test_a_refusal_names_the_flag(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], field: str, told: str
) -> None:
    """The broker speaks of fields; whoever typed the command knows its flags."""
    answer = {"detail": f"{field}: no such", "code": "invalid_request", "field": field}
    admin.answers["POST /v1/revocations"] = (400, answer)
    assert main(["revoke", "--jti", "tok_a"]) == 1
    assert capsys.readouterr().err.startswith(f"daypass: {told}")


@pytest.mark.parametrize("words", [["revoke", "--token", "-"], ["token", "inspect"]])
def test_no_token_is_said_at_once(
    admin: AdminServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    """A terminal is told what is waited for; an empty input is no token, and nothing is asked."""
    monkeypatch.setattr("sys.stdin", Terminal("\n"))
    assert main(words) == 2
    told = ["daypass: paste the token, then press Ctrl-D", "daypass: no token was given; write it"]
    shown = capsys.readouterr().err.splitlines()
    assert [line[: len(want)] for line, want in zip(shown, told, strict=True)] == told
    assert admin.asked == []


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        """It is one."""
        return True


@pytest.mark.parametrize(("typed", "revoked"), [("all\n", True), ("yes\n", False), ("", False)])
def test_everything_is_confirmed_by_a_person(
    admin: AdminServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    revoked: bool,
) -> None:
    """`--all` says what would end, and goes on only when the very word is typed."""
    admin.answers["GET /v1/tenants"] = (200, TENANTS)
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    assert main(["revoke", "--all", "--before", "now"]) == (0 if revoked else 2)
    assert "every active sandbox (2) of every tenant (1)" in capsys.readouterr().err
    assert ("POST /v1/revocations" in admin.calls) == revoked


def test_where_nobody_can_be_asked_everything_wants_yes(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that ends everything must say so; its input is no confirmation."""
    admin.answers["GET /v1/tenants"] = (200, TENANTS)
    monkeypatch.setattr("sys.stdin", io.StringIO("all\n"))
    assert main(["revoke", "--all"]) == 2
    assert capsys.readouterr().err.endswith("nobody is here to confirm it; pass --yes\n")
    assert admin.calls == ["GET /v1/tenants"]


NOT_STORED = {"detail": "revocation was NOT stored and has ended nothing; repeat it"}


@pytest.mark.parametrize(
    ("status", "answer", "told"),
    [
        (503, NOT_STORED, "NOT revoked: revocation was NOT stored and has ended nothing"),
        (500, {"detail": "unexpected error", "code": "internal_error"}, "NOT revoked: unexpected"),
        (201, "lose", "NOT revoked: no answer from http://127.0.0.1"),
    ],
)
@pytest.mark.parametrize("words", ["--sandbox sbx_a", f"--token {TOKEN}"])
def test_a_revocation_that_is_not_confirmed_is_loud(
    admin: AdminServer,
    capsys: pytest.CaptureFixture[str],
    status: int,
    answer: object,
    told: str,
    words: str,
) -> None:
    """Whatever keeps it from being stored: exit code 1, NOT revoked, and what to do now."""
    for path in ("/v1/revocations", "/v1/oauth/revoke"):
        admin.answers[f"POST {path}"] = (status, answer)
    assert main(["revoke", *words.split()]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"daypass: {told}")
    assert "repeat it until it is confirmed, twice is harmless" in shown.err
    assert TOKEN not in shown.err
    with pytest.raises(NotRevoked):
        Broker().revoke("sandbox", "sbx_a")


def test_a_token_is_revoked_by_itself(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes as a form, from the line or from standard input, and is not said again."""
    ended = {"scope": "jti", "ident": "tok_a", "effect": {**EFFECT, "tokens": 1, "sandboxes": 0}}
    admin.answers["POST /v1/oauth/revoke"] = (200, ended)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{TOKEN}\n"))
    for given in (TOKEN, "-"):
        out = run(capsys, "revoke", "--token", given)
        assert out.startswith("revoked jti tok_a: running calls are being cut\nended: 1 grant, 1")
        assert TOKEN not in out
    for asked in admin.asked:
        assert parse_qs(asked.body.decode()) == {"token": [TOKEN]}
        assert asked.headers["content-type"] == "application/x-www-form-urlencoded"


def test_a_token_that_is_none_is_said_to_be_none(
    admin: AdminServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """RFC 7009 answers 200 for it; somebody who pasted half a token must not think it is dead."""
    assert main(["revoke", "--token", TOKEN]) == 1
    assert "nothing was revoked: that is no live token" in capsys.readouterr().err
    assert main(["revoke", "--token", TOKEN, "--before", "now"]) == 2
    assert len(admin.asked) == 1


def test_a_token_is_looked_into(admin: AdminServer, capsys: pytest.CaptureFixture[str]) -> None:
    """What it says as a sheet, or as JSON; 1 when it is not good, so that scripts can ask."""
    live = {"active": True, "sandbox": "sbx_a", "exp": 9}
    admin.answers["POST /v1/oauth/introspect"] = (200, live)
    assert run(capsys, "token", "inspect", TOKEN).splitlines() == [
        "active   yes",
        "sandbox  sbx_a",
        "exp      9",
    ]
    assert json.loads(run(capsys, "token", "inspect", "--json", TOKEN)) == live
    admin.answers["POST /v1/oauth/introspect"] = (200, {"active": False})
    assert main(["token", "inspect", TOKEN]) == 1
    assert capsys.readouterr().out == "active  no\n"


def test_tenants_are_listed_and_restored(
    admin: AdminServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list shows the state; restoring one says what it does not do."""
    admin.answers["GET /v1/tenants"] = (200, TENANTS)
    assert run(capsys, "tenant", "list").splitlines()[1].split() == ["a", "active", "2", "x"]
    assert run(capsys, "tenant", "restore", "a").startswith("tenant a is active")
    assert admin.calls[-1] == "POST /v1/tenants/a/restore"


def test_incidents_are_listed(
    admin: AdminServer, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """As a table, as JSON, or every page of CSV with one heading."""
    row = {"minute": "2026-11-29T18:20:00Z", "subject": "sbx_a", "tenant": "a", "kind": "clone"}
    admin.answers["GET /v1/incidents"] = (200, {"rows": [{**row, "count": 3}], "next": None})
    assert main(["incidents", "--tenant", "a", "--kind", "clone", "--limit", "5"]) == 0
    assert b"sbx_a" in capsysbinary.readouterr().out
    assert admin.calls == ["GET /v1/incidents?tenant=a&kind=clone&limit=5"]
    pages = [b"minute,count\r\nm,1\r\n", b"minute,count\r\nn,2\r\n"]
    admin.answers["GET /v1/incidents"] = (200, pages)
    admin.links["/v1/incidents"] = ['</v1/incidents?after=m>; rel="next"', ""]
    assert main(["incidents", "--csv"]) == 0
    assert capsysbinary.readouterr().out == b"minute,count\r\nm,1\r\nn,2\r\n"
    assert main(["incidents", "--csv", "--json"]) == 2
