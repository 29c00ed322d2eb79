"""Bearers in the keyring: exchanged once for all, renewed ahead, ended on time, searched for."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from daypass_core.secret import Federation, Secret, parse_reference
from daypass_proxy import keyring
from daypass_proxy.federation import Bearer
from daypass_proxy.key_forms import Unusable
from daypass_proxy.keyring import Keyring, KeyUnavailable
from daypass_proxy.keyring_held import SEARCHED_SECONDS
from daypass_proxy.providers.anthropic import Anthropic
from tests.fakes.clock import FakeClock
from tests.support import aeventually

PROVIDER = Anthropic()
TENANT = ("acme", PROVIDER)


class FakeExchanger:
    """Gives bearers that count up, or fails; `gate` holds it back."""

    def __init__(self, life: float) -> None:
        self.life = life
        self.asked: list[tuple[Federation, str]] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def exchange(self, who: Federation, assertion: str) -> Bearer:
        """Exchange, as `federation.Exchanger` does."""
        self.asked.append((who, assertion))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return Bearer(Secret(bearer(len(self.asked))), self.life)


def bearer(number: int) -> str:
    """The bearer of one exchange; no part of it is one of another's."""
    return f"sk-ant-oat01-{hashlib.sha256(str(number).encode()).hexdigest()}"


class Bearers:
    """A keyring of one identity, whose time passes when a test says so."""

    def __init__(self, file: Path, life: float = 600.0) -> None:
        self.clock, self.exchanger = FakeClock(), FakeExchanger(life)
        self.sleepers: list[tuple[float, asyncio.Event]] = []
        reference = f"federation://{file}?rule=fdrl_1&organization=org-1"
        self.ring = Keyring(
            {"anthropic": {"acme": parse_reference(reference)}},
            env_secrets={},
            vault=None,
            clock=self.clock,
            sleep=self._sleep,
            jitter=lambda: 0.0,
            exchanger=self.exchanger,
        )

    async def _sleep(self, seconds: float) -> None:
        event = asyncio.Event()
        self.sleepers.append((self.clock.monotonic() + seconds, event))
        await event.wait()

    async def let_pass(self, seconds: float) -> None:
        """Let time pass, and wake whoever has slept long enough, until all sleep again."""
        end = self.clock.monotonic() + seconds
        while due := sorted((at for at, _ in self.sleepers if at <= end)):
            self.clock.mono = max(self.clock.mono, due[0])
            woken = [one for one in self.sleepers if one[0] <= self.clock.mono]
            self.sleepers = [one for one in self.sleepers if one[0] > self.clock.mono]
            for _, event in woken:
                event.set()
            await aeventually(lambda: len(self.sleepers) >= 2)
        self.clock.mono = end

    async def bearer(self) -> str:
        """What a call goes up with."""
        name, value = await self.ring.header_for(*TENANT)
        assert name == b"authorization"
        return value.decode()


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., object]:
    """Start a keyring with an identity in a file, and close it."""
    file = tmp_path / "identity.jwt"
    file.write_text("a.b.c\n")

    @asynccontextmanager
    async def made(life: float = 600.0, error: Exception | None = None) -> AsyncIterator[Bearers]:
        bearers = Bearers(file, life)
        bearers.exchanger.error = error
        await bearers.ring.start()
        await aeventually(lambda: len(bearers.sleepers) >= 2)
        try:
            yield bearers
        finally:
            await bearers.ring.close()

    return made


Opened = Callable[..., AbstractAsyncContextManager[Bearers]]


async def test_one_exchange_for_all(opened: Opened) -> None:
    """One exchange at the start serves all calls, with the rule and the file of the settings."""
    async with opened() as it:
        found = await asyncio.gather(*(it.bearer() for _ in range(20)))
        assert set(found) == {f"Bearer {bearer(1)}"}
        assert it.exchanger.asked == [(Federation("fdrl_1", "org-1"), "a.b.c")]


