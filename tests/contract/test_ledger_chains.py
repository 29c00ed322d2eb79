"""Chains in a real store: a call is held under every limit above it, or refused."""

from daypass_proxy.ledger import LedgerRefused, Reserved
from daypass_proxy.ledger.store import CHAIN_LENGTH
from tests.contract.ledgers import Backend, reservation
from tests.fakes.clock import FakeClock

UNKNOWN = LedgerRefused("unknown_account")


async def test_a_call_whose_parent_is_missing_is_refused(store: Backend) -> None:
    """A tenant's limits that cannot be found are not taken for none; once there, they hold."""
    store.account("leaf", None, parent="tenant:new")
    async with store.ledger(FakeClock()) as ledger:
        assert await ledger.reserve(reservation("req_1", 10, account="leaf")) == UNKNOWN
        assert await ledger.balance("leaf") is None
        store.account("tenant:new", 15)
        assert isinstance(await ledger.reserve(reservation("req_1", 10, account="leaf")), Reserved)
        answer = await ledger.reserve(reservation("req_2", 10, account="leaf"))
        assert isinstance(answer, LedgerRefused)
        assert answer.state is not None
        assert answer.state.account == "tenant:new"


async def test_a_chain_that_goes_round_or_on_is_refused(store: Backend) -> None:
    """Parents in a ring, and more of them than a chain has, are an end of no call's chain."""
    store.account("ring1", None, parent="ring2")
    store.account("ring2", None, parent="ring1")
    for number in range(CHAIN_LENGTH):
        store.account(f"long{number}", None, parent=f"long{number + 1}")
    store.account(f"long{CHAIN_LENGTH}", None)
    async with store.ledger(FakeClock()) as ledger:
        for account in ("ring1", "ring2", "long0"):
            assert await ledger.reserve(reservation("req_1", 1, account=account)) == UNKNOWN
        answer = await ledger.reserve(reservation("req_1", 1, account="long1"))
        assert isinstance(answer, Reserved)
    assert store.column("reserved_nano", f"long{CHAIN_LENGTH}") == 1
