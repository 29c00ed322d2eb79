"""What the checks of chat completions and responses share: options, tools, images and files.

Called by `openai_chat` and `openai_responses`. Everything that names a model, a price, a way out or
somebody's state is either allowed here or refused. Open on options: unknown scalars pass. Closed on
kinds: an unknown object, tool, part or item is refused with the feature that would allow it. Of
servers of one's own options are closed too: there `api_base` leads elsewhere, and `n_predict` goes
above every limit. `null` counts as absent. The closed sets are data: `openai.fields.json`.
"""

import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from daypass_core.problem import Code, refuse
from daypass_proxy.body.lookalikes import refuse_lookalikes
from daypass_proxy.providers import Asked
from daypass_proxy.providers import openai_fields as fields
from daypass_proxy.providers.anthropic_weight import Weight
from daypass_proxy.providers.known_names import STRICT, Names, refuse_unknown
from daypass_proxy.providers.openai_fields import TopLevel
from daypass_proxy.providers.places import Where, invalid, items, not_allowed, shown, words
from daypass_proxy.providers.scope_check import ScopeCheck

OPENAI = "openai"
"""The provider whose options are known; all others are servers of somebody's own."""
IMAGE_TOKENS = 50_000
"""Most tokens of one image on any model: gpt-4o-mini reads one in eight tiles as 48,169."""
MAX_CHOICES = 128
MAX_TOOL_CALLS = 100
MAX_MEMBERS = 256
"""Most members of a body; what is put together anew of them holds the event loop."""
_ANYTHING = 10**9
"""What tools elsewhere may bring: it fills every window."""
_TOOL_KEYS = frozenset(
    {"type", "environment", "tools", "server_url", "connector_id", "tunnel_id", "filters"}
    | {"external_web_access"}
)
_NAMES = Names.of("openai", fields.PART_KEYS | fields.MESSAGE_KEYS | fields.ITEM_KEYS)
_CACHE_KEYS = frozenset({"ttl", "mode"})
_ENVIRONMENT_KEYS = frozenset({"type"})
_REACHING = frozenset({"file", "file_data", "file_id", "file_url", "image_url", "input_audio"})
"""The keys of a part that hold something else than text, or lead to it."""
_CACHE_LIFE = "30m"
# As `estimate` has it: nothing is left to the provider.
_ORDINARY = "standard_only"
# Options of servers of one's own that lead elsewhere, name another model or go above a limit.
_TELLING = re.compile(
    r"model|url|uri|base|host|endpoint|proxy|key|token|predict|fallback|provider|rout|callback"
    r"|header|cred|auth|budget|user|file|path|lora|adapter|slot|session|cache|tag|mock|timeout"
    r"|deployment|preset|plugin|project|region|retr"
)


