"""A pydantic-ai agent on OpenAI's API: it takes a client that is made already."""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import daypass.openai

provider = OpenAIProvider(openai_client=daypass.openai.async_client())
print(Agent(OpenAIChatModel("gpt-4o", provider=provider)).run_sync("Say hi.").output)
