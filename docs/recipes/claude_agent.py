"""The Claude Agent SDK: Claude Code inside it reads the four variables by itself."""

import asyncio

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

# Without this variable it also asks hosts of its maker, which a sandbox should not reach.
QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


async def main() -> None:
    """Ask once and print the result."""
    options = ClaudeAgentOptions(model="claude-sonnet-4-6", max_turns=2, env=QUIET)
    async for message in query(prompt="Say hi.", options=options):
        if isinstance(message, ResultMessage):
            print(message.result)


asyncio.run(main())