@dataclass(slots=True)
class OpenAICheck(ScopeCheck):
    """One pass over one body; afterwards it knows what the estimate needs."""

    stream: bool = False
    max_output_tokens: int | None = None
    choices: int = 1
    tool_calls: int | None = None
    weight: Weight = field(default_factory=Weight)
    left_out: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()

    def asked(self) -> Asked:
        """Return what the whole body asks for."""
        weight = self.weight
        weight.hour_cache = False
        asked = weight.asked(self.models, 1, self.max_output_tokens, stream=self.stream)
        return replace(
            asked,
            choices=self.choices,
            image_tokens=IMAGE_TOKENS,
            left_out=self.left_out,
            unset=self.unset,
            limits=self.limits,
        )

    @property
    def elsewhere(self) -> bool:
        """Say whether the body is for a server of somebody's own."""
        return self.detail.provider != OPENAI

    def amend(self, body: dict[str, Any], name: str) -> None:
        """Take note that a member has to be set on the way up."""
        if name in body:
            self.unset += (name,)
        else:
            self.left_out += (name,)

    # -- the top level

    def top_level(self, body: dict[str, Any], known: TopLevel) -> None:
        """Check the names at the top; raises Refusal."""
        if not known.known.issuperset(body):
            refuse_lookalikes(body, known.known)
            self._unknown(body, known)
        self.limits = tuple([name for name in fields.LIMITS if name in body])
        self.model(body.get("model"), ("model",))
        for name, value in body.items():
            kind = type(value)
            if (kind is dict or kind is list) and name not in known.structures:
                if name in known.scalars:
                    raise invalid(name, f"{name} must not be an object or a list")
                self.unknown(name, {name: value}, ())
                self.weight.unseen = True
        for name, why in known.refused.items():
            if body.get(name) not in (None, False, []):
                raise not_allowed(name, f"{name} is not allowed: {why}")
        for name in known.gated:
            if body.get(name) not in (None, []):
                self.need(name, (name,))
                self.weight.unseen |= name in known.unseen
        for name, ordinary in known.values.items():
            self._serving(name, body.get(name), ordinary)
        self._options(body)
        if self.detail.body == STRICT:
            top = known.known | fields.OPTIONS if self.elsewhere else known.known
            refuse_unknown(body, self.detail, _NAMES, top)

    def _unknown(self, body: dict[str, Any], known: TopLevel) -> None:
        """Check the names at the top that the table of the endpoint does not have."""
        if len(body) > MAX_MEMBERS:
            title = f"request body may have {MAX_MEMBERS} members at most"
            raise refuse(Code.INVALID_REQUEST, title)
        for name, value in body.items():
            if name in known.known or value is None:
                continue
            if name in fields.LIMITS:
                # One that the server does not look at would stand for one that it does.
                own = " or ".join(each for each in fields.LIMITS if each in known.known)
                here = f"the limit here is {own}" if own else "leave it out"
                raise invalid(name, f"{name} is of another endpoint; {here}")
            if name in fields.CHOICES:
                raise invalid(name, f"{name} is of another endpoint; leave it out")
            if self.elsewhere and name not in fields.OPTIONS:
                if _TELLING.search(unicodedata.normalize("NFKC", name).casefold()):
                    self.need(name, (shown(name),))
                self.unknown(name, {name: value}, ())

    def _options(self, body: dict[str, Any]) -> None:
        stream = body.get("stream")
        if stream is not None and type(stream) is not bool:
            raise invalid("stream", "stream must be true or false")
        self.stream = stream is True
        store = body.get("store")
        if store is not None and type(store) is not bool:
            raise invalid("store", "store must be true or false")
        if store:
            self.need("store", ("store",))
        caching = body.get("prompt_cache_options")
        if caching is not None:
            if not isinstance(caching, dict):
                raise invalid("prompt_cache_options", "prompt_cache_options must be an object")
            refuse_lookalikes(caching, _CACHE_KEYS, "prompt_cache_options.")
            if caching.get("ttl") not in (None, _CACHE_LIFE):
                raise not_allowed(
                    "prompt_cache_options.ttl",
                    f"prompt_cache_options.ttl may be {_CACHE_LIFE} here: another has no price",
                )

    def _serving(self, name: str, value: object, ordinary: list[str]) -> None:
        """Take note of a value that changes the price; whether it has one is for the quote."""
        if value is None:
            return
        if not isinstance(value, str):
            raise invalid(name, f"{name} must be text")
        if value not in ordinary:
            self.need(name, (name,), f"{name} {shown(value)}")
        self.weight.served = {
            **self.weight.served,
            name: _ORDINARY if value == "default" else value,
        }

    def thinking(self, effort: object) -> None:
        """Take note of reasoning: of none, or as much as may be. Left open, the model decides."""
        if effort is not None:
            self.weight.add_thinking(0 if effort == "none" else None, own=True)

    def limit(self, value: object, name: str) -> None:
        """Take a limit of output tokens over; of several the highest counts."""
        if value is not None:
            most = self.tokens(value, (name,))
            self.max_output_tokens = max(most, self.max_output_tokens or 0)

    # -- tools

    def tools(self, value: object, where: Where) -> None:
        """Check a list of tools; raises Refusal."""
        for index, tool in enumerate(items(value, words(where))):
            self._tool(tool, (*where, index))

    def _tool(self, tool: dict[str, Any], where: Where) -> None:
        if not _TOOL_KEYS.issuperset(tool):
            refuse_lookalikes(tool, _TOOL_KEYS, f"{words(where)}.")
        kind = tool.get("type")
        if not isinstance(kind, str):
            place = f"{words(where)}.type"
            raise invalid(place, f"{place} must be text")
        base = fields.base_of(kind)
        if base in fields.CLIENT_TOOLS:
            self._client_tool(base, tool, where)
            return
        feature = self.gate(kind, (*where, "type"))
        if feature is None:
            self.unknown(base, tool, where, f"tool type {shown(kind)}")
        else:
            self.need(feature, (*where, "type"), f"tool type {shown(kind)}")
        self._server_tool(base, tool, where)

    def gate(self, kind: str, where: Where) -> str | None:
        """Return the feature that a kind of tool, part or item needs, None for none."""
        base = fields.base_of(kind)
        if base in fields.FEE_TOOLS:
            place = words(where)
            raise not_allowed(
                place,
                f"tool type {shown(kind)} is not allowed ({place}): the provider takes a fee for"
                " each use, which cannot be priced here yet",
            )
        if kind in fields.REFUSED_PARTS:
            place, why = words(where), fields.REFUSED_PARTS[kind]
            raise not_allowed(place, f"{kind} is not allowed: {why}")
        return fields.SERVER_TOOLS.get(base) or (kind if kind in fields.GATED_ITEMS else None)

    def inside(self, kind: str, value: dict[str, Any], where: Where) -> None:
        """Check a tool that runs at the provider as one of the tools of the body."""
        if (base := fields.base_of(kind)) in fields.SERVER_TOOLS:
            self._server_tool(base, value, where)

    def _client_tool(self, base: str, tool: dict[str, Any], where: Where) -> None:
        self.weight.hosted_tools += base not in ("custom", "function", "namespace")
        if base == "namespace":
            self.tools(tool.get("tools"), (*where, "tools"))
        elif base == "shell":
            environment = tool.get("environment")
            if isinstance(environment, dict):
                place = f"{words(where)}.environment."
                refuse_lookalikes(environment, _ENVIRONMENT_KEYS, place)
            if not isinstance(environment, dict) or environment.get("type") != "local":
                place = f"{words(where)}.environment"
                raise not_allowed(
                    place, f"{place} must be of type local: a container has no price here"
                )
        elif base == "tool_search":
            self.weight.loops = max(self.weight.loops, 1)

    def _server_tool(self, base: str, tool: dict[str, Any], where: Where) -> None:
        """A tool that the provider runs: only to named domains, only so often."""
        weight, place = self.weight, words(where)
        weight.hosted_tools += 1
        uses = self.tool_calls
        if uses is None:
            raise not_allowed(
                "max_tool_calls",
                f"{place} runs at the provider, so max_tool_calls must be a whole number from 1 to"
                f" {MAX_TOOL_CALLS}",
            )
        weight.loops = max(weight.loops, uses)
        if base in fields.SEARCH_TOOLS:
            weight.searches = uses
            if tool.get("external_web_access") is not False:
                filters = tool.get("filters")
                domains = filters.get("allowed_domains") if isinstance(filters, dict) else None
                self.within_domains(domains, f"{place}.filters.allowed_domains")
            return
        weight.found = _ANYTHING
        if base == "mcp":
            for name in ("connector_id", "tunnel_id"):
                if tool.get(name) is not None:
                    self.need(f"mcp_{name}", (*where, name))
            if tool.get("connector_id") is None or tool.get("server_url") is not None:
                self.url(tool.get("server_url"), (*where, "server_url"))

    # -- content

    def parts(self, value: object, where: Where) -> None:
        """Check content that is a text or a list of parts; raises Refusal."""
        if isinstance(value, dict):
            value = [value]
        if not isinstance(value, list):
            return
        for index, part in enumerate(value):
            if type(part) is str:
                continue
            if type(part) is not dict:
                place = words((*where, index))
                raise invalid(place, f"{place} must be an object")
            self.part(part, (*where, index))

    def part(self, part: dict[str, Any], where: Where) -> None:
        """Check one part."""
        if not fields.PART_KEYS.issuperset(part):
            refuse_lookalikes(part, fields.PART_KEYS, f"{words(where)}.")
        kind = part.get("type")
        if not isinstance(kind, str):
            place = f"{words(where)}.type"
            raise invalid(place, f"{place} must be text")
        if kind not in fields.PARTS and kind not in fields.REFUSED_PARTS:
            self.unknown(kind, part, where, f"part type {shown(kind)}")
            self.weight.unseen = True
            self._addresses(part, where)
        elif kind in fields.TEXTS and _REACHING.isdisjoint(part):
            return
        # Some servers go by what is there, whatever the part calls itself.
        for name, why in fields.REFUSED_PARTS.items():
            if kind == name or part.get(name) is not None:
                place = f"{words(where)}.type"
                raise not_allowed(place, f"{name} is not allowed: {why}")
        image = kind in fields.IMAGES or part.get("image_url") is not None
        if image:
            self._image(part, where)
        if kind == "file" or part.get("file") is not None:
            self._file(part.get("file"), (*where, "file"))
        names = ("file_data", "file_url") if image else ("file_data", "file_url", "file_id")
        if kind == "input_file" or any(part.get(name) is not None for name in names):
            self._file(part, where)

    def _image(self, part: dict[str, Any], where: Where) -> None:
        """An image in the body, or at an address that the provider would fetch it from."""
        source, place = part.get("image_url"), (*where, "image_url")
        if isinstance(source, dict):
            refuse_lookalikes(source, fields.SOURCE_KEYS, f"{words(place)}.")
            source, place = source.get("url"), (*place, "url")
        self.weight.images += 1
        if part.get("file_id") is not None:
            self._reference(part["file_id"], where)
        if source is not None:
            self._source(source, place)

    def _source(self, source: object, place: Where) -> None:
        """An address, or what it would lead to itself."""
        if isinstance(source, str) and source[:5].lower() == "data:":
            if source[5:11].lower() == "image/":
                self.weight.image_bytes += _base64_bytes(source)
            else:
                # Some servers read a document from where an image is expected.
                self.weight.documents += 1
                self.weight.document_bytes += _base64_bytes(source)
            return
        self.need("url_sources", place)
        self.url(source, place)

    def _reference(self, value: object, where: Where) -> None:
        """What lies at the provider; to some servers it may be an address."""
        place = (*where, "file_id")
        self.need("files", place)
        if isinstance(value, str) and ":" in value:
            self._source(value, place)

    def _addresses(self, part: dict[str, Any], where: Where) -> None:
        """Check what a part of an unknown kind leads to, as far as its names tell."""
        for name, value in part.items():
            if name.endswith("url") and name not in fields.PART_KEYS and value is not None:
                source = value.get("url") if isinstance(value, dict) else value
                if source is not None:
                    self._source(source, (*where, shown(name)))

    def _file(self, file: object, where: Where) -> None:
        """A file in the body, of whatever size when it is read; or one elsewhere."""
        if not isinstance(file, dict):
            raise invalid(words(where), f"{words(where)} must be an object")
        if not fields.PART_KEYS.issuperset(file):
            refuse_lookalikes(file, fields.PART_KEYS, f"{words(where)}.")
        self.weight.documents += 1
        if file.get("file_id") is not None:
            self._reference(file["file_id"], where)
            self.weight.unseen = True
        if file.get("file_url") is not None:
            self.need("url_sources", (*where, "file_url"))
            self.url(file["file_url"], (*where, "file_url"))
            self.weight.unseen = True
        data = file.get("file_data")
        if isinstance(data, str):
            if ":" in data[:64] and data[:5].lower() != "data:":
                self._source(data, (*where, "file_data"))
                self.weight.unseen = True
            self.weight.document_bytes += _base64_bytes(data)


def whole_number(value: object, where: str, most: int) -> int:
    """Return a whole number from 1 to `most`; raises Refusal."""
    if type(value) is not int or not 1 <= value <= most:
        raise invalid(where, f"{where} must be a whole number from 1 to {most}")
    return value


def _base64_bytes(source: str) -> int:
    """Return how many bytes of a data URL are base64; only those are no text."""
    head, separator, data = source.partition(";base64,")
    if not separator:
        return 0 if source[:5].lower() == "data:" else len(source)
    return len(data) if len(head) < 256 else 0
