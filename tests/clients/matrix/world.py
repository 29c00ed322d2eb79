"""What every cell of the matrix uses: a whole product in front of its provider, `world`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.canary import CANARY
from tests.clients.matrix.provider import Provider
from tests.servers.stack import Stack

DIRECT_KEY = "direct-key"
"""What a client is given as its key when it is run without us."""


def _profile(claude: str, gpt: str, anthropic: list[str], openai: list[str]) -> dict[str, Any]:
    of_openai = {"endpoints": [*openai, "models"], "models": [gpt]}
    rules = [
        {"provider": "anthropic", "endpoints": [*anthropic, "models"], "models": [claude]},
        {"provider": "openai", **of_openai},
    ]
    return {
        "authorization_details": [{"type": "llm_inference", **rule} for rule in rules],
        "budget_usd": "50.00",
        "lifetime_seconds": 14400,
        "token_ttl_seconds": 600,
        "launch": "reusable",
    }


_ANTHROPIC = ["messages", "count_tokens"]
_OPENAI = ["chat_completions", "responses"]
_PROFILES = {
    "matrix": _profile("claude-*", "gpt-*", _ANTHROPIC, _OPENAI),
    "other-models": _profile("claude-haiku-4-5", "gpt-4.1-nano", _ANTHROPIC, _OPENAI),
    "listing": _profile("claude-*", "gpt-*", [], []),
}
POLICY = json.dumps(
    {
        "profiles": _PROFILES,
        "tenants": {"acme": {"profiles": list(_PROFILES)}},
        "orchestrators": {"acme-ci": {"tenant": "acme"}},
    }
)


@dataclass(frozen=True)
class World:
    """The product and the provider behind it."""

    stack: Stack
    provider: Provider


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """Start both; their files lie below this folder."""
    keys = {name: f"sk-{CANARY}-{name}" for name in ("anthropic", "openai")}
    settings = {"MATRIX_ANTHROPIC": keys["anthropic"], "MATRIX_OPENAI": keys["openai"]}
    with (
        Provider([*keys.values(), DIRECT_KEY]) as provider,
        Stack(
            folder,
            provider.url,
            "acme=env://MATRIX_ANTHROPIC",
            policy=POLICY,
            openai_keys="acme=env://MATRIX_OPENAI",
            proxy_settings=settings,
        ) as stack,
    ):
        yield World(stack, provider)
