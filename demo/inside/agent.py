"""The agent: an ordinary program with the official client, without a key and without our code.

It knows nothing but four environment variables, which `anthropic.Anthropic()` reads by itself. A
line of JSON on standard input is a question; lines of JSON on standard output are the answer as it
streams in. Times are those of the machine's monotonic clock, in seconds.
"""

from __future__ import annotations

import json
import sys
import time

import anthropic


def say(**fields: object) -> None:
    """Write one line for whoever watches."""
    print(json.dumps(fields), flush=True)


def answer(client: anthropic.Anthropic, question: dict[str, object]) -> None:
    """Ask the LLM and pass its answer on, piece by piece."""
    with client.messages.stream(
        model=str(question["model"]),
        max_tokens=int(str(question["max_tokens"])),
        messages=[{"role": "user", "content": str(question["text"])}],
    ) as stream:
        for text in stream.text_stream:
            say(text=text)
        message = stream.get_final_message()
    say(done=message.stop_reason, usage=message.usage.to_dict())


def answer_or_tell(client: anthropic.Anthropic, line: str) -> None:
    """Answer the question in `line`; whatever goes wrong is told, too."""
    try:
        answer(client, json.loads(line))
    except Exception as error:
        say(
            error=type(error).__name__,
            at=time.monotonic(),
            status=getattr(error, "status_code", None),
            message=str(error),
            body=getattr(error, "body", None),
        )


def main() -> None:
    """Answer questions until there are no more."""
    client = anthropic.Anthropic()
    say(ready=anthropic.__version__)
    for line in sys.stdin:
        answer_or_tell(client, line)


if __name__ == "__main__":
    main()
