"""A broker in memory: answers in order, or fails; keeps what it was asked."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from daypass_proxy.broker_link import BrokerAnswer, BrokerUnreachable
from tests.support import SigningKey


@dataclass
class FakeBroker:
    """`answers` are used up one by one, the last one stays; an exception is raised."""

    answers: list[BrokerAnswer | BrokerUnreachable]
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.may_answer.set()

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, limit: int
    ) -> BrokerAnswer:
        """Give the next answer."""
        self.requests.append((method, path, dict(headers), body))
        await self.may_answer.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BrokerUnreachable):
            raise answer
        return answer


def ok(body: bytes = b"{}", status: int = 200, **headers: str) -> BrokerAnswer:
    """Return an answer; header names are written with underscores."""
    return BrokerAnswer(status, {k.replace("_", "-"): v for k, v in headers.items()}, body)


def jwks(*keys: SigningKey) -> bytes:
    """Return the key set of these keys as the broker publishes it."""
    return json.dumps({"keys": [key.jwk for key in keys]}).encode()
