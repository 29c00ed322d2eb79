"""Credentials of admins and orchestrators: made once, known by their hash, ended at once."""

import hashlib
import hmac

import pytest

from daypass_broker import credential, db, schema
from daypass_broker.credential import Principal, Role
from daypass_core.problem import Code, Refusal
from tests.unit.broker.desk import Desk


def known(desk: Desk, header: str | None) -> Principal | None:
    """Who the store takes an Authorization header for."""
    with db.read(desk.engine) as conn:
        return credential.authenticate(conn, header)


def test_a_credential_names_its_role(desk: Desk) -> None:
    """An admin's credential starts with dpa_, an orchestrator's with dpo_ and has its tenant."""
    admin = desk.credential()
    orchestrator = desk.credential(Role.ORCHESTRATOR, "globex-ci")
    assert admin.text.startswith(f"dpa_{admin.id.removeprefix('crd_')}_")
    assert orchestrator.text.startswith("dpo_")
    assert known(desk, f"Bearer {admin.text}") == Principal(admin.id, Role.ADMIN)
    found = known(desk, f"bearer {orchestrator.text}")
    assert found == Principal(orchestrator.id, Role.ORCHESTRATOR, "globex-ci", "globex")


def test_the_secret_is_in_no_row_and_no_repr(desk: Desk) -> None:
    """Stored is the SHA-256 of the secret part; neither the row, the event nor a repr shows it."""
    issued = desk.credential()
    secret = issued.text.rpartition("_")[2]
    (row,) = desk.rows(schema.credential, id=issued.id)
    assert row.hash == hashlib.sha256(secret.encode()).hexdigest()
    for shown in (row, issued, *desk.rows(schema.audit)):
        assert secret not in repr(shown)


def test_every_wrong_credential_is_nobody(desk: Desk) -> None:
    """A wrong secret, id, role, scheme or form is nobody, like no credential at all."""
    right = desk.credential().text
    prefix, ident, secret = right.split("_")
    other = desk.credential().text.split("_")
    wrong = [
        f"{prefix}_{ident}_{other[2]}",
        f"{prefix}_{other[1]}_{secret}",
        f"{prefix}_{'a' * 26}_{secret}",
        f"dpo_{ident}_{secret}",
        f"{prefix}_{ident}_{secret}a",
        f"{prefix}_{ident}_",
        right.upper(),
        "eyJhbGciOiJFUzI1NiJ9.e30.c2ln",
        "' OR 1=1 --",
    ]
    assert known(desk, f"Bearer {right}") is not None
    for text in wrong:
        assert known(desk, f"Bearer {text}") is None, text
    for header in (None, "", right, f"Basic {right}", f"Bearer{right}", f"Bearer {right} x"):
        assert known(desk, header) is None, header


def test_an_unknown_id_is_compared_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 43: the constant-time comparison happens for an unknown id as for a wrong secret."""
    compared: list[tuple[str, str]] = []
    compare = hmac.compare_digest

    def noted(one: str, other: str) -> bool:
        compared.append((one, other))
        return compare(one, other)

    issued = desk.credential().text
    monkeypatch.setattr(hmac, "compare_digest", noted)
    assert known(desk, f"Bearer dpa_{'a' * 26}_{'b' * 32}") is None
    assert known(desk, f"Bearer {issued[:-1]}{'a' if issued[-1] != 'a' else 'b'}") is None
    assert [(len(one), len(other)) for one, other in compared] == [(64, 64), (64, 64)]


def test_a_revoked_credential_is_nobody(desk: Desk) -> None:
    """Once revoked it is as unknown as any other; revoking it again says it had ended."""
    issued = desk.credential()
    with desk.acting() as act:
        assert credential.revoke(act, issued.id)
        assert not credential.revoke(act, issued.id)
    assert known(desk, f"Bearer {issued.text}") is None


def test_an_orchestrator_is_one_of_the_policy(desk: Desk) -> None:
    """A credential is made for an orchestrator the policy knows, and for nobody else."""
    for role, name, code in (
        (Role.ORCHESTRATOR, "nobody", Code.NOT_FOUND),
        (Role.ORCHESTRATOR, None, Code.INVALID_REQUEST),
        (Role.ADMIN, "acme-ci", Code.INVALID_REQUEST),
    ):
        with pytest.raises(Refusal) as refused, desk.acting() as act:
            credential.issue(act, role, name)
        assert (refused.value.problem.code, refused.value.problem.field) == (code, "orchestrator")
