"""A token service that is away for 80 seconds, met by a process that holds a token of 600."""

import pytest

from tests.unit.sdk.test_token import FakeTime, provider
from tests.unit.sdk.token_server import TokenServer

OUTAGE = 80.0


@pytest.mark.parametrize("dice", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("begins", range(0, 600, 40))
def test_an_outage_of_80_seconds_costs_no_call(
    server: TokenServer, dice: float, begins: int
) -> None:
    """Whenever it begins and whenever renewal is due, each call of 20 minutes has a good token."""
    fake = FakeTime()
    fake.dice = dice
    tokens = provider(server, fake)
    tokens.token()
    start, ends = fake.now, {"token-1": fake.now + 600}
    while fake.now < start + 1200:
        away = begins <= fake.now - start < begins + OUTAGE
        server.faults = [(503, {"error": "temporarily_unavailable"}, {})] * 9 if away else []
        token = tokens.token()
        ends.setdefault(token, fake.now + 600)
        assert fake.now < ends[token]
        fake.now += 3
    assert len(ends) >= 3
