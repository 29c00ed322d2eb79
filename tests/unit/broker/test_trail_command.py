"""`python -m daypass_broker verify-trail`, and heads as the log tells them."""

import io
import json
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from daypass_broker import db, schema
from daypass_broker.__main__ import main
from daypass_broker.audit import AuditTag
from daypass_broker.chain import kept, sealing
from daypass_broker.chain.links import Signed
from daypass_core import log
from tests.unit.broker.desk import Desk


@pytest.fixture
def told(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Path:
    """A broker's log with the head that it has just made, and lines of other kinds."""
    monkeypatch.setenv("DAYPASS_DATABASE_URL", desk.url)
    stream = io.StringIO()
    log.configure("broker", stream=stream, thread=False)
    with desk.acting() as act:
        act.tell(AuditTag.POLICY_APPLIED, tenant="acme")
    assert sealing.seal(desk.services) > 0
    path = tmp_path / "broker.log"
    path.write_text(f'not JSON\n{{"event":"audit_request"}}\n{stream.getvalue()}"audit_head"\n')
    capfd.readouterr()
    return path


def spoil(desk: Desk) -> None:
    """Change who did something."""
    with db.begin(desk.engine) as conn:
        conn.exec_driver_sql("DROP TRIGGER audit_append_only")
        conn.execute(sa.update(schema.audit).values(actor="crd_other"))


def test_a_head_in_the_log_is_the_one_in_the_table(desk: Desk, told: Path) -> None:
    """Nothing of it is blotted out as if it were a token; it is read back as it was written."""
    (found,) = kept.read(told.read_bytes().splitlines())
    (row,) = desk.rows(schema.audit_head)
    assert found == Signed.of(row._asdict())


def test_a_trail_as_it_was_sealed_ends_with_0(
    told: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In words or as JSON, with heads from a file or from standard input."""
    assert main(["verify-trail"]) == 0
    assert "in 1 heads verified, 0 problems" in capfd.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(told.read_bytes())))
    for source in (str(told), "-"):
        assert main(["verify-trail", "--json", "--heads", source]) == 0
        said = json.loads(capfd.readouterr().out)
        assert (said["heads"], said["compared"], said["wrong"]) == (1, 1, [])


def test_a_trail_that_was_changed_ends_with_1(
    desk: Desk, told: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is wrong is said on standard output, in JSON too, and that it is on standard error."""
    spoil(desk)
    assert main(["verify-trail", "--heads", str(told)]) == 1
    said = capfd.readouterr()
    assert "are not what was sealed at" in said.out
    assert said.err == "daypass-broker: the audit trail is not what was sealed\n"
    assert main(["verify-trail", "--json"]) == 1
    assert len(json.loads(capfd.readouterr().out)["wrong"]) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"upto": "7"}, "is no whole head: upto is no int"),
        ({"events": True}, "is no whole head: events is no int"),
        ({"hash": None}, "is no whole head: hash is no str"),
    ],
)
def test_a_head_that_cannot_be_read_is_named(
    told: Path, change: dict[str, object], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """By its line; so is a file that is not there."""
    line = next(one for one in told.read_text().splitlines() if '"event":"audit_head"' in one)
    told.write_text(json.dumps(json.loads(line) | change))
    assert main(["verify-trail", "--heads", str(told)]) == 1
    assert f"line 1: {said}" in capfd.readouterr().err
    assert main(["verify-trail", "--heads", "/nowhere/broker.log"]) == 1
    assert "/nowhere/broker.log: No such file" in capfd.readouterr().err
    assert main(["verify-trail", "--export", "/nowhere"]) == 1
    assert "/nowhere is no directory" in capfd.readouterr().err


@pytest.mark.parametrize(
    "change", [{"hash": "\ud800"}, {"at": 7}, {"kid": "nobody"}, {"signature": "no hex"}]
)
def test_a_head_that_is_not_ours_is_named(
    told: Path, change: dict[str, object], capfd: pytest.CaptureFixture[str]
) -> None:
    """It has all its fields, and one of them is not what was signed."""
    line = next(one for one in told.read_text().splitlines() if '"event":"audit_head"' in one)
    told.write_text(json.dumps(json.loads(line) | change))
    assert main(["verify-trail", "--heads", str(told)]) == 1
    assert "kept elsewhere: its signature is not ours" in capfd.readouterr().out


def test_a_log_without_heads_is_told_from_none(
    told: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who names the wrong file, or one whose lines are wrapped, sees that nothing was compared."""
    told.write_text("[" * 100_000 + '"audit_head"\n')
    assert main(["verify-trail", "--heads", str(told)]) == 0
    assert "\n0 heads were kept elsewhere, and compared\n" in capfd.readouterr().out
    assert main(["verify-trail"]) == 0
    assert "elsewhere" not in capfd.readouterr().out


def test_the_signer_signs_no_token_for_a_head(desk: Desk) -> None:
    """What is signed of a head begins with a brace, what is signed of a JWT never does: asked to
    sign anything else the signer refuses, so a head's signature can be no token's."""
    for text in (b"", b"eyJhbGciOiJFUzI1NiJ9.e30", b" {}"):
        with pytest.raises(ValueError, match="begins with a brace"):
            desk.services.signer.sign_head(text)
