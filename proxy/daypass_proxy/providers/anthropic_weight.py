"""What of a Messages body costs otherwise than as text: gathered while the body is checked.

Place in the flow: `anthropic_body` fills it in one pass; `estimate.quote` reads it from the Call.
What would have no bound is refused here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from daypass_core.problem import Code, refuse
from daypass_proxy.body.outline import Buffer
from daypass_proxy.providers import Asked, Beside
from daypass_proxy.providers import anthropic_fields as fields

_ANYTHING = 10**9
"""What a tool without a bound adds: it may fill every window."""
_MAX_USES = 100
ROUNDS = 9
"""How often tools that run at the provider have the model read on: it pauses after 10 readings.

No `max_uses` is a bound of that: a use beyond it is answered with an error, and read as well.
"""
SEARCH_TOKENS = 25_000
"""What one search adds, at most: ten results of a page or two."""
# How long a cache write lives; five minutes where nothing is said. The API takes four of these.
_LIFE, _FIVE_MINUTES = b'"ttl"', (b':"5m"', b': "5m"')
_MOST_LIVES = 64
_ESCAPE = b"\\u00"
_SPELLED = (b"\\u0074", b"\\u006c", b"\\u006C")
"""Letters of that name as escapes: no client writes it so."""


class Weight:
    """The counts of one body; what they mean is said at `Asked`.

    These are how every body begins: most set few of them, so none is made anew for each body.
    """

    images = 0
    documents = 0
    image_bytes = 0
    document_bytes = 0
    unseen = False
    hosted_tools = 0
    hour_cache = True
    searches = 0
    loops = 0
    found = 0
    thinking: int | None = None
    thinks_freely = False
    served: Mapping[str, str] = MappingProxyType({})
    """`speed`, `service_tier` and `inference_geo`, those that were given."""
    advisors: Mapping[str, Beside] = MappingProxyType({})
    rewriters: tuple[str, ...] = ()
    """The models that may write beside the answer whenever they read the request."""

    def asked(
        self, models: list[str], writers: int, max_output_tokens: int | None, *, stream: bool
    ) -> Asked:
        """Return what the whole body asks for."""
        thinking = self.thinking
        if thinking is not None and max_output_tokens is not None:
            thinking = min(thinking, max_output_tokens)
        beside = tuple(self.advisors.values())
        for model, times in Counter(self.rewriters).items() if self.rewriters else ():
            beside += (Beside(model, times * (1 + self.loops)),)
        return Asked(
            models=tuple(models),
            max_output_tokens=max_output_tokens,
            stream=stream,
            images=self.images,
            documents=self.documents,
            writers=writers,
            thinking_tokens=thinking,
            thinks_freely=self.thinks_freely,
            searches=self.searches,
            loops=self.loops,
            found=min(self.found + self.searches * SEARCH_TOKENS, _ANYTHING),
            image_bytes=self.image_bytes,
            document_bytes=self.document_bytes,
            unseen=self.unseen,
            hosted_tools=self.hosted_tools,
            hour_cache=self.hour_cache,
            beside=beside,
            speed=self.served.get("speed"),
            service_tier=self.served.get("service_tier"),
            inference_geo=self.served.get("inference_geo"),
        )

    def add_block(self, kind: str, source: object) -> None:
        """Count an image or a document.

        JSON writes base64 in as many bytes at least, so never more is taken off the text.
        """
        size, where = 0, None
        if isinstance(source, dict):
            where, data = source.get("type"), source.get("data")
            if where == "base64" and isinstance(data, str):
                size = len(data)
        if kind == "image":
            self.images += 1
            self.image_bytes += size
        else:
            self.documents += 1
            self.document_bytes += size
            self.unseen |= not isinstance(where, str) or where not in fields.SOURCES

    def add_thinking(self, budget: int | None, *, own: bool) -> None:
        """Take note of thinking: of none (0), or of as much as may be (None).

        Of another model than the request's `own` it counts with that of the request. Where that is
        left open, no budget says how much the request's model thinks.
        """
        if budget is None or (not own and self.thinking is None):
            self.thinks_freely = True
        self.thinking = max(self.thinking or 0, budget or 0)

    def add_server_tool(self, base: str, tool: dict[str, Any], where: str) -> None:
        """Take note of a tool that the provider runs; raises Refusal for uses without a bound."""
        if base in fields.SEARCH_TOOLS:
            self.searches += max_uses(tool, where)
        elif base not in fields.INWARD_TOOLS:
            self.found = _ANYTHING
        self.loops = max(self.loops, ROUNDS)

    def add_endless_tool(self) -> None:
        """Take note of tools elsewhere, that may bring anything."""
        self.loops, self.found = max(self.loops, ROUNDS), _ANYTHING

    def add_advisor(self, model: str, uses: int, output_tokens: int) -> None:
        """Take note of an advisor: the writer reads on after each use, its advice as well.

        Of one model, each piece of advice counts as the largest.
        """
        known = self.advisors.get(model, Beside(model, 0, 0))
        most = max(output_tokens, known.output_tokens or 0)
        self.advisors = {**self.advisors, model: Beside(model, known.passes + uses, most)}
        self.loops = max(self.loops, ROUNDS, sum(each.passes for each in self.advisors.values()))
        self.found += uses * output_tokens


def max_uses(tool: dict[str, Any], where: str) -> int:
    """Return how often a tool may be used; raises Refusal without a bound."""
    uses = tool.get("max_uses")
    if type(uses) is not int or not 1 <= uses <= _MAX_USES:
        title = f"{where}.max_uses must be a whole number from 1 to {_MAX_USES}"
        raise refuse(Code.FIELD_NOT_ALLOWED, title, field=f"{where}.max_uses")
    return uses


def may_cache_an_hour(body: Buffer) -> bool:
    """Say whether the request may ask for cache writes that live an hour; they are the dearest.

    By finding alone, a millisecond for a megabyte: a body is looked at on the event loop.
    """
    escapes = body.find(_ESCAPE) >= 0
    if not escapes and body.find(_LIFE) < 0:
        return False
    if escapes and any(body.find(letter) >= 0 for letter in _SPELLED):
        return True
    at = -1
    for _ in range(_MOST_LIVES):
        at = body.find(_LIFE, at + 1)
        if at < 0:
            return False
        said = at + len(_LIFE)
        if not body[said : said + 6].startswith(_FIVE_MINUTES):
            return True
    return True


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
