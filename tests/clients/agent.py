"""An agent as people write it: the official client, four environment variables, nothing of ours.

Runs under any major of the client. Calls until `SECONDS` have passed, by turns plain and streamed,
and prints one JSON line a call.
"""

import json
import sys
import time
from typing import Any

import anthropic


def main(seconds: float, pause: float, model: str) -> None:
    """Call and report until the time is over."""
    client = anthropic.Anthropic()
    messages: Any = [{"role": "user", "content": "Say hi."}]
    end = time.monotonic() + seconds
    turn = 0
    answer: Any
    while turn < 2 or time.monotonic() < end:
        try:
            if turn % 2:
                with client.messages.stream(
                    model=model, max_tokens=16, messages=messages
                ) as stream:
                    answer = stream.get_final_message()
            else:
                answer = client.messages.create(model=model, max_tokens=16, messages=messages)
            report: dict[str, Any] = {
                "ok": True,
                "stop_reason": answer.stop_reason,
                "output_tokens": answer.usage.output_tokens,
            }
        except anthropic.AnthropicError as error:
            report = {
                "ok": False,
                "kind": type(error).__name__,
                "status": getattr(error, "status_code", None),
                "text": str(error)[:300],
            }
        print(json.dumps(report | {"version": anthropic.__version__}), flush=True)
        if not report["ok"]:
            return
        turn += 1
        time.sleep(pause)


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
