"""A proxy's services in memory, with every store and server replaced by a fake."""

from dataclasses import dataclass, field
from typing import Any, cast

from daypass_core.claims import Claims
from daypass_core.ids import new_id
from daypass_core.problem import Code, refuse
from daypass_core.revocation import Verdict
from daypass_proxy.authenticate import Authenticator
from daypass_proxy.broker_link import BrokerAnswer, BrokerUnreachable
from daypass_proxy.jwks_cache import JwksCache
from daypass_proxy.price import PriceTable
from daypass_proxy.providers.anthropic import Anthropic
from daypass_proxy.providers.openai import OpenAI
from daypass_proxy.services import Services
from daypass_proxy.settings import Settings, load
from daypass_proxy.streams import LiveCalls
from daypass_proxy.token_gate import TokenGate
from tests.fakes.broker import FakeBroker, jwks, ok
from tests.fakes.clock import FakeClock
from tests.fakes.ledger import FakeLedger
from tests.support import AUDIENCE, ISSUER, signing_key

KEY = signing_key("proxy")
ENVIRONMENT = {
    "DAYPASS_ISSUER": ISSUER,
    "DAYPASS_AUDIENCE": AUDIENCE,
    "DAYPASS_DATABASE_URL": "sqlite:////nowhere/daypass.db",
    "DAYPASS_BROKER_URL": "unix:/nowhere/broker.sock",
    "DAYPASS_ANTHROPIC_KEYS": "acme=env://KEY",
    "KEY": "sk-ant-canary",
}


@dataclass
class FakeView:
    """A revocation view that a test can make stale or speak."""

    says: Verdict | None = None
    stale: bool = False

    def check_fresh(self) -> None:
        """Raise when stale."""
        if self.stale:
            raise refuse(Code.VIEW_STALE)

    def verdict(self, claims: Claims) -> Verdict | None:
        """Return what the test wants."""
        return self.says


@dataclass
class FakeKeyring:
    """A keyring, as far as readiness looks at it."""

    lacking: str | None = None


@dataclass
class Proxy:
    """The fakes and the `Services` made of them. `slept` are the pauses that were taken."""

    clock: FakeClock = field(default_factory=FakeClock)
    ledger: FakeLedger = field(default_factory=FakeLedger)
    view: FakeView = field(default_factory=FakeView)
    broker: FakeBroker = field(default_factory=lambda: FakeBroker([ok()]))
    settings: Settings = field(default_factory=lambda: load(ENVIRONMENT))
    slept: list[float] = field(default_factory=list)
    jwks_down: bool = False
    keyring: FakeKeyring = field(default_factory=FakeKeyring)

    def __post_init__(self) -> None:
        keys = JwksCache(self._jwks, self.clock)
        unused = cast(Any, None)
        self.services = Services(
            settings=self.settings,
            clock=self.clock,
            new_id=new_id,
            sleep=self._sleep,
            providers={"anthropic": Anthropic(), "openai": OpenAI()},
            authenticator=Authenticator(
                keys=keys,
                view=cast(Any, self.view),
                count=self.ledger.count,
                issuer=ISSUER,
                audience=AUDIENCE,
                clock=self.clock,
            ),
            jwks=keys,
            broker=self.broker,
            token_gate=TokenGate(),
            prices=PriceTable.load(),
            ledger=self.ledger,
            live_calls=LiveCalls(),
            revocations=cast(Any, self.view),
            keyring=cast(Any, self.keyring),
            transport=unused,
        )

    def broker_answers(self, *answers: BrokerAnswer | BrokerUnreachable) -> None:
        """Set what the broker says, one by one."""
        self.broker.answers = list(answers)

    async def _jwks(self) -> bytes:
        if self.jwks_down:
            raise BrokerUnreachable("down", sent=False)
        return jwks(KEY)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.advance(seconds)
