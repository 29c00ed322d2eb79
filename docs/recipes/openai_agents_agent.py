"""An agent of openai-agents: one client for all, and no traces to a host of its maker."""

from agents import Agent, Runner, set_default_openai_client, set_tracing_disabled

import daypass.openai

set_tracing_disabled(True)
set_default_openai_client(daypass.openai.async_client(), use_for_tracing=False)
agent = Agent(name="greeter", instructions="Be brief.", model="gpt-4o")
print(Runner.run_sync(agent, "Say hi.").final_output)
