"""What a chat completion asks for, checked field by field against the scope.

Called by `providers.openai` with the body's bytes, here or in a worker process.
"""

from typing import Any

from daypass_core.scope import Detail
from daypass_proxy.body.lookalikes import refuse_lookalikes
from daypass_proxy.body.outline import Buffer
from daypass_proxy.body.strict import parse
from daypass_proxy.providers import Asked
from daypass_proxy.providers import openai_fields as fields
from daypass_proxy.providers.openai_check import MAX_CHOICES, OpenAICheck, whole_number
from daypass_proxy.providers.places import Where, invalid, items, not_allowed, words

_STREAM_KEYS = frozenset({"include_usage", "include_obfuscation"})


def check_chat(body: Buffer, detail: Detail, *, max_tokens_needed: bool = False) -> Asked:
    """Return what `body` asks for; raises Refusal (400)."""
    check = ChatCheck(detail)
    check.run(parse(body))
    return check.asked()


class ChatCheck(OpenAICheck):
    """One pass over the body of a chat completion."""

    __slots__ = ()

    def run(self, body: dict[str, Any]) -> None:
        """Check everything; raises Refusal (400) naming the field."""
        self.top_level(body, fields.CHAT)
        self._output(body)
        self.thinking(body.get("reasoning_effort"))
        if body.get("prediction") is not None:
            # What the answer does not take up of it is billed as output that nobody sees.
            self.weight.add_thinking(None, own=True)
        self.tools(body.get("tools"), ("tools",))
        for index, message in enumerate(items(body.get("messages"), "messages")):
            self._message(message, ("messages", index))

    def _output(self, body: dict[str, Any]) -> None:
        for name in ("max_completion_tokens", "max_tokens"):
            self.limit(body.get(name), name)
        for name in fields.CHOICES:
            if body.get(name) is not None:
                self.choices = max(self.choices, whole_number(body[name], name, MAX_CHOICES))
        modalities = body.get("modalities")
        if modalities is not None and modalities != ["text"]:
            raise not_allowed("modalities", 'modalities may be ["text"]: audio has no price here')
        options = body.get("stream_options")
        if options is not None:
            _check_stream_options(options)
        if self.stream and not (options and options.get("include_usage")):
            self.amend(body, "stream_options")
        if self.elsewhere:
            # Not all servers know the newer name, and to those that do not there is no limit.
            if body.get("max_completion_tokens") is not None:
                self.amend(body, "max_completion_tokens")
                self.limits = ("max_tokens",)
        elif body.get("store") is None and "store" not in self.detail.features:
            # Left out it means true to newer accounts, as of responses.
            self.amend(body, "store")

    def _message(self, message: dict[str, Any], where: Where) -> None:
        if not fields.MESSAGE_KEYS.issuperset(message):
            refuse_lookalikes(message, fields.MESSAGE_KEYS, f"{words(where)}.")
        for name, why in fields.REFUSED_KEYS.items():
            if message.get(name) is not None:
                place = words((*where, name))
                raise not_allowed(place, f"{place} is not allowed: {why}")
        content = message.get("content")
        if type(content) is not str:
            self.parts(content, (*where, "content"))


def _check_stream_options(options: object) -> None:
    if not isinstance(options, dict):
        raise invalid("stream_options", "stream_options must be an object")
    if type(options.get("include_usage")) not in (bool, type(None)):
        place = "stream_options.include_usage"
        raise invalid(place, f"{place} must be true or false")
    refuse_lookalikes(options, _STREAM_KEYS, "stream_options.")
