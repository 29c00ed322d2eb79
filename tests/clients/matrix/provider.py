"""The provider behind the matrix: the stub, told by each request's own words how to answer it.

Place in the flow: many cells share one stub. A cell's prompt carries its mark (`cell-17-`), and
`Provider.faults` says what happens to requests with that mark. It also takes its key the way a
client sends it without us, and serves the exchange, so that clients can be run directly.
"""

import json
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.servers import openai_wire
from tests.servers.stub import (
    Close,
    Recorded,
    Script,
    Send,
    StubUpstream,
    is_openai,
    normal_answer,
    sends,
)
from tests.servers.wire import event, json_answer, message_json, message_stream, sse_answer

MARK = re.compile(rb"cell-[0-9]+-")
SAYS = "Hello"  # the first word of every whole answer of the stub
BUSY = "once 529"
BUSY_MAIN = "once 529, with tools"
"""For clients that ask twice at once: which of both comes first is chance."""
CUT = "cut"
TOOL = "tool"
SPEND = "spend"
TOOLS = ("look", "Bash", "bash", "exec_command", "shell", "llm_version")


class Provider(StubUpstream):
    """The stub of the matrix; `faults` maps marks to what goes wrong."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(keys)
        self.faults: dict[str, str] = {}
        self.refused = Counter[str]()
        self._counting = threading.Lock()

    def __enter__(self) -> "Provider":
        super().__enter__()
        return self

    def _script(self, recorded: Recorded) -> Script:
        if recorded.target.endswith("/oauth/token"):
            token = {"access_token": min(self.keys), "token_type": "Bearer", "expires_in": 600}
            return [Send(json_answer(200, token))]
        if not self._credentials(recorded) & self.keys:
            return super()._script(recorded)
        found = MARK.search(recorded.body)
        return self._marked(recorded, found[0].decode() if found else "")

    def _credentials(self, recorded: Recorded) -> set[str]:
        bearers = [value.removeprefix("Bearer ") for value in recorded.header("authorization")]
        return {*bearers, *recorded.header("x-api-key")}

    def _marked(self, recorded: Recorded, mark: str) -> Script:
        fault = self.faults.get(mark)
        if recorded.method != "POST" or recorded.target.endswith("/count_tokens"):
            return normal_answer(recorded)
        main = fault == BUSY_MAIN and json.loads(recorded.body).get("tools")
        if (fault == BUSY or main) and self._first(mark):
            return _busy(recorded)
        if fault == CUT:
            return _broken_off(recorded)
        if fault == TOOL and (asks := _tool_call(recorded, json.loads(recorded.body))):
            return asks
        if fault == SPEND:
            usage = {"input_tokens": 25, "output_tokens": 100_000}
            whole = message_json(json.loads(recorded.body)["model"], usage=usage)
            return [Send(json_answer(200, whole))]
        return normal_answer(recorded)

    def _first(self, mark: str) -> bool:
        with self._counting:
            self.refused[mark] += 1
            return self.refused[mark] == 1


def _busy(recorded: Recorded) -> Script:
    if is_openai(recorded):
        return [Send(json_answer(503, openai_wire.error_json("Overloaded", "server_error", None)))]
    error = {"type": "overloaded_error", "message": "Overloaded"}
    return [Send(json_answer(529, {"type": "error", "error": error}))]


def _broken_off(recorded: Recorded) -> Script:
    """A stream's first words, then the end of the connection; what is not streamed is whole."""
    script = list(normal_answer(recorded))
    return script if len(script) == 1 else [*script[:6], Close()]


def _tool_call(recorded: Recorded, body: Mapping[str, Any]) -> Script | None:
    """Ask for a tool when the request has one and shows no result yet."""
    chosen = _chosen(body.get("tools") or [])
    if chosen is None or _has_result(body):
        return None
    name, arguments = chosen
    if recorded.target.endswith("/chat/completions"):
        return _chat_call(body, name, json.dumps(arguments))
    if recorded.target.endswith("/responses"):
        return _response_call(body, name, json.dumps(arguments))
    return _message_call(body, name, arguments)


