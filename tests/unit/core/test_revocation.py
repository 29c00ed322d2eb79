"""The cut-off rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daypass_core.revocation import Revocation, RevocationSet, Verdict
from tests.support import NOW, SANDBOX, TENANT, make_claims

CLAIMS = make_claims(grants=("grt_root", "grt_leaf"), key_id="k1")


def verdict(*rows: tuple[str, str, int | None]) -> Verdict | None:
    """Return the verdict on CLAIMS, issued at NOW, under these rows."""
    return revocations(*rows).verdict(CLAIMS)


def revocations(*rows: tuple[str, str, int | None]) -> RevocationSet:
    """Build a set of (scope, ident, not_before) rows."""
    return RevocationSet.from_rows(
        Revocation(scope, ident, not_before, NOW + 3700) for scope, ident, not_before in rows
    )


def test_nothing_revoked() -> None:
    """Without rows every token is in force."""
    assert verdict() is None
    assert len(revocations()) == 0


@pytest.mark.parametrize(
    ("scope", "ident"),
    [
        ("global", ""),
        ("global", "whatever"),
        ("tenant", TENANT),
        ("sandbox", SANDBOX),
        ("grant", "grt_root"),
        ("grant", "grt_leaf"),
    ],
)
def test_cut_off_edges(scope: str, ident: str) -> None:
    """A cut-off ends what was issued at or before its second, and nothing issued later."""
    assert verdict((scope, ident, NOW - 1)) is None
    assert verdict((scope, ident, NOW)) is Verdict.REVOKED
    assert verdict((scope, ident, NOW + 1)) is Verdict.REVOKED
    assert verdict((scope, ident, None)) is Verdict.REVOKED


@pytest.mark.parametrize("scope", ["tenant", "sandbox", "grant", "kid", "jti"])
def test_others_are_untouched(scope: str) -> None:
    """Rows about somebody else end nothing of ours."""
    assert verdict((scope, "somebody-else", NOW + 100)) is None
    assert verdict((scope, "somebody-else", None)) is None


def test_names_do_not_cross_scopes() -> None:
    """A tenant's row does not hit a sandbox, grant or token of the same name."""
    assert verdict(("tenant", SANDBOX, None), ("sandbox", TENANT, None)) is None
    assert verdict(("jti", "k1", None), ("kid", CLAIMS.token_id, None)) is None


def test_key() -> None:
    """A revoked key ends its tokens absolutely, even with a cut-off in its row."""
    assert verdict(("kid", "k1", None)) is Verdict.REVOKED
    assert verdict(("kid", "k1", NOW - 100)) is Verdict.REVOKED


def test_one_token() -> None:
    """A lone token id ends that token only, and is answered like expiry."""
    assert verdict(("jti", CLAIMS.token_id, None)) is Verdict.TOKEN_ENDED
    assert verdict(("jti", CLAIMS.token_id, NOW - 100)) is Verdict.TOKEN_ENDED


def test_revoked_outweighs_ended() -> None:
    """A token ended by itself and by its tenant is revoked: no new one may be fetched."""
    assert verdict(("jti", CLAIMS.token_id, None), ("tenant", TENANT, NOW)) is Verdict.REVOKED


def test_cut_off_is_the_latest() -> None:
    """The cut-off of a sandbox is the latest over all its scopes."""
    rows = revocations(
        ("global", "", 10), ("tenant", TENANT, 30), ("tenant", TENANT, 20), ("grant", "g", 25)
    )
    assert rows.cut_off(TENANT, SANDBOX, ["g"]) == 30
    assert rows.cut_off("other", SANDBOX, ["g"]) == 25
    assert rows.cut_off("other", SANDBOX, []) == 10
    assert revocations().cut_off(TENANT, SANDBOX, []) is None


def test_absolute() -> None:
    """Ended subjects are found by scope and name, and a cut-off is not absolute."""
    rows = revocations(("sandbox", SANDBOX, None), ("tenant", TENANT, NOW))
    assert rows.absolute("sandbox", SANDBOX)
    assert not rows.absolute("tenant", TENANT)
    assert not rows.absolute("sandbox", "sbx_other")


def test_unknown_scope() -> None:
    """A row that is not understood fails the whole set, so that it is not silently unenforced."""
    with pytest.raises(ValueError, match="unknown revocation scope"):
        revocations(("galaxy", "", None))


row = st.tuples(
    st.sampled_from(["global", "tenant", "sandbox", "grant", "kid", "jti"]),
    st.sampled_from([TENANT, SANDBOX, "grt_root", "grt_leaf", "k1", CLAIMS.token_id, "other"]),
    st.one_of(st.none(), st.integers(NOW - 2, NOW + 2)),
)


@given(rows=st.lists(row, max_size=6), more=row)
def test_a_row_never_revives(
    rows: list[tuple[str, str, int | None]], more: tuple[str, str, int | None]
) -> None:
    """Adding a revocation never brings a token back, nor makes revoked into merely ended."""
    rank = {None: 0, Verdict.TOKEN_ENDED: 1, Verdict.REVOKED: 2}
    assert rank[verdict(*rows, more)] >= rank[verdict(*rows)]


@given(st.lists(row, max_size=6))
def test_order_does_not_matter(rows: list[tuple[str, str, int | None]]) -> None:
    """The verdict does not depend on the order of the rows."""
    assert verdict(*rows) == verdict(*reversed(rows))
