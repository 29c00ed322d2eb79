"""An agent that takes turns, with the official Python client and nothing of ours: one call a line.

Each line of standard input is a prompt: it is asked, by turns plain and streamed, and what came of
it is printed as one JSON line. It ends with its input, or with the first call that fails, as an
agent does that does not catch the client's exceptions. Runs under any major of the client.
"""

import json
import sys
from typing import Any

import anthropic


def answered(client: anthropic.Anthropic, model: str, prompt: str, *, streamed: bool) -> str:
    """The text of one answer."""
    messages: Any = [{"role": "user", "content": prompt}]
    message: Any
    if streamed:
        with client.messages.stream(model=model, max_tokens=16, messages=messages) as stream:
            message = stream.get_final_message()
    else:
        message = client.messages.create(model=model, max_tokens=16, messages=messages)
    return str(message.content[0].text)


def main(model: str) -> int:
    """Answer every line; 1 when a call failed."""
    client = anthropic.Anthropic()
    for turn, line in enumerate(sys.stdin):
        try:
            text, ok = answered(client, model, line.strip(), streamed=turn % 2 == 1), True
        except anthropic.AnthropicError as error:
            text, ok = f"{type(error).__name__}: {error}", False
        print(json.dumps({"ok": ok, "text": text}), flush=True)
        if not ok:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
