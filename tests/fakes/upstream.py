"""One call on its way to a scripted upstream, with a real keyring over a fake Vault."""

import json
from dataclasses import replace

import pytest

from daypass_core.problem import Problem, Refusal
from daypass_proxy.attempt import Attempt, Reply
from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.key_references import parse_keys
from daypass_proxy.keyring import Keyring
from daypass_proxy.settings import load
from daypass_proxy.upstream import send
from tests.canary import CANARY
from tests.fakes.call import make_attempt
from tests.fakes.keys import FakeVault
from tests.fakes.ledger import FakeLedger
from tests.fakes.proxy import ENVIRONMENT, Proxy
from tests.fakes.transport import JSON, FakeAnswer, FakeTransport

ORIGIN = "https://api.example/prefix"
KEY = f"sk-ant-{CANARY}-one"
NEWER = f"sk-ant-{CANARY}-two"


class Upstream:
    """One call on its way to a scripted upstream."""

    def __init__(
        self, *script: FakeAnswer | Exception, keys: str = "acme=vault://secret/llm/acme#api_key"
    ) -> None:
        """`keys` as in the settings; the vault has one at "acme" only."""
        self.vault = FakeVault(acme=KEY)
        self.transport = FakeTransport(*script)
        settings = replace(load(ENVIRONMENT), anthropic_url=ORIGIN)
        self.ledger = FakeLedger()
        self.proxy = Proxy(settings=settings, ledger=self.ledger)
        self.clock = self.proxy.clock
        ring = Keyring(
            {"anthropic": parse_keys(keys)}, env_secrets={}, vault=self.vault, clock=self.clock
        )
        self.services = replace(self.proxy.services, keyring=ring, transport=self.transport)
        self.attempt: Attempt = make_attempt(self.ledger)

    async def send(self) -> Reply:
        """Send the call."""
        return await send(self.attempt, self.services)

    async def rotate(self, **secrets: str) -> None:
        """Change the keys in Vault while the first request is under way, then answer it."""
        self.transport.gate.clear()
        await self.transport.arrived.wait()
        self.vault.secrets = secrets
        self.transport.gate.set()

    async def refused(self) -> Problem:
        """Send the call and return the problem that it is refused with."""
        with pytest.raises(Refusal) as caught:
            await self.send()
        assert CANARY not in str(caught.value)
        return caught.value.problem


def error(
    status: int, kind: str, message: str, headers: HeaderPairs = JSON, **more: object
) -> FakeAnswer:
    """An error answer in the provider's shape."""
    body = {"type": "error", "error": {"type": kind, "message": message, **more}}
    return FakeAnswer([json.dumps(body).encode()], status=status, headers=headers)
