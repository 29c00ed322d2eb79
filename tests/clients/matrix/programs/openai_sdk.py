"""An agent of a few lines on OpenAI's SDK.

PROMPT plain|stream|tool chat|responses; prints the answer.
"""

import sys
from typing import Any

import openai  # type: ignore[import-not-found]  # in an environment of its own

MODEL = "gpt-4o"
FUNCTION: Any = {"name": "look", "parameters": {"type": "object", "properties": {}}}


def chat(client: Any, prompt: str, mode: str) -> str:
    """Ask through chat completions."""
    messages: Any = [{"role": "user", "content": prompt}]
    asked: Any = {"model": MODEL, "max_tokens": 64, "messages": messages}
    if mode == "stream":
        chunks = client.chat.completions.create(**asked, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    asked |= {"tools": [{"type": "function", "function": FUNCTION}]} if mode == "tool" else {}
    message = client.chat.completions.create(**asked).choices[0].message
    if message.tool_calls:
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "seen"}
        messages += [message, result]
        message = client.chat.completions.create(**asked).choices[0].message
    return str(message.content)


def responses(client: Any, prompt: str, mode: str) -> str:
    """Ask through responses."""
    items: Any = [{"role": "user", "content": prompt}]
    asked: Any = {"model": MODEL, "max_output_tokens": 64, "input": items}
    if mode == "stream":
        with client.responses.stream(**asked) as stream:
            for event in stream:
                if event.type == "error":
                    raise SystemExit(f"error event: {event.message}")
            return str(stream.get_final_response().output_text)
    asked |= {"tools": [{"type": "function", **FUNCTION}]} if mode == "tool" else {}
    answer = client.responses.create(**asked)
    if answer.output[0].type == "function_call":
        call = answer.output[0]
        items += [call, {"type": "function_call_output", "call_id": call.call_id, "output": "seen"}]
        answer = client.responses.create(**asked)
    return str(answer.output_text)


if __name__ == "__main__":
    prompt, mode, api = sys.argv[1:]
    print((chat if api == "chat" else responses)(openai.OpenAI(), prompt, mode))
