"""Chains: which limit is in the way, what that means for the call, and how much output fits."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daypass_proxy.ledger import Hold, Limit, LimitState, Policy, Reservation, Terms
from daypass_proxy.ledger.account import Account
from daypass_proxy.ledger.chain import Chain
from daypass_proxy.ledger.minute import MINUTE_MS, Minute
from tests.accounts import account

NOW = 1_800_000_000_000
DAY_END = NOW + 7_200_000
NOTHING = Hold()


def chain(*accounts: Account) -> Chain:
    """Return a chain of accounts, with the minutes of those that have a limit per minute."""
    rated = [one.rpm_limit is not None or one.tpm_limit is not None for one in accounts]
    minutes = [
        Minute(one.minute, NOW) if has else None for one, has in zip(accounts, rated, strict=True)
    ]
    return Chain(" ".join(one.id for one in accounts), list(zip(accounts, minutes, strict=True)))


def wanted(
    *, base: Hold = NOTHING, least: int = 0, most: int = 0, nano: int = 0,
    stream: bool = True, whole: bool = False,
) -> Reservation:  # fmt: skip
    """Return a call that wants so much."""
    words = ("a", "acme", "sbx_1", "grt_1", "tok_1", "anthropic", "messages", "m")
    return Reservation("req_1", 1, *words, stream, base, least, most, nano, whole)


LIMITS: list[tuple[Limit, str, dict[str, Any], tuple[int, int, int | None]]] = [
    (Limit.BUDGET, "ceiling_nano", {"spent_nano": 3, "reserved_nano": 4}, (3, 4, None)),
    (Limit.TOKENS, "token_ceiling", {"tokens_spent": 3, "tokens_reserved": 4}, (3, 4, None)),
    (
        Limit.DAY,
        "day_ceiling_nano",
        {"day_spent_nano": 3, "reserved_nano": 4, "day_until": DAY_END},
        (3, 4, DAY_END),
    ),
    (
        Limit.MONTH,
        "month_ceiling_nano",
        {"month_spent_nano": 3, "reserved_nano": 4, "month_until": DAY_END},
        (3, 4, DAY_END),
    ),
    (Limit.RPM, "rpm_limit", {"minute": f"[[{NOW - 9},7,0]]"}, (7, 0, NOW - 9 + MINUTE_MS)),
    (
        Limit.TPM,
        "tpm_limit",
        {"minute": f"[[{NOW - 9},1,3]]", "tokens_reserved": 4},
        (3, 4, NOW - 9 + MINUTE_MS),
    ),
    (Limit.CONCURRENCY, "concurrency_limit", {"open_calls": 7}, (0, 7, None)),
]


@pytest.mark.parametrize(("limit", "column", "counters", "state"), LIMITS)
def test_each_limit_has_a_counter_of_its_own(
    limit: Limit, column: str, counters: dict[str, Any], state: tuple[int, int, int | None]
) -> None:
    """B60: seven are used or held of each limit: an eighth fits under 8 and not under 7."""
    used, held, resets_at = state
    for ceiling, fits in ((8, True), (7, False)):
        one = chain(account(**{**counters, column: ceiling}))
        expected = LimitState(limit, "a", ceiling, used, held, resets_at)
        assert list(one.states()) == [expected]
        assert one.fits(1, 1, 1) == fits
        assert expected.left == ceiling - 7
    assert one.refusal(1, 1, NOW).state == expected
    assert one.refusal(1, 1, NOW).wanted == 1


@pytest.mark.parametrize(("limit", "column", "counters", "state"), LIMITS)
def test_an_extension_is_no_new_call(
    limit: Limit, column: str, counters: dict[str, Any], state: tuple[int, int, int | None]
) -> None:
    """What is added to a call counts towards every limit but those of calls."""
    one = chain(account(**{**counters, column: 7}))
    assert one.fits(1, 1, 0) == (limit in (Limit.RPM, Limit.CONCURRENCY))


@pytest.mark.parametrize(
    ("columns", "reason", "limit", "retry_ms"),
    [
        # Held by others: it comes back when they settle. Spent: it does not.
        ({"ceiling_nano": 10, "reserved_nano": 9}, "held", Limit.BUDGET, None),
        ({"ceiling_nano": 10, "spent_nano": 9}, "exhausted", Limit.BUDGET, None),
        ({"ceiling_nano": 1}, "exhausted", Limit.BUDGET, None),
        ({"token_ceiling": 10, "tokens_spent": 9}, "exhausted", Limit.TOKENS, None),
        ({"token_ceiling": 10, "tokens_reserved": 9}, "held", Limit.TOKENS, None),
        # Of a day, until its end; but a call larger than a day's ceiling fits on no day.
        (
            {"day_ceiling_nano": 10, "day_spent_nano": 9, "day_until": DAY_END},
            "exhausted",
            Limit.DAY,
            7_200_000,
        ),
        ({"day_ceiling_nano": 1, "day_until": DAY_END}, "exhausted", Limit.DAY, None),
        ({"day_ceiling_nano": 10, "reserved_nano": 9}, "held", Limit.DAY, None),
        # Of a minute, as soon as enough of it is over; never, when the limit itself is less.
        ({"rpm_limit": 1, "minute": f"[[{NOW - 1_000},1,0]]"}, "rate", Limit.RPM, 59_000),
        ({"rpm_limit": 0}, "exhausted", Limit.RPM, None),
        ({"tpm_limit": 9, "minute": f"[[{NOW - 1_000},1,8]]"}, "rate", Limit.TPM, 59_000),
        ({"tpm_limit": 9, "tokens_reserved": 8}, "rate", Limit.TPM, None),
        ({"tpm_limit": 1}, "exhausted", Limit.TPM, None),
        ({"concurrency_limit": 1, "open_calls": 1}, "held", Limit.CONCURRENCY, None),
        ({"concurrency_limit": 0}, "exhausted", Limit.CONCURRENCY, None),
        # Of several, the one that is in the way for longest.
        (
            {"ceiling_nano": 10, "reserved_nano": 9, "rpm_limit": 1, "minute": f"[[{NOW},1,0]]"},
            "rate",
            Limit.RPM,
            60_000,
        ),
        (
            {
                "ceiling_nano": 1,
                "day_ceiling_nano": 10,
                "day_spent_nano": 10,
                "day_until": DAY_END,
                "rpm_limit": 1,
                "minute": f"[[{NOW},1,0]]",
            },
            "exhausted",
            Limit.BUDGET,
            None,
        ),
    ],
)
def test_a_refusal_says_what_waiting_would_help(
    columns: dict[str, Any], reason: str, limit: Limit, retry_ms: int | None
) -> None:
    """A call of 2 nano-dollars and 2 tokens is told why not, and when it may fit."""
    refused = chain(account(**columns)).refusal(2, 2, NOW)
    assert refused.state is not None
    assert (refused.reason, refused.state.limit, refused.retry_ms) == (reason, limit, retry_ms)
    assert refused.wanted == (1 if limit in (Limit.RPM, Limit.CONCURRENCY) else 2)


def test_the_parents_limits_count_too() -> None:
    """The leaf has room and its tenant has not: the call is refused by the tenant's limit."""
    one = chain(account(ceiling_nano=100), account("t", ceiling_nano=10, spent_nano=9))
    assert not one.fits(2, 0, 1)
    refused = one.refusal(2, 0, NOW)
    assert refused.state == LimitState(Limit.BUDGET, "t", 10, 9, 0)
    assert [state.account for state in one.states()] == ["a", "t"]


