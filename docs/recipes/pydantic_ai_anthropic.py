"""A pydantic-ai agent on Anthropic's API: it takes a client that is made already."""

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

import daypass.anthropic

client = daypass.anthropic.async_client()
model = AnthropicModel("claude-sonnet-4-6", provider=AnthropicProvider(anthropic_client=client))
print(Agent(model).run_sync("Say hi.").output)
