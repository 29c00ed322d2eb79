"""A token that says where it may be used from is of use nowhere else, known or not."""

import pytest

from daypass_core.problem import Code
from daypass_core.revocation import Verdict
from tests.fakes.authenticator import Rig
from tests.fakes.proxy import KEY
from tests.support import SANDBOX, access_token, make_claims

BOUND = access_token(KEY, make_claims(source=("10.1.0.0/16", "2001:db8:0:7::/64")))


@pytest.mark.parametrize("peer", ["10.1.2.3", "::ffff:10.1.2.3", "2001:db8:0:7:ffff::1"])
async def test_a_bound_token_works_where_it_belongs(peer: str) -> None:
    """Any address of its networks will do, also from a socket for both kinds of addresses."""
    rig = Rig()
    for _ in range(2):
        assert (await rig.claims(token=BOUND, peer=peer)).sandbox == SANDBOX
    assert not rig.counted
    assert rig.authenticator.checks == {"known": 1, "verified": 1, "refused": 0}


@pytest.mark.parametrize("peer", ["10.2.2.3", "2001:db8:0:8::1", "unix", "unknown"])
async def test_a_bound_token_is_refused_everywhere_else(peer: str) -> None:
    """A new token and one that is known from its own place: 401 that is not to be retried, counted
    each time. Who has no address is everywhere else.
    """
    rig = Rig()
    problem = await rig.refused(token=BOUND, peer=peer)
    assert (problem.code, problem.status, problem.should_retry) == (Code.FOREIGN_SOURCE, 401, False)
    await rig.claims(token=BOUND, peer="10.1.2.3")
    assert (await rig.refused(token=BOUND, peer=peer)).code is Code.FOREIGN_SOURCE
    assert rig.counted == {(SANDBOX, "foreign_source"): 2}
    await rig.claims(token=BOUND, peer="10.1.2.3")


async def test_a_token_without_a_source_works_everywhere() -> None:
    """Nothing is asked about the peer of a token that is not bound."""
    rig = Rig()
    token = access_token(KEY)
    for peer in ("10.1.2.3", "unix", "unknown"):
        await rig.claims(token=token, peer=peer)
    assert not rig.counted


async def test_a_revoked_token_is_no_incident() -> None:
    """What has ended tells nobody that it was copied: it is refused as ended, wherever it is."""
    rig = Rig()
    rig.view.says = Verdict.REVOKED
    assert (await rig.refused(token=BOUND, peer="10.2.2.3")).code is Code.TOKEN_REVOKED
    assert not rig.counted