def test_terms_come_from_the_leaf_then_its_parents_then_the_default() -> None:
    """Each of the three is looked for on its own."""
    assert chain(account(), account("t")).terms == Terms()
    leaf = account(drain_tokens=0)
    parent = account("t", policy="reject", drain_ms=7, drain_tokens=9)
    assert chain(leaf, parent).terms == Terms(Policy.REJECT, 7, 0)


@pytest.mark.parametrize(
    ("policy", "stream", "output"),
    [
        ("reject", True, 90),
        ("reject", False, 90),
        ("cutoff", True, 10),
        ("cutoff", False, 45),
        ("clamp", True, 45),
        ("clamp", False, 45),
    ],
)
def test_the_policy_says_how_much_output_is_held(policy: str, stream: bool, output: int) -> None:
    """All of it, the least, or as much as fits; 45 tokens of 2 nano fit beside a base of 9."""
    one = chain(account(policy=policy, ceiling_nano=100, token_ceiling=1_000))
    call = wanted(base=Hold(9, 1), least=10, most=90, nano=2, stream=stream)
    assert one.output_tokens(call) == output
    # What may think unseen is held as an answer in one piece is, though it streams.
    unseen = wanted(base=Hold(9, 1), least=10, most=90, nano=2, stream=stream, whole=True)
    assert one.output_tokens(unseen) == (90 if policy == "reject" else 45)
    assert unseen.stream is stream


