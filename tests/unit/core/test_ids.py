"""Identifiers."""

import re

from daypass_core.ids import new_id


def test_form() -> None:
    """An id is its prefix and 26 lower-case base32 characters."""
    assert re.fullmatch(r"sbx_[a-z2-7]{26}", new_id("sbx"))


def test_different_each_time() -> None:
    """A thousand ids are a thousand different ids."""
    assert len({new_id("tok") for _ in range(1000)}) == 1000
