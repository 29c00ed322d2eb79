"""A LangChain agent with a tool: the model is the only thing that changes."""

from langchain.agents import create_agent

from daypass.langchain import ChatAnthropic


def weather(city: str) -> str:
    """Say how the weather is in a city."""
    return f"sunny in {city}"


agent = create_agent(ChatAnthropic(model="claude-sonnet-4-6", max_tokens=64), tools=[weather])
answer = agent.invoke({"messages": [{"role": "user", "content": "Say hi."}]})
print(answer["messages"][-1].text)
