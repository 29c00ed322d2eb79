"""What of a Messages body costs otherwise than as text: gathered while the body is checked.

Place in the flow: `anthropic_body` fills it in one pass; `estimate.quote` reads it from the Call.
What would have no bound is refused here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from daypass_core.problem import Code, refuse
from daypass_proxy.providers import Asked, Beside
from daypass_proxy.providers import anthropic_fields as fields

_ENDLESS = 1_000_000
"""Thinking without a budget: as much as the answer may have."""
_MAX_USES = 100


@dataclass(slots=True)
class Weight:
    """The counts of one body; what they mean is said at `Asked`."""

    images: int = 0
    documents: int = 0
    image_bytes: int = 0
    document_bytes: int = 0
    hosted_tools: int = 0
    searches: int = 0
    loops: bool = False
    thinking: int | None = None
    served: dict[str, str] = field(default_factory=dict)
    """`speed`, `service_tier` and `inference_geo`, those that were given."""
    beside: dict[str, Beside] = field(default_factory=dict)

    def asked(
        self, models: list[str], writers: int, max_output_tokens: int | None, *, stream: bool
    ) -> Asked:
        """Return what the whole body asks for."""
        thinking = self.thinking
        if thinking is not None and max_output_tokens is not None:
            thinking = min(thinking, max_output_tokens)
        return Asked(
            models=tuple(models),
            max_output_tokens=max_output_tokens,
            stream=stream,
            images=self.images,
            documents=self.documents,
            writers=writers,
            thinking_tokens=thinking,
            searches=self.searches,
            loops=self.loops,
            image_bytes=self.image_bytes,
            document_bytes=self.document_bytes,
            hosted_tools=self.hosted_tools,
            beside=tuple(self.beside.values()),
            **self.served,
        )

    def add_block(self, kind: str, source: object) -> None:
        """Count an image or a document.

        JSON writes base64 in as many bytes at least, so never more is taken off the text.
        """
        size = 0
        if isinstance(source, dict) and source.get("type") == "base64":
            data = source.get("data")
            size = len(data) if isinstance(data, str) else 0
        if kind == "image":
            self.images += 1
            self.image_bytes += size
        else:
            self.documents += 1
            self.document_bytes += size

    def add_thinking(self, budget: int | None) -> None:
        """Take note of thinking; None is thinking without a budget."""
        self.thinking = max(self.thinking or 0, _ENDLESS if budget is None else budget)

    def add_server_tool(self, base: str, tool: dict[str, Any], where: str) -> None:
        """Take note of a tool that the provider runs; raises Refusal for uses without a bound."""
        self.loops = True
        if base in fields.SEARCH_TOOLS:
            self.searches += max_uses(tool, where)

    def add_beside(self, model: str, passes: int, output_tokens: int | None) -> None:
        """Take note of passes beside the answer; of one model, each counts as the largest."""
        known = self.beside.get(model)
        if known is not None:
            passes += known.passes
            if output_tokens is None or known.output_tokens is None:
                output_tokens = None
            else:
                output_tokens = max(output_tokens, known.output_tokens)
        self.beside[model] = Beside(model, passes, output_tokens)


def max_uses(tool: dict[str, Any], where: str) -> int:
    """Return how often a tool may be used; raises Refusal without a bound."""
    uses = tool.get("max_uses")
    if type(uses) is not int or not 1 <= uses <= _MAX_USES:
        title = f"{where}.max_uses must be a whole number from 1 to {_MAX_USES}"
        raise refuse(Code.FIELD_NOT_ALLOWED, title, field=f"{where}.max_uses")
    return uses


def compacts(body: dict[str, Any]) -> bool:
    """Say whether a model may rewrite the context first; clearing parts of it takes none."""
    management = body.get("context_management")
    edits = management.get("edits") if isinstance(management, dict) else None
    return body.get("compaction") is not None or (
        isinstance(edits, list)
        and not all(
            isinstance(edit, dict) and str(edit.get("type")).startswith("clear_") for edit in edits
        )
    )
