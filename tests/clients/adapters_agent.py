"""Our adapters in the hands of an agent: reads one use a line, prints one JSON line for each.

All uses share one model or client, as they do in an agent, so what a token's end does is seen.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from langchain_anthropic import (  # type: ignore[import-not-found]  # in an environment of its own
    ChatAnthropic as Stock,
)

import daypass.openai
from daypass.langchain import ChatAnthropic

MODEL = "claude-sonnet-4-6"
CHAT: Any = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Say hi."}]}
LOOP = asyncio.new_event_loop()


@cache
def chat() -> Any:
    """Our chat model."""
    return ChatAnthropic(model=MODEL, max_tokens=64)


@cache
def client() -> Any:
    """OpenAI's client on a day pass."""
    return daypass.openai.client()


@cache
def async_client() -> Any:
    """Its asynchronous one."""
    return daypass.openai.async_client()


def look(what: str) -> str:
    """Look at something."""
    return f"{what} seen"


def stock() -> str:
    """LangChain's own class with the four variables."""
    return str(Stock(model=MODEL, max_tokens=64).invoke("Say hi.").text)


def invoke() -> str:
    """A call."""
    return str(chat().invoke("Say hi.").text)


def ainvoke() -> str:
    """An asynchronous call."""
    return str(LOOP.run_until_complete(chat().ainvoke("Say hi.")).text)


def stream() -> str:
    """A call that streams."""
    return "".join(chunk.text for chunk in chat().stream("Say hi."))


def tools() -> str:
    """A call with a tool, through what `bind_tools` makes of the model."""
    return json.dumps(chat().bind_tools([look]).invoke("Look at it.").tool_calls)


def completion() -> str:
    """A chat completion."""
    return str(client().chat.completions.create(**CHAT).choices[0].message.content)


def completion_async() -> str:
    """An asynchronous one."""
    answer = LOOP.run_until_complete(async_client().chat.completions.create(**CHAT))
    return str(answer.choices[0].message.content)


def completion_stream() -> str:
    """One that streams."""
    chunks = client().chat.completions.create(**CHAT, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


USES: dict[str, Callable[[], str]] = {
    each.__name__: each
    for each in (
        *(stock, invoke, ainvoke, stream, tools),
        *(completion, completion_async, completion_stream),
    )
}


def main() -> None:
    """Serve until there is no more input."""
    for line in sys.stdin:
        try:
            report = {"ok": True, "text": USES[line.strip()]()}
        except Exception as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            report = {"ok": False, "text": str(error), "kinds": kinds}
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
