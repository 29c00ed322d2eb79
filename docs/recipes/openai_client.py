"""OpenAI's own client, one call and one stream."""

from daypass.openai import client

openai = client()
print(openai.responses.create(model="gpt-4o", input="Say hi.").output_text)
with openai.chat.completions.create(
    model="gpt-4o", messages=[{"role": "user", "content": "Say hi."}], stream=True
) as stream:
    print("".join(chunk.choices[0].delta.content or "" for chunk in stream))
