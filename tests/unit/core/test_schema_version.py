"""Which schema a release may run on."""

import pytest

from daypass_core.schema_version import is_newer, objection


@pytest.mark.parametrize(
    ("revision", "readable_from"),
    [("0005", None), ("0005", "0005"), ("0006", "0005"), ("0006", "0004"), ("0012", "0005")],
)
def test_its_own_and_a_newer_one_that_suits(revision: str, readable_from: str | None) -> None:
    """A release made for 0005 runs on 0005, and on a newer schema that is readable from there."""
    assert objection(revision, readable_from, "0005") is None


@pytest.mark.parametrize(
    ("revision", "readable_from", "said"),
    [
        (None, None, "the database has no schema yet, this release needs 0005: run"),
        ("0004", None, "at schema 0004, this release needs 0005: run `python -m"),
        ("0007", "0006", "at schema 0007, which needs a release made for schema 0006 or newer;"),
        ("0007", None, "which needs a release made for schema 0007 or newer;"),
        ("0010", "0010", "this one was made for 0005: upgrade it"),
    ],
)
def test_any_other_is_refused_with_what_to_do(
    revision: str | None, readable_from: str | None, said: str
) -> None:
    """An older schema is to be migrated, a newer one that shuts the release out wants a newer one;
    without the marker a newer one is refused."""
    assert said in (objection(revision, readable_from, "0005") or "")


def test_only_a_newer_schema_is_asked_for_its_marker() -> None:
    """Before 0005 there is none to be read."""
    assert [is_newer(one, "0005") for one in (None, "0004", "0005", "0006")] == [
        False, False, False, True
    ]  # fmt: skip
