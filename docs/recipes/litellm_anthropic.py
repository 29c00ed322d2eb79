"""litellm on Anthropic's API: it takes a key with each call, so give it a fresh one each time."""

import litellm

import daypass

provider = daypass.TokenProvider()


def ask(prompt: str) -> str:
    """Ask with the token of the moment."""
    answer = litellm.completion(
        model="anthropic/claude-sonnet-4-6",
        messages=[{"role": "user", "content": prompt}],
        max_tokens=64,
        api_base=provider.base_url,
        api_key=provider.token(),
    )
    return str(answer.choices[0].message.content)


print(ask("Say hi."))
