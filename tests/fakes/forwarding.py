"""The whole request path inside one process, around one scripted upstream."""

import io
import json
import logging
from dataclasses import replace
from typing import Any, cast

from daypass_core.claims import Claims
from daypass_core.log import JsonFormatter
from daypass_core.revocation import RevocationSet
from daypass_core.secret import parse_reference
from daypass_proxy.exchange import Exchange
from daypass_proxy.forward import forward
from daypass_proxy.keyring import Keyring
from daypass_proxy.providers import Place
from daypass_proxy.settings import load
from daypass_proxy.streams import LiveCalls
from tests.canary import CANARY
from tests.fakes.call import MODEL
from tests.fakes.clock import FakeClock
from tests.fakes.exchange import FakeClient
from tests.fakes.keys import FakeVault
from tests.fakes.ledger import FakeLedger
from tests.fakes.proxy import Proxy as FakeProxy
from tests.fakes.transport import FakeAnswer, FakeTransport
from tests.servers.wire import message_stream
from tests.support import make_claims

KEY = f"sk-ant-{CANARY}-acme"
PROMPT = "the prompt that nobody may log"
TOKEN = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJzYngifQ.c2lnbmF0dXJl"
WHOLE = message_stream(MODEL)
SETTINGS = load(
    {
        "DAYPASS_ISSUER": "https://broker.test",
        "DAYPASS_DATABASE_URL": "sqlite:////tmp/unused.db",
        "DAYPASS_BROKER_URL": "http://127.0.0.1:8701",
        "DAYPASS_ANTHROPIC_URL": "https://api.example",
        "DAYPASS_ANTHROPIC_KEYS": "acme=file:///unused",
    }
)


def request_body(**fields: object) -> bytes:
    """A small request for a stream."""
    messages = [{"role": "user", "content": PROMPT}]
    whole = {"model": MODEL, "max_tokens": 100, "stream": True, "messages": messages, **fields}
    return json.dumps(whole).encode()


class Forwarding:
    """The services around one scripted upstream; `claims` is who calls."""

    def __init__(self, *script: FakeAnswer | Exception) -> None:
        self.claims: Claims | Exception = make_claims()
        self.asked = 0
        """How often somebody asked who calls."""
        self.clock = FakeClock()
        self.ledger = FakeLedger()
        self.live_calls = LiveCalls()
        self.transport = FakeTransport(*script)
        self.revoked = RevocationSet.from_rows(())
        self.client = self.new_client()
        self.lines = io.StringIO()
        ring = Keyring(
            {"anthropic": {"acme": parse_reference("vault://secret/llm/acme#api_key")}},
            env_secrets={},
            vault=FakeVault(acme=KEY),
            clock=self.clock,
        )
        self.services = replace(
            FakeProxy(clock=self.clock, ledger=self.ledger, settings=SETTINGS).services,
            authenticator=cast(Any, self),
            live_calls=self.live_calls,
            revocations=cast(Any, self),
            keyring=ring,
            transport=self.transport,
        )

    def new_client(self, body: bytes | None = None) -> FakeClient:
        """Let another client call; return it."""
        authorization = (b"authorization", f"Bearer {TOKEN}".encode())
        self.client = FakeClient(body or request_body(), headers=(authorization,))
        return self.client

    async def authenticate(self, exchange: Exchange) -> Claims:
        """Stand in for the authenticator."""
        self.asked += 1
        if isinstance(self.claims, Exception):
            raise self.claims
        return self.claims

    def check_fresh(self) -> None:
        """Stand in for the revocation view: always fresh."""

    def verdict(self, claims: Claims) -> Any:
        """Stand in for the revocation view: say what `revoked` says."""
        return self.revoked.verdict(claims)

    async def forward(self, endpoint: str = "messages") -> FakeClient:
        """Serve the client's request to its end."""
        handler = logging.StreamHandler(self.lines)
        handler.setFormatter(JsonFormatter("proxy"))
        root = logging.getLogger()
        root.addHandler(handler)
        try:
            await forward(self.client.exchange, Place("anthropic", endpoint), self.services)
        finally:
            root.removeHandler(handler)
        assert len(self.live_calls) == 0
        assert self.ledger.open_rows == 0
        return self.client

    @property
    def closing_line(self) -> dict[str, Any]:
        """The one closing line; no line holds a token, a key or the prompt."""
        text = self.lines.getvalue()
        for secret in (CANARY, PROMPT, TOKEN, TOKEN.rpartition(".")[2]):
            assert secret not in text
        lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
        (closing,) = [line for line in lines if line["event"] == "call_closed"]
        return closing
