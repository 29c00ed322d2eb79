"""litellm on OpenAI's API: it takes a client that is made already."""

import litellm

import daypass.openai

client = daypass.openai.client()
answer = litellm.completion(
    model="openai/gpt-4o",
    messages=[{"role": "user", "content": "Say hi."}],
    client=client,
    api_base=str(client.base_url),
)
print(answer.choices[0].message.content)
