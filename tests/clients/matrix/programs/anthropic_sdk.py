"""An agent of a few lines on Anthropic's SDK, any major.

PROMPT plain|stream|tool; prints the answer.
"""

import sys
from typing import Any

import anthropic

MODEL = "claude-sonnet-4-6"
TOOL: Any = {"name": "look", "input_schema": {"type": "object", "properties": {}}}


def main(prompt: str, mode: str) -> None:
    """Ask, run what tools are asked for, print the last answer."""
    client = anthropic.Anthropic()
    messages: Any = [{"role": "user", "content": prompt}]
    asked: Any = {"model": MODEL, "max_tokens": 64, "messages": messages}
    if mode == "stream":
        with client.messages.stream(**asked) as stream:
            answer = stream.get_final_message()
    else:
        asked |= {"tools": [TOOL]} if mode == "tool" else {}
        answer = client.messages.create(**asked)
        if answer.stop_reason == "tool_use":
            (use,) = answer.content
            result = {"type": "tool_result", "tool_use_id": use.id, "content": "seen"}
            messages += [
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": [result]},
            ]
            answer = client.messages.create(**asked)
    print("".join(block.text for block in answer.content if block.type == "text"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
