"""Who is calling: the two checks that only a token of the same look can tell apart."""

import pytest

from tests.fakes.authenticator import Rig
from tests.fakes.proxy import KEY
from tests.support import access_token, make_claims

TOKEN = access_token(KEY)


@pytest.fixture
def rig() -> Rig:
    """A fresh authenticator."""
    return Rig()


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer ", "Basic dTpw", TOKEN])
async def test_a_good_token_does_not_stand_in(rig: Rig, value: str) -> None:
    """B01, row 23: behind an unusable Authorization even a good token elsewhere is not tried."""
    problem = await rig.refused((b"authorization", value), (b"x-api-key", TOKEN))
    assert problem.status == 401


async def test_only_the_whole_token_is_known(rig: Rig) -> None:
    """Row 22: a token whose last characters differ from those of a known one is not that one."""
    other = access_token(KEY, make_claims(token_id="tok_two"))
    await rig.claims(token=TOKEN)
    for borrowed in (1, 8, 86):
        mixed = TOKEN[:-borrowed] + other[-borrowed:]
        if mixed != TOKEN:
            assert (await rig.refused(token=mixed)).status == 401
    assert (await rig.claims(token=other)).token_id == "tok_two"
