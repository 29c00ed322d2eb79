"""The amounts of the ledger's values: what no row can hold never becomes one."""

from typing import Any

import pytest

from daypass_proxy.ledger import MAX_NANO, MAX_TOKENS, Hold, Outcome, Reservation, Settlement, Usage

NO_NANO = [-1, MAX_NANO + 1, 1.0, True, None]
NO_TOKENS = [-1, MAX_TOKENS + 1, 1.0, True, None]


def reservation(base: Hold, least: Any, most: Any, nano: Any) -> Reservation:
    """The reservation of a call, with amounts of which some are wrong."""
    return Reservation(
        "req_1", 1, "sandbox:s", "acme", "s", "g", "t", "anthropic", "messages", "m", False,
        base, output_least=least, output_most=most, output_nano=nano,
    )  # fmt: skip


@pytest.mark.parametrize("nano", NO_NANO)
def test_a_hold_of_no_amount(nano: Any) -> None:
    """Nano-dollars are whole, not negative and inside a row, as in a settlement's cost."""
    with pytest.raises(ValueError, match="nano must be an integer"):
        Hold(nano, 0)
    with pytest.raises(ValueError, match="cost_nano must be an integer"):
        Settlement("req_1", Outcome.COMPLETE, Usage(), nano, False, 200, None)


@pytest.mark.parametrize("tokens", NO_TOKENS)
def test_a_hold_of_no_tokens(tokens: Any) -> None:
    """So are tokens."""
    with pytest.raises(ValueError, match="tokens must be an integer"):
        Hold(0, tokens)


def test_the_largest_amounts_are_held() -> None:
    """The bounds themselves are inside."""
    assert Hold(MAX_NANO, MAX_TOKENS).nano == MAX_NANO
    assert reservation(Hold(MAX_NANO - 6, 0), 1, 2, 3).hold(2) == Hold(MAX_NANO, 2)


@pytest.mark.parametrize(
    ("base", "least", "most", "nano", "words"),
    [
        (Hold(), 2, 1, 1, "output_least must be"),
        (Hold(), -1, 1, 1, "output_least must be"),
        (Hold(MAX_NANO - 5, 0), 1, 2, 3, "nano must be"),
        (Hold(), 1, 2, -1, "nano must be"),
        (Hold(), 1, 2, 0.5, "nano must be"),
        (Hold(0, MAX_TOKENS - 1), 1, 2, 0, "tokens must be"),
        (Hold(), 1, 2.0, 0, "must be an integer"),
    ],
)
def test_a_reservation_whose_largest_hold_is_none(
    base: Hold, least: Any, most: Any, nano: Any, words: str
) -> None:
    """What the call could come to hold is checked before anything is held."""
    with pytest.raises(ValueError, match=words):
        reservation(base, least, most, nano)
