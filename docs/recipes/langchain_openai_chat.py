"""LangChain's ChatOpenAI in a sandbox: it asks a function for its key before each call."""

from langchain_openai import ChatOpenAI

import daypass.openai

provider = daypass.TokenProvider()
url = daypass.openai.base_url(provider)
model = ChatOpenAI(model="gpt-4o", base_url=url, api_key=provider.token)
print(model.invoke("Say hi.").text)
