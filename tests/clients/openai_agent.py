"""An agent as people write it with OpenAI's client: its own variables, nothing of ours.

Each word on the command line is one use of the API; prints one JSON line a use, and ends with the
first that fails.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import openai  # type: ignore[import-not-found]  # in an environment of its own

MESSAGES: Any = [{"role": "user", "content": "Say hi."}]
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def chat(client: openai.OpenAI, model: str) -> Any:
    """A chat completion."""
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=16)
    return answer.choices[0].message.content, answer.usage and answer.usage.completion_tokens


def tools(client: openai.OpenAI, model: str) -> Any:
    """The second turn of a conversation with a tool."""
    call: Any = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "seen"},
    ]
    answer = client.chat.completions.create(
        model=model, messages=turns, tools=[TOOL], max_tokens=16
    )
    return answer.choices[0].message.content, None


def chat_stream(client: openai.OpenAI, model: str) -> Any:
    """A chat completion that streams, as most clients ask for it: without its usage."""
    words = []
    stream = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=16, stream=True
    )
    for chunk in stream:
        assert chunk.usage is None
        assert len(chunk.choices) == 1, chunk
        words.append(chunk.choices[0].delta.content or "")
    return "".join(words), None


def chat_usage(client: openai.OpenAI, model: str) -> Any:
    """A chat completion that streams with its usage."""
    words, used = [], None
    stream = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        used = chunk.usage or used
        words += [choice.delta.content or "" for choice in chunk.choices]
    return "".join(words), used and used.completion_tokens


def response(client: openai.OpenAI, model: str) -> Any:
    """A response."""
    answer = client.responses.create(model=model, input="Say hi.", max_output_tokens=16)
    return answer.output_text, answer.usage and answer.usage.output_tokens


def response_stream(client: openai.OpenAI, model: str) -> Any:
    """A response that streams."""
    with client.responses.stream(model=model, input="Say hi.", max_output_tokens=16) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_response()
    return answer.output_text, answer.usage and answer.usage.output_tokens


def response_events(client: openai.OpenAI, model: str) -> Any:
    """A response that streams, read event by event: what small servers send is enough for it."""
    words, used = [], None
    events: Any = client.responses.create(
        model=model, input="Say hi.", max_output_tokens=16, stream=True
    )
    for event in events:
        if event.type == "response.output_text.delta":
            words.append(event.delta)
        elif event.type == "response.completed":
            used = event.response.usage.output_tokens
    return "".join(words), used


def embeddings(client: openai.OpenAI, model: str) -> Any:
    """Embeddings, which the client asks for as base64 unless told otherwise."""
    answer = client.embeddings.create(
        model="text-embedding-3-small", input=["a", "b"], encoding_format="float"
    )
    return len(answer.data), answer.usage.prompt_tokens


def models(client: openai.OpenAI, model: str) -> Any:
    """The list of models, and one of them."""
    listed = [each.id for each in client.models.list()]
    return listed.index(client.models.retrieve(model).id), None


USES: dict[str, Callable[[openai.OpenAI, str], Any]] = {
    each.__name__: each
    for each in (
        *(chat, tools, chat_stream, chat_usage, response, response_stream),
        *(response_events, embeddings, models),
    )
}


def main(model: str, uses: list[str]) -> None:
    """Use the API and report."""
    client = openai.OpenAI()
    for use in uses:
        began = time.monotonic()
        report: dict[str, Any] = {"use": use}
        try:
            said, used = USES[use](client, model)
            report |= {"ok": True, "said": said, "used": used}
        except openai.OpenAIError as error:
            report |= {
                "ok": False,
                "kind": type(error).__name__,
                "status": getattr(error, "status_code", None),
                "code": getattr(error, "code", None),
                "text": str(error)[:400],
            }
        report["seconds"] = time.monotonic() - began
        print(json.dumps(report), flush=True)
        if not report["ok"]:
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
