"""LangChain's ChatAnthropic in a sandbox: our class, with everything else LangChain's."""

from daypass.langchain import ChatAnthropic

model = ChatAnthropic(model="claude-sonnet-4-6", max_tokens=64)
print(model.invoke("Say hi.").text)
