"""The token endpoint of a provider that takes identity tokens, in front of the stub's answers.

Speaks the official clients' format: it refuses whatever they would not send, and a bearer without
the flag that unlocks it. Each assertion may be used once, as the provider has it by default.
"""

import json
from typing import Any

from tests.canary import CANARY
from tests.servers.stub import Recorded, Script, Send
from tests.servers.wire import json_answer

PATH = "/v1/oauth/token"
RULE, ORGANIZATION = "fdrl_test", "0b8f2f1e-0000-4000-8000-000000000001"
BETAS = "oauth-2025-04-20,oidc-federation-2026-04-01"


class TokenEndpoint:
    """Knows identity tokens in `assertions`, and the bearers in `live`."""

    def __init__(self, *assertions: str, seconds: int = 600, reusable: bool = True) -> None:
        self.assertions = set(assertions)
        self.seconds = seconds
        self.reusable = reusable
        self.live: set[str] = set()
        self.exchanges: list[Recorded] = []
        self.next: list[tuple[int, object]] = []
        """Answers to give instead, in order."""

    def answer(self, recorded: Recorded) -> Script | None:
        """Answer an exchange; None for any other request."""
        if recorded.target != PATH:
            return None
        self.exchanges.append(recorded)
        status, document = self.next.pop(0) if self.next else self._exchanged(recorded)
        return [Send(json_answer(status, document))]

    def knows(self, recorded: Recorded) -> bool:
        """Say whether a call bears a bearer as the provider wants it, and no other credential."""
        bearers = [value.removeprefix("Bearer ") for value in recorded.header("authorization")]
        flags = [flag.strip() for value in recorded.header("anthropic-beta")
                 for flag in value.split(",")]  # fmt: skip
        return (
            len(bearers) == 1
            and bearers[0] in self.live
            and "oauth-2025-04-20" in flags
            and not recorded.header("x-api-key")
        )

    def _exchanged(self, recorded: Recorded) -> tuple[int, object]:
        body: dict[str, Any] = json.loads(recorded.body)
        asked = {name: body.get(name) for name in ("federation_rule_id", "organization_id")}
        if (
            recorded.method != "POST"
            or recorded.header("content-type") != ["application/json"]
            or recorded.header("anthropic-beta") != [BETAS]
            or recorded.header("authorization")
            or body.get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer"
            or asked != {"federation_rule_id": RULE, "organization_id": ORGANIZATION}
        ):
            return 400, {"error": "invalid_request", "error_description": f"{body}"}
        assertion = body["assertion"]
        if assertion not in self.assertions:
            return 401, {"error": "invalid_grant", "error_description": f"no {assertion}"}
        if not self.reusable:
            self.assertions.discard(assertion)
        token = f"sk-ant-oat01-{CANARY}-{len(self.exchanges)}"
        self.live.add(token)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": self.seconds}
