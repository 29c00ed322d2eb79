"""Limits as documents have them: read strictly, written again, compared."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daypass_broker import limits, schema
from daypass_broker.fields import FieldError, Fields
from daypass_broker.limits import KEYS, Limits
from daypass_proxy import ledger
from tests.unit.broker.desk import check_request

WHOLE: dict[str, Any] = {
    "budget_usd": "5.00",
    "budget_per_day_usd": "2.50",
    "budget_per_month_usd": "20.00",
    "token_budget": 1_000_000,
    "requests_per_minute": 30,
    "tokens_per_minute": 40_000,
    "concurrency": 4,
    "over_budget": "clamp",
    "drain_seconds": "2.5",
    "drain_tokens": 300,
}
HUGE = 16**5_000
"""More digits than Python writes; YAML reads such a number in base 16."""


def read(document: object) -> Limits:
    """Read limits and nothing else."""
    fields = Fields(document)
    found = limits.read(fields)
    fields.done()
    return found


def test_every_limit_is_read() -> None:
    """Each key of a document is the column of its account, in its unit."""
    assert read(WHOLE) == Limits(
        ceiling_nano=5 * 10**9,
        day_ceiling_nano=2_500_000_000,
        month_ceiling_nano=20 * 10**9,
        token_ceiling=1_000_000,
        rpm_limit=30,
        tpm_limit=40_000,
        concurrency_limit=4,
        policy="clamp",
        drain_ms=2500,
        drain_tokens=300,
    )
    assert check_request("SandboxRequest", WHOLE)
    assert read({}) == limits.UNLIMITED


def test_every_limit_is_a_column_of_accounts() -> None:
    """No limit is without a column, none of the broker's columns without a limit."""
    columns = {key.column for key in KEYS}
    assert columns == set(limits.UNLIMITED.columns())
    assert columns == {"ceiling_nano", "policy", *schema.ACCOUNT_LIMITS}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("budget_usd", 1.5),
        ("budget_per_day_usd", "-1"),
        ("budget_per_day_usd", "1e3"),
        ("budget_per_month_usd", "1.0000000001"),
        ("budget_per_month_usd", True),
        ("token_budget", -1),
        ("token_budget", 10**15 + 1),
        ("token_budget", "1000"),
        ("requests_per_minute", 1.5),
        ("tokens_per_minute", None),
        ("concurrency", -1),
        ("over_budget", "warn"),
        ("over_budget", 1),
        ("drain_seconds", "60.001"),
        ("drain_seconds", 61),
        ("drain_seconds", -1),
        ("drain_seconds", "1.2345"),
        ("drain_seconds", True),
        ("drain_seconds", "soon"),
        ("drain_seconds", float("inf")),
        pytest.param("drain_seconds", HUGE, id="drain_seconds-huge"),
        pytest.param("drain_seconds", [HUGE], id="drain_seconds-huge-list"),
        pytest.param("concurrency", HUGE, id="concurrency-huge"),
        pytest.param("budget_usd", HUGE, id="budget_usd-huge"),
        ("drain_tokens", -1),
    ],
)
def test_a_wrong_limit_is_named(field: str, value: object) -> None:
    """A negative number, a float of money, another kind or an unknown word is refused by name."""
    with pytest.raises(FieldError) as error:
        read({field: value})
    assert error.value.field == field


amounts = st.none() | st.integers(0, 10**15)
everything = st.builds(
    Limits,
    **dict.fromkeys(limits.UNLIMITED.columns(), amounts)
    | {
        "policy": st.sampled_from([None, *limits.OVER_BUDGET]),
        "drain_ms": st.none() | st.integers(0, limits.MAX_DRAIN_MS),
    },
)


@given(everything)
def test_what_is_written_is_read_again(given: Limits) -> None:
    """`from_document` undoes `document`, for every value a column can have."""
    assert limits.from_document(given.document()) == given


def test_seconds_are_written_as_short_as_they_are() -> None:
    """Whole seconds are a number, parts of one a decimal text."""
    shown = [Limits(drain_ms=ms).document()["drain_seconds"] for ms in (0, 2000, 2500, 1, 60_000)]
    assert shown == [0, 2, "2.5", "0.001", 60]


@given(everything, everything)
def test_nothing_beyond_means_at_most_in_every_column(most: Limits, wanted: Limits) -> None:
    """`beyond` names exactly the limits that are more than allowed; nothing is below no limit."""
    ways = list(limits.OVER_BUDGET)

    def rank(value: Any) -> int:
        return ways.index(value) if isinstance(value, str) else value

    more = {
        key.name
        for key in KEYS
        if (a := getattr(wanted, key.column)) is not None
        and (b := getattr(most, key.column)) is not None
        and rank(a) > rank(b)
    }
    assert {name for name, _ in limits.beyond(most, wanted)} == more


def test_a_way_is_bounded_by_the_more_careful_ones() -> None:
    """Where calls are rejected, nobody may ask for clamping; the words say what is left."""
    for way, allowed in (("reject", 1), ("clamp", 2), ("cutoff", 3)):
        most = Limits(policy=way)
        free = [w for w in limits.OVER_BUDGET if not list(limits.beyond(most, Limits(policy=w)))]
        assert free == list(limits.OVER_BUDGET[:allowed])
    ((name, reason),) = limits.beyond(Limits(policy="clamp"), Limits(policy="cutoff"))
    assert (name, reason) == ("over_budget", "must be reject or clamp")


def test_what_is_usual_is_what_the_proxy_does() -> None:
    """The terms in force where nobody set any are those of the ledger."""
    usual, terms = limits.USUAL, ledger.Terms()
    assert (usual.policy, usual.drain_ms, usual.drain_tokens) == (
        terms.policy,
        terms.drain_ms,
        terms.drain_tokens,
    )
    assert {way.value for way in ledger.Policy} == set(limits.OVER_BUDGET)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires"])
def test_a_time_zone_is_taken_by_its_iana_name(zone: str) -> None:
    """Cities and UTC are known."""
    assert limits.time_zone(Fields({"z": zone}), "z") == zone


@pytest.mark.parametrize(
    "zone",
    [
        "CET/Berlin",
        "europe/berlin",
        "+01:00",
        "localtime",
        "../etc/passwd",
        "Factory",
        "posixrules",
    ],
)
def test_what_is_no_time_zone_is_refused(zone: str) -> None:
    """A wrong name, a path, or a zone that is the machine's own."""
    with pytest.raises(FieldError, match="is no IANA time zone"):
        limits.time_zone(Fields({"z": zone}), "z")


def test_changes_may_take_a_limit_away() -> None:
    """null is no limit, but never no budget; what is left out does not change."""
    changes = limits.read_changes(Fields({"concurrency": None, "budget_per_day_usd": "1"}))
    assert changes == {"concurrency_limit": None, "day_ceiling_nano": 10**9}
    with pytest.raises(FieldError, match="budget_usd: must not be null"):
        limits.read_changes(Fields({"budget_usd": None}))