def test_what_fits_is_bounded_by_every_limit() -> None:
    """The tightest of money and tokens, of all accounts; at least what the call needs anyway."""
    leaf = account(policy="clamp", tpm_limit=50, tokens_reserved=10)
    parent = account("t", day_ceiling_nano=1_000, reserved_nano=100, day_until=DAY_END)
    call = wanted(base=Hold(9, 5), least=10, most=90, nano=2)
    assert chain(leaf, parent).output_tokens(call) == 35
    parent.day_spent_nano = 851
    assert chain(leaf, parent).output_tokens(call) == 20
    parent.day_spent_nano = 1_000
    assert chain(leaf, parent).output_tokens(call) == 10
    free = wanted(base=Hold(9, 5), least=10, most=90)
    assert chain(account(policy="clamp", ceiling_nano=10)).output_tokens(free) == 90


amounts = st.integers(0, 12)
ceilings = st.none() | st.integers(0, 20)


@given(
    st.fixed_dictionaries(
        {
            "policy": st.sampled_from(["cutoff", "clamp", "reject"]),
            "ceiling_nano": ceilings,
            "token_ceiling": ceilings,
            "day_ceiling_nano": ceilings,
            "month_ceiling_nano": ceilings,
            "rpm_limit": ceilings,
            "tpm_limit": ceilings,
            "concurrency_limit": ceilings,
            "spent_nano": amounts,
            "reserved_nano": amounts,
            "lent_nano": st.integers(6, 12),
            "lent_used_nano": st.integers(0, 6),
            "tokens_spent": amounts,
            "tokens_reserved": amounts,
            "day_spent_nano": amounts,
            "month_spent_nano": amounts,
            "open_calls": amounts,
        }
    ),
    st.lists(st.tuples(amounts, amounts), max_size=3),
    st.builds(Hold, amounts, amounts),
    amounts,
    amounts,
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
)
def test_the_quick_answer_is_the_thorough_one(
    columns: dict[str, Any],
    slices: list[tuple[int, int]],
    base: Hold,
    least: int,
    more: int,
    nano: int,
    stream: bool,
    whole: bool,
) -> None:
    """A call fits exactly when no state is passed; what is clamped fits, and one more would not."""
    text = str([[NOW - 9_000 + 2_000 * n, *counts] for n, counts in enumerate(slices)])
    one = chain(account(**columns, minute=text.replace("(", "[").replace(")", "]")))
    call = wanted(base=base, least=least, most=least + more, nano=nano, stream=stream, whole=whole)

    def passed(hold: Hold) -> bool:
        units = {
            Limit.TOKENS: hold.tokens,
            Limit.TPM: hold.tokens,
            Limit.RPM: 1,
            Limit.CONCURRENCY: 1,
        }
        return any(
            state.used + state.held + units.get(state.limit, hold.nano) > state.ceiling
            for state in one.states()
        )

    output = one.output_tokens(call)
    assert least <= output <= least + more
    hold = call.hold(output)
    assert one.fits(hold.nano, hold.tokens, 1) != passed(hold)
    if passed(hold):
        refused = one.refusal(hold.nano, hold.tokens, NOW)
        assert refused.state in list(one.states())
        assert refused.reason in ("exhausted", "held", "rate")
        assert columns["policy"] == "reject" or passed(call.hold(least))
    elif output < least + more and (columns["policy"] == "clamp" or not call.grows):
        assert passed(call.hold(output + 1))
