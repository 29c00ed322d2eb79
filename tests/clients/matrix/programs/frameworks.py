"""An agent of a few lines on each Python framework.

URL-OF-ANTHROPIC URL-OF-OPENAI TOKEN PROMPT plain|stream|tool NAME; prints the answer.
"""

# mypy: disable-error-code="import-not-found"
# The frameworks are in an environment of their own.

import asyncio
import sys
from collections.abc import Callable
from typing import Any

CLAUDE = "claude-sonnet-4-6"
GPT = "gpt-4o"
ANTHROPIC_URL, OPENAI_URL, TOKEN = sys.argv[1:4]


def look() -> str:
    """Look around."""
    return "seen"


def langchain_anthropic(prompt: str, mode: str) -> str:
    """LangChain on Anthropic's API."""
    from langchain_anthropic import ChatAnthropic

    return _langchain(
        ChatAnthropic(model=CLAUDE, base_url=ANTHROPIC_URL, api_key=TOKEN, max_tokens=64),
        prompt,
        mode,
    )


def langchain_openai(prompt: str, mode: str) -> str:
    """LangChain on OpenAI's API."""
    from langchain_openai import ChatOpenAI

    return _langchain(ChatOpenAI(model=GPT, base_url=OPENAI_URL, api_key=TOKEN), prompt, mode)


def _langchain(model: Any, prompt: str, mode: str) -> str:
    if mode == "stream":
        return "".join(str(chunk.text) for chunk in model.stream(prompt))
    if mode == "plain":
        return str(model.invoke(prompt).text)
    from langchain_core.messages import HumanMessage, ToolMessage

    bound = model.bind_tools([look])
    turns: list[Any] = [HumanMessage(prompt)]
    turns.append(bound.invoke(turns))
    turns += [ToolMessage(look(), tool_call_id=call["id"]) for call in turns[1].tool_calls]
    return str(bound.invoke(turns).text)


def pydantic_anthropic(prompt: str, mode: str) -> str:
    """pydantic-ai on Anthropic's API."""
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(api_key=TOKEN, base_url=ANTHROPIC_URL)
    return _pydantic(AnthropicModel(CLAUDE, provider=provider), prompt, mode)


def pydantic_openai(prompt: str, mode: str) -> str:
    """pydantic-ai on OpenAI's API."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(api_key=TOKEN, base_url=OPENAI_URL)
    return _pydantic(OpenAIChatModel(GPT, provider=provider), prompt, mode)


def _pydantic(model: Any, prompt: str, mode: str) -> str:
    from pydantic_ai import Agent

    agent = Agent(model)
    if mode == "tool":
        agent.tool_plain(look)
    if mode != "stream":
        return str(agent.run_sync(prompt).output)

    async def streamed() -> str:
        async with agent.run_stream(prompt) as answer:
            return str(await answer.get_output())

    return asyncio.run(streamed())


def openai_agents(prompt: str, mode: str) -> str:
    """OpenAI's agents, which speak its Responses API."""
    from agents import (
        Agent,
        Runner,
        function_tool,
        set_default_openai_client,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=OPENAI_URL, api_key=TOKEN)
    set_default_openai_client(client, use_for_tracing=False)
    tools: Any = [function_tool(look)] if mode == "tool" else []
    agent = Agent(name="matrix", instructions="Answer.", model=GPT, tools=tools)
    if mode != "stream":
        return str(Runner.run_sync(agent, prompt).final_output)

    async def streamed() -> str:
        result = Runner.run_streamed(agent, prompt)
        async for _ in result.stream_events():
            pass
        return str(result.final_output)

    return asyncio.run(streamed())


def litellm_anthropic(prompt: str, mode: str) -> str:
    """LiteLLM, the library, on Anthropic's API."""
    return _litellm(f"anthropic/{CLAUDE}", ANTHROPIC_URL, prompt, mode)


def litellm_openai(prompt: str, mode: str) -> str:
    """LiteLLM, the library, on OpenAI's API."""
    return _litellm(f"openai/{GPT}", OPENAI_URL, prompt, mode)


def _litellm(model: str, url: str, prompt: str, mode: str) -> str:
    import litellm

    messages: Any = [{"role": "user", "content": prompt}]
    asked: Any = {"model": model, "api_base": url, "api_key": TOKEN, "messages": messages}
    if mode == "stream":
        chunks: Any = litellm.completion(**asked, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    if mode == "tool":
        schema = {"type": "object", "properties": {}}
        asked["tools"] = [{"type": "function", "function": {"name": "look", "parameters": schema}}]
    message: Any = litellm.completion(**asked).choices[0].message
    if message.tool_calls:
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": look()}
        messages += [message, result]
        message = litellm.completion(**asked).choices[0].message
    return str(message.content)


def claude_agent(prompt: str, mode: str) -> str:
    """Anthropic's agent SDK, which starts a Claude Code of its own."""
    from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ResultMessage, query

    variables = {
        "ANTHROPIC_BASE_URL": ANTHROPIC_URL,
        "ANTHROPIC_AUTH_TOKEN": TOKEN,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    options = ClaudeAgentOptions(model=CLAUDE, env=variables, allowed_tools=["Bash(echo:*)"])

    async def asked() -> str:
        said = ""
        async for message in query(prompt=prompt, options=options):
            if isinstance(message, AssistantMessage):
                said = "".join(getattr(block, "text", "") for block in message.content) or said
            if isinstance(message, ResultMessage) and message.is_error:
                raise SystemExit(said or str(message.result))
        return said

    return asyncio.run(asked())


NAMES: dict[str, Callable[[str, str], str]] = {
    "langchain-anthropic": langchain_anthropic,
    "langchain-openai": langchain_openai,
    "pydantic-ai, anthropic": pydantic_anthropic,
    "pydantic-ai, openai": pydantic_openai,
    "openai-agents": openai_agents,
    "litellm, anthropic": litellm_anthropic,
    "litellm, openai": litellm_openai,
    "claude-agent-sdk": claude_agent,
}


if __name__ == "__main__":
    prompt, mode, name = sys.argv[4:]
    print(NAMES[name](prompt, mode))
