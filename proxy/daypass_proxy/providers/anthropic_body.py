"""What an Anthropic Messages body asks for, checked field by field against the scope.

Called by `providers.anthropic` with the decoded body; the bytes go up unchanged, so everything
that names a model, a price, a way out or somebody's state is either allowed here or refused.
Open on options: unknown scalars pass. Closed on kinds: an unknown object, tool, block or source
is refused with the feature that would allow it (attack rows 32, 34-37, 39). The closed sets are
data: `anthropic.fields.json`. `null` counts as absent, as the API reads it.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from daypass_core.problem import Code, Problem, Refusal, refuse
from daypass_core.scope import Detail
from daypass_proxy.body import refuse_lookalikes

FIELDS: dict[str, Any] = json.loads(
    resources.files(__package__).joinpath("anthropic.fields.json").read_bytes()
)
_TOP = FIELDS["top_level"]
_SCALARS = frozenset(_TOP["scalars"])
_STRUCTURES = frozenset(_TOP["structures"])
_KNOWN = _SCALARS | _STRUCTURES
_CLIENT_TOOLS = frozenset(FIELDS["tools"]["client"])
_SERVER_TOOLS: dict[str, str] = FIELDS["tools"]["server"]
_FEE_TOOLS = frozenset(FIELDS["tools"]["fees"])
_EGRESS_TOOLS = frozenset(FIELDS["tools"]["egress"])
_TOOL_KEYS = frozenset(FIELDS["tools"]["keys"])
_FALLBACK_KEYS = frozenset(FIELDS["fallback_keys"])
_BLOCKS = frozenset(FIELDS["blocks"]["known"])
_SOURCES = frozenset(FIELDS["sources"]["known"])
_GATED_KINDS: dict[str, str] = FIELDS["blocks"]["gated"] | FIELDS["sources"]["gated"]
_REFERENCES = frozenset(FIELDS["references"])

# No scope and no price says what a hundred million tokens would cost; the API's largest answers
# are far below.
MAX_OUTPUT_TOKENS = 1_000_000
_DATED = re.compile(r"(.{1,64}?)_[0-9]{8}")
_MODEL = re.compile(r"[!-~]{1,256}")
_HOST = re.compile(r"[a-z0-9._*-]{1,253}")
_LONGEST_DOMAIN = 2048
_URL = re.compile(r"[!-\[\]-~]{1,2048}")  # ASCII without blanks and backslash


@dataclass(slots=True)
class BodyCheck:
    """One pass over one body; afterwards it knows what the estimate needs."""

    detail: Detail
    models: list[str] = field(default_factory=list)
    max_output_tokens: int | None = None
    stream: bool = False
    images: int = 0
    documents: int = 0

    def run(self, body: dict[str, Any], *, max_tokens_needed: bool) -> None:
        """Check everything; raises Refusal (400) naming the field."""
        refuse_lookalikes(body, _KNOWN)
        self._model(body.get("model"), "model")
        self._unknown_structures(body)
        self._thread_and_state(body)
        self._gated(body)
        self._output(body, needed=max_tokens_needed)
        self._fallbacks(body.get("fallbacks"))
        for index, tool in enumerate(_items(body.get("tools"), "tools")):
            self._tool(tool, f"tools[{index}]")
        for index, server in enumerate(_items(body.get("mcp_servers"), "mcp_servers")):
            self._url(server.get("url"), f"mcp_servers[{index}].url")
        self._blocks(body.get("system"), "system")
        for index, message in enumerate(_items(body.get("messages"), "messages")):
            self._blocks(message.get("content"), f"messages[{index}].content")

    # -- the top level

    def _unknown_structures(self, body: dict[str, Any]) -> None:
        for name, value in body.items():
            if name not in _STRUCTURES and isinstance(value, dict | list):
                if name in _SCALARS:
                    raise _invalid(name, f"{name} must not be an object or a list")
                self._need(name, _shown(name))

    def _thread_and_state(self, body: dict[str, Any]) -> None:
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
            self._need("diagnostics", "diagnostics.previous_message_id")

    def _gated(self, body: dict[str, Any]) -> None:
        for name in _TOP["gated"]:
            # An empty list asks for nothing; some clients always send the key.
            if body.get(name) not in (None, []):
                self._need(name, name)
        for name, allowed in _TOP["values"].items():
            _check_value(body.get(name), allowed, name)

    def _output(self, body: dict[str, Any], *, needed: bool) -> None:
        if needed or body.get("max_tokens") is not None:
            self._max_tokens(body.get("max_tokens"), "max_tokens")
        stream = body.get("stream")
        if stream is not None and type(stream) is not bool:
            raise _invalid("stream", "stream must be true or false")
        self.stream = bool(stream)
        self._thinking(body.get("thinking"), "thinking")

    def _max_tokens(self, value: object, where: str) -> None:
        cap = min(self.detail.max_output_tokens or MAX_OUTPUT_TOKENS, MAX_OUTPUT_TOKENS)
        # type() and not isinstance(): true is an int in Python (attack row 39).
        if type(value) is not int or not 1 <= value <= cap:
            raise _invalid(where, f"{where} must be a whole number from 1 to {cap} here")
        self.max_output_tokens = max(value, self.max_output_tokens or 0)

    def _thinking(self, value: object, where: str) -> None:
        if value is None:
            return
        if not isinstance(value, dict):
            raise _invalid(where, f"{where} must be an object")
        if value.get("type") == "disabled":
            return
        budget = value.get("budget_tokens")
        # Adaptive kinds have no budget of their own.
        if budget is not None and (type(budget) is not int or not 0 <= budget <= MAX_OUTPUT_TOKENS):
            raise _invalid(
                where, f"{where}.budget_tokens must be a whole number up to {MAX_OUTPUT_TOKENS}"
            )

    def _fallbacks(self, value: object) -> None:
        if isinstance(value, str):
            raise _not_allowed("fallbacks", 'fallbacks must list models; "default" names none')
        for index, item in enumerate(_items(value, "fallbacks")):
            where = f"fallbacks[{index}]"
            refuse_lookalikes(item, _FALLBACK_KEYS, f"{where}.")
            self._model(item.get("model"), f"{where}.model")
            if item.get("max_tokens") is not None:
                self._max_tokens(item["max_tokens"], f"{where}.max_tokens")
            _check_value(item.get("speed"), _TOP["values"]["speed"], f"{where}.speed")
            self._thinking(item.get("thinking"), f"{where}.thinking")

    # -- models

    def _model(self, value: object, where: str) -> None:
        if not isinstance(value, str) or not _MODEL.fullmatch(value):
            raise _invalid(where, f"{where} must be the name of a model")
        if not self.detail.allows_model(value):
            of = "" if where == "model" else f" ({where})"
            raise refuse(
                Code.MODEL_NOT_ALLOWED,
                f"model {value}{of} is not allowed for this sandbox",
                hint=f"allowed: {', '.join(self.detail.models)}",
                field=where,
            )
        if value not in self.models:
            self.models.append(value)

    # -- tools

    def _tool(self, tool: dict[str, Any], where: str) -> None:
        refuse_lookalikes(tool, _TOOL_KEYS, f"{where}.")
        kind = tool.get("type")
        if kind is None:
            return
        if not isinstance(kind, str):
            raise _invalid(f"{where}.type", f"{where}.type must be text")
        match = _DATED.fullmatch(kind)
        base = match[1] if match else kind
        if base in _CLIENT_TOOLS:
            return
        if base in _FEE_TOOLS:
            raise _not_allowed(
                f"{where}.type",
                f"tool type {_shown(kind)} is not allowed: the provider takes a fee for each use,"
                " which cannot be priced here yet",
            )
        self._need(_SERVER_TOOLS.get(base, base), f"{where}.type", f"tool type {_shown(kind)}")
        if base == "advisor":
            self._model(tool.get("model"), f"{where}.model")
        if base in _EGRESS_TOOLS:
            self._egress_tool(tool, where)

    def _egress_tool(self, tool: dict[str, Any], where: str) -> None:
        """A server tool reaches out for the sandbox: only to named domains, only so often."""
        domains = tool.get("allowed_domains")
        if (
            not isinstance(domains, list)
            or not domains
            or not all(isinstance(item, str) and self._domain_allowed(item) for item in domains)
        ):
            raise _not_allowed(
                f"{where}.allowed_domains",
                f"{where}.allowed_domains must list domains within those of this sandbox:"
                f" {self._domains()}",
            )
        uses = tool.get("max_uses")
        if type(uses) is not int or not 1 <= uses <= 100:
            raise _not_allowed(
                f"{where}.max_uses", f"{where}.max_uses must be a whole number from 1 to 100"
            )

    # -- content

    def _blocks(self, value: object, where: str) -> None:
        if isinstance(value, list):
            for index, block in enumerate(value):
                self._block(block, f"{where}[{index}]")
        elif isinstance(value, dict):
            self._block(value, where)

    def _block(self, block: object, where: str) -> None:
        if not isinstance(block, dict):
            raise _invalid(where, f"{where} must be an object")
        kind = block.get("type")
        if not isinstance(kind, str):
            raise _invalid(f"{where}.type", f"{where}.type must be text")
        if kind not in _BLOCKS:
            self._need(_GATED_KINDS.get(kind, kind), f"{where}.type", f"block type {_shown(kind)}")
        if kind == "image":
            self.images += 1
        elif kind == "document":
            self.documents += 1
        source = block.get("source")
        if isinstance(source, dict):
            self._source(source, f"{where}.source")
        if kind == "tool_addition" or kind == "tool_removal":
            self._tool_change(block.get("tool"), f"{where}.tool")
        # Results nest blocks; `input` of a tool use is the tool's own data and is not read.
        self._blocks(block.get("content"), f"{where}.content")

    def _source(self, source: dict[str, Any], where: str) -> None:
        kind = source.get("type")
        if not isinstance(kind, str):
            raise _invalid(f"{where}.type", f"{where}.type must be text")
        if kind not in _SOURCES:
            self._need(_GATED_KINDS.get(kind, kind), f"{where}.type", f"source type {_shown(kind)}")
        if kind == "url":
            self._url(source.get("url"), f"{where}.url")
        self._blocks(source.get("content"), f"{where}.content")

    def _tool_change(self, tool: object, where: str) -> None:
        """Tools may be introduced in the middle of a conversation too."""
        if not isinstance(tool, dict):
            raise _invalid(where, f"{where} must be an object")
        if tool.get("type") == "tool_definition" and isinstance(tool.get("definition"), dict):
            self._tool(tool["definition"], f"{where}.definition")
        elif tool.get("type") not in _REFERENCES:
            raise _invalid(f"{where}.type", f"{where}.type must be a known kind of tool reference")

    # -- what the scope allows

    def _need(self, feature: str, where: str, what: str = "") -> None:
        """Refuse unless the scope names `feature`."""
        if feature in self.detail.features:
            return
        raise _not_allowed(
            where,
            f"{what or where} is not allowed for this sandbox"
            + (f" ({where})" if what else "")
            + f'; it needs the feature "{_shown(feature)}" in the profile',
        )

    def _url(self, value: object, where: str) -> None:
        if not self._url_allowed(value):
            raise _not_allowed(
                where,
                f"{where} must be an https URL within the domains of this sandbox:"
                f" {self._domains()}",
            )

    def _url_allowed(self, value: object) -> bool:
        # Before it is parsed: urlsplit() drops blanks, and is quadratic over long non-ASCII text.
        if not isinstance(value, str) or not _URL.fullmatch(value):
            return False
        try:
            parts = urlsplit(value)
            host = parts.hostname or ""
        except ValueError:
            return False
        return parts.scheme == "https" and "@" not in parts.netloc and self._domain_allowed(host)

    def _domain_allowed(self, domain: str) -> bool:
        """Say whether `domain` is one of the scope's or below one; a path would narrow further."""
        host = domain[:_LONGEST_DOMAIN].partition("/")[0].lower()
        # Plain host names only: with "#", "?" or look-alikes in it, others may read another host.
        return _HOST.fullmatch(host) is not None and any(
            host == allowed or host.endswith(f".{allowed}")
            for allowed in self.detail.allowed_domains
        )

    def _domains(self) -> str:
        return ", ".join(self.detail.allowed_domains) or "none are listed"


def _items(value: object, where: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list; an absent list is empty."""
    if value is None:
        return
    if not isinstance(value, list):
        raise _invalid(where, f"{where} must be a list")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise _invalid(f"{where}[{index}]", f"{where}[{index}] must be an object")
        yield item


def _shown(name: str) -> str:
    """Return the beginning of a word of the client's: what else it may hold is not ours to echo."""
    return name if len(name) <= 64 else name[:64] + "…"


def _invalid(where: str, title: str) -> Refusal:
    return refuse(Code.INVALID_REQUEST, title, field=where)


def _check_value(value: object, allowed: list[str], where: str) -> None:
    """Refuse a value that changes the price: what has no known bound is not admitted."""
    if value is not None and value not in allowed:
        raise _not_allowed(
            where,
            f"{where} may be {' or '.join(allowed)} here: another value has another price,"
            " which is not known here yet",
        )


def _not_allowed(where: str, title: str) -> Refusal:
    return refuse(Code.FIELD_NOT_ALLOWED, title, field=where)