@pytest.mark.parametrize(("life", "due"), [(3600, 3480), (600, 480), (60, 30), (20, 10)])
async def test_renewed_ahead(opened: Opened, life: float, due: float, tmp_path: Path) -> None:
    """B23: two minutes ahead of its end, or at half its life, it is renewed, the file read anew."""
    async with opened(life) as it:
        await it.let_pass(due - 2)
        assert len(it.exchanger.asked) == 1
        (tmp_path / "identity.jwt").write_text("d.e.f\n")
        await it.let_pass(3)
        assert [assertion for _, assertion in it.exchanger.asked] == ["a.b.c", "d.e.f"]
        assert await it.bearer() == f"Bearer {bearer(2)}"


async def test_an_endpoint_that_is_away_at_renewal(opened: Opened) -> None:
    """The bearer serves until just before its end, not a second longer, and then it heals."""
    async with opened() as it:
        it.exchanger.error = Unusable("away")
        await it.let_pass(594)
        assert await it.bearer() == f"Bearer {bearer(1)}"
        assert it.ring.states == {"fresh": 0, "stale": 1, "lost": 0}
        asked = len(it.exchanger.asked)
        assert 5 < asked < 30, "tried again with pauses"
        await it.let_pass(2)
        with pytest.raises(KeyUnavailable):
            await it.bearer()
        assert it.ring.lacking is not None
        it.exchanger.error = None
        await it.let_pass(15)
        assert await it.bearer() == f"Bearer {bearer(len(it.exchanger.asked))}"
        assert it.ring.lacking is None


async def test_a_start_without_the_endpoint(opened: Opened) -> None:
    """B12: without a bearer nothing goes up; it is fetched as soon as there is one."""
    async with opened(error=Unusable("away")) as it:
        assert it.ring.lacking is not None
        with pytest.raises(KeyUnavailable):
            await it.bearer()
        it.exchanger.error = None
        await it.let_pass(15)
        assert it.ring.lacking is None
        assert await it.bearer()


async def test_a_start_with_an_endpoint_that_hangs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """B12: it does not hold the start; its bearer is there when it comes."""
    monkeypatch.setattr(keyring, "START_SECONDS", 0.05)
    file = tmp_path / "identity.jwt"
    file.write_text("a.b.c\n")
    it = Bearers(file)
    it.exchanger.gate.clear()
    async with asyncio.timeout(5):
        await it.ring.start()
    assert it.ring.lacking is not None
    assert list(it.ring.findings.values()) == ["was not read in time"]
    it.exchanger.gate.set()
    assert await it.bearer() == f"Bearer {bearer(1)}"
    assert list(it.ring.findings.values()) == [None]
    await it.ring.close()


async def test_refused_upstream(opened: Opened) -> None:
    """B24: 50 calls refused at once cost one exchange, and its bearer is not exchanged early."""
    async with opened() as it:
        await it.let_pass(100)
        refused = await it.ring.header_for(*TENANT)
        answers = await asyncio.gather(*(it.ring.refresh(*TENANT, refused) for _ in range(50)))
        assert all(answers)
        assert len(it.exchanger.asked) == 2
        await it.let_pass(400)
        assert len(it.exchanger.asked) == 2
        await it.let_pass(100)
        assert len(it.exchanger.asked) == 3


async def test_every_bearer_of_late_is_searched_for(opened: Opened) -> None:
    """Row 15: an answer may hold a bearer that was replaced several times since."""
    async with opened(60.0) as it:
        for number in range(1, 7):
            assert await it.bearer() == f"Bearer {bearer(number)}"
            await it.let_pass(31)
        for number in range(1, 8):
            said = f"error with {bearer(number)}".encode()
            assert it.ring.leaks("acme", "anthropic", said), number
        assert not it.ring.leaks("acme", "anthropic", bearer(99).encode())
        await it.let_pass(SEARCHED_SECONDS + 60)
        assert not it.ring.leaks("acme", "anthropic", bearer(1).encode())


async def test_no_age(opened: Opened) -> None:
    """A bearer has an end and no age: it is in no metric that calls are refused by."""
    async with opened() as it:
        assert it.ring.age is None
        assert it.ring.states["fresh"] == 1
