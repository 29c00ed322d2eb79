"""What a request of the Responses API asks for, checked field by field against the scope.

Called by `providers.openai` with the body's bytes, here or in a worker process.
"""

from typing import Any

from daypass_core.scope import Detail
from daypass_proxy.body.lookalikes import refuse_lookalikes
from daypass_proxy.body.outline import Buffer
from daypass_proxy.body.strict import parse
from daypass_proxy.providers import Asked
from daypass_proxy.providers import openai_fields as fields
from daypass_proxy.providers.openai_check import MAX_TOOL_CALLS, OpenAICheck, whole_number
from daypass_proxy.providers.places import Where, invalid, shown, words

_CONTENT = ("content", "output", "summary", "outputs")
"""The keys of an item that may hold parts."""
_SHAPES = frozenset({"code_interpreter_call", "mcp_call", "program_output", "shell_call_output"})
"""Items whose results are texts, in a shape of their own."""
_SOURCES = fields.IMAGES | fields.FILES | fields.REFUSED_PARTS.keys()


def check_responses(body: Buffer, detail: Detail, *, max_tokens_needed: bool = False) -> Asked:
    """Return what `body` asks for; raises Refusal (400)."""
    check = ResponsesCheck(detail)
    check.run(parse(body))
    return check.asked()


class ResponsesCheck(OpenAICheck):
    """One pass over the body of a request of the Responses API."""

    __slots__ = ()

    def run(self, body: dict[str, Any]) -> None:
        """Check everything; raises Refusal (400) naming the field."""
        self.top_level(body, fields.RESPONSES)
        self.limit(body.get("max_output_tokens"), "max_output_tokens")
        if body.get("max_tool_calls") is not None:
            calls = whole_number(body["max_tool_calls"], "max_tool_calls", MAX_TOOL_CALLS)
            self.tool_calls = calls
        if body.get("store") is None and "store" not in self.detail.features:
            # Left out it means true, and what is stored lies with the whole platform's.
            self.amend(body, "store")
        self._reasoning(body.get("reasoning"), "reasoning")
        if body.get("context_management") not in (None, []):
            self._rewrites()
        self.tools(body.get("tools"), ("tools",))
        given = body.get("input")
        if given is None or isinstance(given, str):
            return
        if not isinstance(given, list):
            raise invalid("input", "input must be a text or a list")
        for index, item in enumerate(given):
            self._item(item, ("input", index))

    def _reasoning(self, value: object, where: str) -> None:
        if value is None:
            return
        if not isinstance(value, dict):
            raise invalid(where, f"{where} must be an object")
        self.thinking(value.get("effort", ""))

    def _rewrites(self) -> None:
        """Take note that the model may write the context anew first."""
        self.weight.rewriters += tuple(self.models)

    def _item(self, item: object, where: Where) -> None:
        if not isinstance(item, dict):
            place = words(where)
            raise invalid(place, f"{place} must be an object")
        if not fields.ITEM_KEYS.issuperset(item):
            refuse_lookalikes(item, fields.ITEM_KEYS, f"{words(where)}.")
        kind = item.get("type")
        if kind is None:
            # As the API reads it: what has a role is a message, what has not is named by its id.
            kind = "message" if "role" in item else "item_reference"
        if not isinstance(kind, str):
            place = f"{words(where)}.type"
            raise invalid(place, f"{place} must be text")
        if kind not in fields.ITEMS:
            if kind in fields.GATED_ITEMS:
                self.need(kind, (*where, "type"), f"item type {shown(kind)}")
            else:
                self.unknown(kind, item, where, f"item type {shown(kind)}")
            self.weight.unseen = True
        elif kind in fields.TOOL_ITEMS:
            self.tools(item.get("tools"), (*where, "tools"))
        elif kind == "compaction_trigger":
            self._rewrites()
        elif kind == "configuration_update":
            self.weight.add_thinking(None, own=True)
        elif kind == "image_generation_call":
            self.weight.images += 1
        for name in _CONTENT:
            if name in item:
                self._content(kind, item[name], (*where, name))

    def _content(self, kind: str, value: object, where: Where) -> None:
        if kind in _SHAPES:
            # What is no part says nothing of its type; a part among them is looked at all the same.
            for index, each in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(each, dict) and each.get("type") in _SOURCES:
                    self.part(each, (*where, index))
            return
        self.parts(value, where)