def _chosen(tools: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]] | None:
    schemas: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        inner = tool.get("function") or tool
        if "name" in inner:
            schemas[inner["name"]] = inner.get("input_schema") or inner.get("parameters") or {}
    for name in TOOLS:
        if name in schemas:
            return name, _arguments(schemas[name])
    return None


def _arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The least that a tool's schema asks for."""
    members = schema.get("properties") or {}
    values: dict[str, Any] = {"integer": 1, "number": 1, "boolean": False, "object": {}}

    def value(name: str) -> Any:
        kind = members.get(name, {}).get("type", "string")
        if name in ("command", "cmd"):
            return ["echo", "seen"] if kind == "array" else "echo seen"
        return [] if kind == "array" else values.get(kind, "seen")

    return {name: value(name) for name in schema.get("required") or []}


def _has_result(body: Mapping[str, Any]) -> bool:
    text = json.dumps(body)
    return any(
        sign in text for sign in ('"tool_result"', '"function_call_output"', '"role": "tool"')
    )


def _message_call(body: Mapping[str, Any], name: str, arguments: Mapping[str, Any]) -> Script:
    use = {"type": "tool_use", "id": "toolu_stub", "name": name, "input": dict(arguments)}
    if not body.get("stream"):
        whole = message_json(body["model"]) | {"content": [use], "stop_reason": "tool_use"}
        return [Send(json_answer(200, whole))]
    begun = {"type": "content_block_start", "index": 0, "content_block": use | {"input": {}}}
    delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    events = message_stream(body["model"], texts=())
    events[1] = event("content_block_start", begun)
    step = {"type": "content_block_delta", "index": 0, "delta": delta}
    events.insert(3, event("content_block_delta", step))
    return [
        Send(sse_answer()),
        *sends([each.replace(b'"end_turn"', b'"tool_use"') for each in events]),
    ]


def _chat_call(body: Mapping[str, Any], name: str, arguments: str) -> Script:
    model = body["model"]
    call = {
        "id": "call_stub",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    if not body.get("stream"):
        whole = openai_wire.chat_json(model=model)
        whole["choices"][0] |= {"finish_reason": "tool_calls"}
        whole["choices"][0]["message"] |= {"content": None, "tool_calls": [call]}
        return [Send(json_answer(200, whole))]
    asked = (body.get("stream_options") or {}).get("include_usage")
    first = {"role": "assistant", "content": None, "tool_calls": [{"index": 0, **call}]}
    events = [
        openai_wire.chunk(first, model=model, say_usage=bool(asked)),
        openai_wire.chunk({}, model=model, finish="tool_calls", say_usage=bool(asked)),
        *([openai_wire.figures(model=model)] if asked else []),
        openai_wire.DONE,
    ]
    return [Send(sse_answer()), *sends(events)]


def _response_call(body: Mapping[str, Any], name: str, arguments: str) -> Script:
    item = {
        "id": "fc_stub",
        "type": "function_call",
        "call_id": "call_stub",
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }
    whole = openai_wire.response_json(model=body["model"]) | {"output": [item]}
    if not body.get("stream"):
        return [Send(json_answer(200, whole))]
    begun = whole | {"output": [], "status": "in_progress", "usage": None}
    opened = item | {"arguments": "", "status": "in_progress"}
    place = {"item_id": "fc_stub", "output_index": 0}
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
        ("response.output_item.added", {"output_index": 0, "item": opened}),
        ("response.function_call_arguments.delta", {**place, "delta": arguments}),
        ("response.function_call_arguments.done", {**place, "arguments": arguments, "name": name}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
        ("response.completed", {"response": whole}),
    ]
    events = [
        openai_wire.response_event(kind, number, **fields)
        for number, (kind, fields) in enumerate(kinds)
    ]
    return [Send(sse_answer()), *sends(events)]
