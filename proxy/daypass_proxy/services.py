"""The one record of everything a request needs, built in `app` and passed down; nothing global."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from daypass_core.clock import Clock
from daypass_core.problem import Problem
from daypass_core.vault import Vault
from daypass_proxy.authenticate import Authenticator
from daypass_proxy.body.room import BodyRoom
from daypass_proxy.broker_link import Broker
from daypass_proxy.gate import Gate
from daypass_proxy.jwks_cache import JwksCache
from daypass_proxy.keyring import Keyring
from daypass_proxy.ledger import Ledger
from daypass_proxy.metrics import Metrics
from daypass_proxy.price import PriceTable
from daypass_proxy.providers import Provider
from daypass_proxy.revocations import RevocationView
from daypass_proxy.settings import Settings
from daypass_proxy.streams import LiveCalls
from daypass_proxy.token_gate import TokenGate
from daypass_proxy.transport import Transport


@dataclass(frozen=True, slots=True)
class Services:
    """`sleep` takes seconds; `new_id` takes a prefix ("req") and returns "req_…".

    `providers` are by name, those of the settings included.
    """

    settings: Settings
    clock: Clock
    new_id: Callable[[str], str]
    sleep: Callable[[float], Awaitable[None]]
    providers: Mapping[str, Provider]
    authenticator: Authenticator
    jwks: JwksCache
    broker: Broker
    token_gate: TokenGate
    prices: PriceTable
    ledger: Ledger
    live_calls: LiveCalls
    revocations: RevocationView
    keyring: Keyring
    transport: Transport
    vault: Vault | None = None
    gate: Gate = field(default_factory=Gate)
    body_room: BodyRoom = field(default_factory=BodyRoom)
    metrics: Metrics = field(default_factory=Metrics)

    def count_refusal(self, sandbox: str, problem: Problem) -> None:
        """Count an incident of the sandbox, unless the refusal is an outage of our own."""
        if problem.status < 500:
            self.ledger.count(sandbox, f"call_refused:{problem.code}")
