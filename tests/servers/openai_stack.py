"""A whole daypass in front of Anthropic, OpenAI and a server of one's own, all of them the stub."""

import json
from pathlib import Path

from tests.canary import CANARY
from tests.servers.stack import Stack

POLICY = """
profiles:
  mixed:
    authorization_details:
      - type: llm_inference
        provider: openai
        endpoints: [chat_completions, responses, embeddings, models]
        models: [gpt-4o, "gpt-4.1*", text-embedding-3-small]
      - type: llm_inference
        provider: anthropic
        endpoints: [messages, models]
        models: ["claude-*"]
      - type: llm_inference
        provider: local
        endpoints: [chat_completions, models]
        models: ["meta/own"]
    budget_usd: "5.00"
    max_budget_usd: "1000.00"
    lifetime_seconds: 14400
    max_lifetime_seconds: 86400
    token_ttl_seconds: 600
    launch: reusable
tenants:
  acme: {profiles: [mixed]}
orchestrators:
  acme-ci: {tenant: acme}
"""
KEY = f"sk-{CANARY}-openai"
LOCAL_KEY = f"{CANARY}-local-key"
UPSTREAM_KEYS = (KEY, LOCAL_KEY, f"sk-ant-{CANARY}-acme")
LISTED = {
    "model": "meta/own",
    "context_window": 8192,
    "input": "1",
    "output": "2",
    "thinks_unasked": False,
}


def openai_stack(folder: Path, upstream_url: str, keys: str) -> Stack:
    """Return the stack, to be entered; `keys` are those of Anthropic."""
    own = {"url": f"{upstream_url}/engine/v1/", "keys": "acme=env://LOCAL_KEY", "prices": [LISTED]}
    path = folder / "upstreams.json"
    path.write_text(json.dumps({"local": own}))
    return Stack(
        folder,
        upstream_url,
        keys,
        policy=POLICY,
        openai_keys="acme=env://OPENAI_KEY",
        proxy_settings={
            "OPENAI_KEY": KEY,
            "LOCAL_KEY": LOCAL_KEY,
            "DAYPASS_UPSTREAMS": str(path),
        },
    )
