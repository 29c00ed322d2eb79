"""The book under random batches: no limit is passed, and no nano-dollar lost, in any order."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_proxy.ledger import Hold, Limit, LimitState, Reserved
from tests.accounts import account
from tests.desk import DAY_MS, LEASE_MS, Desk, bill, wanted

CEILINGS = (
    "ceiling_nano",
    "token_ceiling",
    "day_ceiling_nano",
    "month_ceiling_nano",
    "tpm_limit",
    "rpm_limit",
    "concurrency_limit",
)
small = st.integers(0, 30)
# Few limits and wide ones, so that most calls are admitted until they are in each other's way.
limits = st.builds(
    lambda ceilings, zone, policy: {
        **dict.fromkeys(CEILINGS),
        **{name: of // 15 if name in CEILINGS[5:] else of for name, of in ceilings},
        "time_zone": zone,
        "policy": policy,
    },
    st.lists(st.tuples(st.sampled_from(CEILINGS), st.integers(60, 240)), max_size=2),
    st.sampled_from(["UTC", "Asia/Tokyo", "America/St_Johns"]),
    st.sampled_from([None, "cutoff", "clamp", "reject"]),
)
names = st.sampled_from(["a", "b"])
calls = st.integers(0, 7)
acts = st.one_of(
    st.tuples(st.just("reserve"), names, small, small, small, st.integers(0, 3)),
    st.tuples(st.just("extend"), calls, small, small),
    st.tuples(st.just("release"), calls, small, small),
    st.tuples(st.just("settle"), calls, st.integers(0, 60), st.integers(0, 60)),
    st.tuples(st.just("reap"), st.just(LEASE_MS)),
    st.tuples(st.just("limits"), st.sampled_from("abt"), limits),
    st.tuples(
        st.just("clock"),
        st.sampled_from([1, 999, 20_000, LEASE_MS, DAY_MS // 2, 40 * DAY_MS, -1_000, -2 * DAY_MS]),
    ),
    st.just(("next batch",)),
)


class Anyhow(Desk):
    """Does random acts in batches of random length, and looks at each answer that was a yes."""

    def __init__(self, limits: tuple[dict[str, Any], ...]) -> None:
        leaf, other, tenant = limits
        super().__init__(
            account("a", parent="t", **leaf),
            account("b", parent="t", **other),
            account("t", **tenant),
        )
        self.batch = self.book()
        self.leaves: list[str] = []

    def do(self, act: str, *arguments: Any) -> None:
        """Do one act in the batch that is open, or between two."""
        if act == "reserve":
            self.reserve(*arguments)
        elif act == "extend":
            number, nano, tokens = arguments
            if self.batch.extend(f"req_{number}", Hold(nano, tokens)):
                balance = self.batch.balance(self.leaves[number])
                assert balance is not None
                self.within(balance.limits, but=(Limit.RPM, Limit.CONCURRENCY))
        elif act == "release":
            number, nano, tokens = arguments
            self.batch.release(f"req_{number}", Hold(nano, tokens))
        elif act == "settle":
            number, cost, tokens = arguments
            self.batch.settle(bill(f"req_{number}", cost, tokens))
        else:
            self.between(act, *arguments)

    def between(self, act: str, *arguments: Any) -> None:
        """End the batch; do what is not the ledger's to do, or reap; begin another."""
        self.close(self.batch)
        if act == "clock":
            self.now += arguments[0]
        elif act == "limits":
            name, columns = arguments
            for column, value in columns.items():
                setattr(self.store.accounts_kept[name], column, value)
        self.batch = self.book()
        if act == "reap":
            self.now += arguments[0]
            self.batch = self.book()
            self.batch.reap(self.store.expired(self.now, 3))

    def reserve(self, name: str, nano: int, tokens: int, output: int, price: int) -> None:
        """Reserve; what is granted is what was asked for, and no limit is passed with it."""
        call = wanted(f"req_{len(self.leaves)}", nano, tokens, name, (output // 2, output, price))
        answer = self.batch.reserve(call)
        if isinstance(answer, Reserved):
            self.leaves.append(name)
            assert call.output_least <= answer.output_tokens <= call.output_most
            self.within(answer.limits)

    def within(self, limits: tuple[LimitState, ...], but: tuple[Limit, ...] = ()) -> None:
        """Fail if more is used and held of a limit than its ceiling."""
        for state in limits:
            assert state.limit in but or state.used + state.held <= state.ceiling, state


@settings(max_examples=200)
@given(st.tuples(limits, limits, limits), st.lists(acts, min_size=20, max_size=60))
def test_no_interleaving_passes_a_limit_or_loses_a_nano_dollar(
    limits: tuple[dict[str, Any], ...], acts: list[tuple[Any, ...]]
) -> None:
    """B06, B35: admission and extension stop at every ceiling, whatever came before and beside.

    Every account is the sum of its rows after each batch, and at rest nothing is held or open.
    """
    desk = Anyhow(limits)
    for act in acts:
        desk.do(*act)
    desk.between("clock", 50 * DAY_MS)
    desk.batch.reap(desk.store.expired(desk.now, 1_000))
    desk.close(desk.batch)
    for kept in desk.store.accounts_kept.values():
        assert (kept.reserved_nano, kept.tokens_reserved, kept.open_calls) == (0, 0, 0)
