"""What an Anthropic Messages body asks for, checked field by field against the scope.

Called by `providers.anthropic` with the body's bytes, here or in a worker process; the bytes go up
unchanged, so everything that names a model, a price, a way out or somebody's state is either
allowed here or refused. Open on options: unknown scalars pass. Closed on kinds: an unknown object,
tool, block or source is refused with the feature that would allow it (attack rows 32, 34-37, 39).
The closed sets are data: `anthropic.fields.json`. `null` counts as absent, as the API reads it.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from daypass_core.problem import Code, Problem, Refusal
from daypass_core.scope import Detail
from daypass_proxy.body.lookalikes import refuse_lookalikes
from daypass_proxy.body.outline import Buffer
from daypass_proxy.body.strict import parse
from daypass_proxy.providers import Asked
from daypass_proxy.providers import anthropic_fields as fields
from daypass_proxy.providers.anthropic_weight import Weight, compacts, max_uses, may_cache_an_hour
from daypass_proxy.providers.known_names import STRICT, Names, refuse_unknown
from daypass_proxy.providers.places import Where, invalid, items, not_allowed, shown, words
from daypass_proxy.providers.scope_check import MAX_MODELS, MAX_OUTPUT_TOKENS, ScopeCheck

_DATED = re.compile(r"(.{1,64}?)_[0-9]{8}")
# Blocks that ask for nothing themselves.
_PLAIN_BLOCKS = fields.BLOCKS - fields.COUNTED - fields.CHANGES
_KNOWN_TOOL_KEYS = fields.TOOL_KEYS | fields.TOOL_OPTIONS
_NAMES = Names.of("anthropic")


def check_body(body: Buffer, detail: Detail, *, max_tokens_needed: bool) -> Asked:
    """Return what `body` asks for; raises Refusal (400)."""
    check = BodyCheck(detail)
    check.weight.hour_cache = may_cache_an_hour(body)
    document = parse(body)
    check.run(document, max_tokens_needed=max_tokens_needed)
    if detail.body == STRICT:
        refuse_unknown(document, detail, _NAMES, fields.KNOWN)
    most = check.max_output_tokens
    return check.weight.asked(check.models, check.writers, most, stream=check.stream)


@dataclass(slots=True)
class BodyCheck(ScopeCheck):
    """One pass over one body; afterwards it knows what the estimate needs."""

    max_output_tokens: int | None = None
    stream: bool = False
    weight: Weight = field(default_factory=Weight)
    writers: int = 0

    def run(self, body: dict[str, Any], *, max_tokens_needed: bool) -> None:
        """Check everything; raises Refusal (400) naming the field."""
        if not fields.KNOWN.issuperset(body):
            refuse_lookalikes(body, fields.KNOWN)
        self.model(body.get("model"), ("model",))
        self._structures(body)
        if not fields.ASIDE.isdisjoint(body):
            self._aside(body)
        self.writers = len(self.models)
        if compacts(body):
            self.weight.rewriters += tuple(self.models)
        self._output(body, needed=max_tokens_needed)
        if "tools" in body:
            for index, tool in enumerate(items(body["tools"], "tools")):
                self._tool(tool, ("tools", index))
        if "mcp_servers" in body:
            for index, server in enumerate(items(body["mcp_servers"], "mcp_servers")):
                self.weight.add_endless_tool()
                self.url(server.get("url"), ("mcp_servers", index, "url"))
        system = body.get("system")
        if type(system) is not str:
            self._blocks(system, ("system",))
        for index, message in enumerate(items(body.get("messages"), "messages")):
            content = message.get("content")
            if type(content) is not str:
                self._blocks(content, ("messages", index, "content"))

    # -- the top level

    def _structures(self, body: dict[str, Any]) -> None:
        for name, value in body.items():
            kind = type(value)
            if (kind is dict or kind is list) and name not in fields.STRUCTURES:
                if name in fields.SCALARS:
                    raise invalid(name, f"{name} must not be an object or a list")
                self.unknown(name, {name: value}, ())
                self.weight.unseen = True

    def _aside(self, body: dict[str, Any]) -> None:
        if body.get("thread") is not None:
            # The SDK's tool runner reads the code and sends the full history by itself.
            raise Refusal(
                Problem.of(
                    Code.THREAD_UNSUPPORTED,
                    "capability_rejected: beta_header:message-threads-2026-08-12",
                    hint="resend the full history",
                    field="thread",
                )
            )
        diagnostics = body.get("diagnostics")
        if isinstance(diagnostics, dict) and diagnostics.get("previous_message_id") is not None:
            self.need("diagnostics", ("diagnostics", "previous_message_id"))
        for name in fields.GATED:
            # An empty list asks for nothing; some clients always send the key.
            if body.get(name) not in (None, []):
                self.need(name, (name,))
                self.weight.unseen |= name in fields.UNSEEN
        for name, ordinary in fields.VALUES.items():
            self._serving(name, body.get(name), ordinary)
        self._thinking(body.get("thinking"), "thinking")
        self._fallbacks(body.get("fallbacks"))

    def _output(self, body: dict[str, Any], *, needed: bool) -> None:
        limit = body.get("max_tokens")
        if needed or limit is not None:
            self._raise_output(self.tokens(limit, ("max_tokens",)))
        stream = body.get("stream")
        if stream is not None and type(stream) is not bool:
            raise invalid("stream", "stream must be true or false")
        self.stream = stream is True

    def _serving(self, name: str, value: object, ordinary: list[str]) -> None:
        """Take note of a value that changes the price; whether it has one is for the quote."""
        if value is None:
            return
        if not isinstance(value, str):
            raise invalid(name, f"{name} must be text")
        if value not in ordinary:
            self.need(name, (name,), f"{name} {shown(value)}")
        self.weight.served = {**self.weight.served, name: value}

    def _raise_output(self, most: int) -> None:
        if self.max_output_tokens is None or most > self.max_output_tokens:
            self.max_output_tokens = most

    def _thinking(self, value: object, where: str) -> None:
        if value is None:
            return
        if not isinstance(value, dict):
            raise invalid(where, f"{where} must be an object")
        if value.get("type") == "disabled":
            self.weight.add_thinking(0, own=where == "thinking")
            return
        budget = value.get("budget_tokens")
        if budget is not None and (type(budget) is not int or not 0 <= budget <= MAX_OUTPUT_TOKENS):
            raise invalid(
                where, f"{where}.budget_tokens must be a whole number up to {MAX_OUTPUT_TOKENS}"
            )
        budget = budget if value.get("type") == "enabled" else None  # no other kind's budget binds
        self.weight.add_thinking(budget, own=where == "thinking")

    def _fallbacks(self, value: object) -> None:
        if isinstance(value, str):
            raise not_allowed("fallbacks", 'fallbacks must list models; "default" names none')
        others = items(value, "fallbacks")
        if len(others) > MAX_MODELS:
            raise invalid("fallbacks", f"fallbacks may list {MAX_MODELS} models")
        for index, item in enumerate(others):
            place = f"fallbacks[{index}]"
            refuse_lookalikes(item, fields.FALLBACK_KEYS, f"{place}.")
            if item.get("model") in self.models:
                self.weight.rewriters += (item["model"],)  # it may write once more
            self.model(item.get("model"), ("fallbacks", index, "model"))
            if item.get("max_tokens") is not None:
                most = self.tokens(item["max_tokens"], ("fallbacks", index, "max_tokens"))
                self._raise_output(most)
            _check_value(item.get("speed"), fields.VALUES["speed"], f"{place}.speed")
            self._thinking(item.get("thinking"), f"{place}.thinking")

    # -- tools

    def _tool(self, tool: dict[str, Any], where: Where) -> None:
        if not _KNOWN_TOOL_KEYS.issuperset(tool):
            refuse_lookalikes(tool, fields.TOOL_KEYS, f"{words(where)}.")
        kind = tool.get("type")
        if kind is None:
            return
        place = f"{words(where)}.type"
        if not isinstance(kind, str):
            raise invalid(place, f"{place} must be text")
        match = _DATED.fullmatch(kind)
        base = match[1] if match else kind
        self.weight.hosted_tools += base != "custom"
        if base in fields.CLIENT_TOOLS:
            return
        feature = self.gate(kind, (*where, "type"))
        if feature is None:
            self.unknown(base, tool, where, f"tool type {shown(kind)}")
        else:
            self.need(feature, (*where, "type"), f"tool type {shown(kind)}")
        if base == "advisor":
            self.model(tool.get("model"), (*where, "model"))
            most = self.tokens(tool.get("max_tokens"), (*where, "max_tokens"))
            self.weight.add_advisor(tool["model"], max_uses(tool, words(where)), most)
            return
        self.weight.add_server_tool(base, tool, words(where))
        if base in fields.EGRESS_TOOLS:
            self._egress_tool(tool, words(where))

    def _egress_tool(self, tool: dict[str, Any], where: str) -> None:
        """A server tool reaches out for the sandbox: only to named domains, only so often."""
        self.within_domains(tool.get("allowed_domains"), f"{where}.allowed_domains")
        max_uses(tool, where)

    # -- content

    def _blocks(self, value: object, where: Where) -> None:
        if isinstance(value, list):
            for index, block in enumerate(value):
                # Most blocks of a conversation end here: a known kind that holds nothing else.
                if (
                    type(block) is dict
                    and type(kind := block.get("type")) is str
                    and kind in _PLAIN_BLOCKS
                    and fields.NESTING.isdisjoint(block)
                ):
                    continue
                self._block(block, (*where, index))
        elif isinstance(value, dict):
            self._block(value, where)

    def _block(self, block: object, where: Where) -> None:
        if not isinstance(block, dict):
            place = words(where)
            raise invalid(place, f"{place} must be an object")
        kind = block.get("type")
        if not isinstance(kind, str):
            place = f"{words(where)}.type"
            raise invalid(place, f"{place} must be text")
        if kind not in fields.BLOCKS:
            self._need_kind(block, kind, where, "block")
        source = block.get("source")
        if kind in fields.COUNTED:
            self.weight.add_block(kind, source)
        if isinstance(source, dict):
            self._source(source, (*where, "source"))
        if kind in fields.CHANGES:
            self._tool_change(block.get("tool"), (*where, "tool"))
        # Results nest blocks; `input` of a tool use is the tool's own data and is not read.
        self._blocks(block.get("content"), (*where, "content"))
        # A compaction keeps the tools that were introduced in what it replaces.
        self._blocks(block.get("tool_changes"), (*where, "tool_changes"))

    def _source(self, source: dict[str, Any], where: Where) -> None:
        kind = source.get("type")
        if not isinstance(kind, str):
            place = f"{words(where)}.type"
            raise invalid(place, f"{place} must be text")
        if kind not in fields.SOURCES:
            self._need_kind(source, kind, where, "source")
        if kind == "url":
            self.url(source.get("url"), (*where, "url"))
        self._blocks(source.get("content"), (*where, "content"))

    def _tool_change(self, tool: object, where: Where) -> None:
        """Tools may be introduced in the middle of a conversation too."""
        place = words(where)
        if not isinstance(tool, dict):
            raise invalid(place, f"{place} must be an object")
        kind = tool.get("type")
        if kind == "tool_definition" and isinstance(tool.get("definition"), dict):
            self._tool(tool["definition"], (*where, "definition"))
        elif not isinstance(kind, str) or kind not in fields.REFERENCES:
            raise invalid(f"{place}.type", f"{place}.type must be a known kind of tool reference")

    # -- what the scope allows

    def gate(self, kind: str, where: Where) -> str | None:
        """Return the feature that a kind of tool, block or source needs, None for none."""
        match = _DATED.fullmatch(kind)
        base = match[1] if match else kind
        if base in fields.FEE_TOOLS:
            place = words(where)
            raise not_allowed(
                place,
                f"tool type {shown(kind)} is not allowed ({place}): the provider takes a fee for"
                " each use, which cannot be priced here yet",
            )
        return fields.SERVER_TOOLS.get(base) or fields.GATED_KINDS.get(kind)

    def inside(self, kind: str, value: dict[str, Any], where: Where) -> None:
        """Check a tool that runs at the provider as one of the tools of the body."""
        match = _DATED.fullmatch(kind)
        if (match[1] if match else kind) in fields.SERVER_TOOLS:
            self._tool(value, where)

    def _need_kind(self, value: dict[str, Any], kind: str, where: Where, noun: str) -> None:
        what = f"{noun} type {shown(kind)}"
        if kind in fields.GATED_KINDS:
            self.need(fields.GATED_KINDS[kind], (*where, "type"), what)
        else:
            self.unknown(kind, value, where, what)
            self.weight.unseen = True


def _check_value(value: object, allowed: list[str], where: str) -> None:
    """Refuse a value that changes the price: what has no known bound is not admitted."""
    if value is not None and value not in allowed:
        raise not_allowed(
            where,
            f"{where} may be {' or '.join(allowed)} here: another value has another price,"
            " which is not known here yet",
        )
