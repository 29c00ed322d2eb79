"""Scope: what a token may call, in the language of RFC 9396 `authorization_details`.

Profiles, sandbox requests and tokens all carry this one form. Parsing is strict, because what is
not understood cannot be enforced: an unknown type, field, provider or endpoint is refused, not
skipped. `narrow` is how every derived scope is made, so no step can widen one.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

OPENAI_ENDPOINTS = ("chat_completions", "responses", "embeddings", "models")
ENDPOINTS: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("messages", "count_tokens", "models"),
    "openai": OPENAI_ENDPOINTS,
}
"""The endpoints of the providers that are built in; nothing else can be put into a scope of one."""
UPSTREAM_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
"""How an upstream is called that a proxy is told of in its settings."""
LONGEST_UPSTREAM_NAME = 32
RESERVED_NAMES = frozenset(
    {*ENDPOINTS, "api", "bedrock", "chat", "completions", "embeddings", "gemini", "healthz"}
    | {"livez", "messages", "metrics", "models", "readyz", "responses", "v1", "v1beta", "vertex"}
)
"""Names that no such upstream has: a provider's that is or may be built in, or part of a path."""

DETAIL_TYPE = "llm_inference"
_ROOT = "authorization_details"
_REQUIRED = frozenset({"type", "provider", "endpoints", "models"})
_OPTIONAL = frozenset({"features", "allowed_domains", "max_output_tokens", "body"})
BODIES = ("strict", "compat", "open")
"""How much of a body may be unknown to the proxy, from the least on: nothing, options, kinds."""
USUAL_BODY = "compat"
_MODEL = re.compile(r"[!-)+-~]{1,128}\*?|\*")  # printable ASCII, '*' at the end only
_FEATURE = re.compile(r"[a-z][a-z0-9_]{0,63}")
_DOMAIN = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)+"
)
_MAX_OUTPUT_TOKENS = 10_000_000
_MAX_ITEMS = 64
_MAX_BYTES = 2048
"""Most bytes of a scope's wire form: what fits into a token of 4 KiB beside everything else."""


class ScopeError(ValueError):
    """A scope that cannot be read or goes too far; `field` is the path of the offending part."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Detail:
    """What may be called at one provider.

    Models are exact or end in one `*`, matched on the whole string. `features` and
    `allowed_domains` list what is switched on: empty means none. `max_output_tokens` None means
    no cap from the scope. `body` is one of BODIES.
    """

    provider: str
    endpoints: tuple[str, ...]
    models: tuple[str, ...]
    features: tuple[str, ...] = ()
    allowed_domains: tuple[str, ...] = ()
    max_output_tokens: int | None = None
    body: str = USUAL_BODY

    def allows_endpoint(self, endpoint: str) -> bool:
        """Say whether this endpoint may be called."""
        return endpoint in self.endpoints

    def allows_model(self, model: str) -> bool:
        """Say whether this model, as decoded from the request, may be called.

        A `*` in a request is never a pattern and no model is called that: refused.
        """
        if "*" in model:
            return False
        # Not any(): asked for every request, and a generator takes longer than the comparison.
        for pattern in self.models:  # noqa: SIM110
            if _covers(pattern, model):
                return True
        return False


@dataclass(frozen=True, slots=True)
class Scope:
    """One detail per provider."""

    details: tuple[Detail, ...]

    def for_provider(self, provider: str) -> Detail | None:
        """Return the detail of this provider, None when it may not be called at all."""
        for detail in self.details:
            if detail.provider == provider:
                return detail
        return None


def endpoints_of(provider: str) -> tuple[str, ...] | None:
    """Return the endpoints that a scope may name of a provider, None where there can be none.

    Which upstreams there are beside those built in, only the settings of a proxy know: whatever is
    called like one has the endpoints of OpenAI's API. A name that no proxy knows opens nothing.
    """
    if provider in ENDPOINTS:
        return ENDPOINTS[provider]
    return OPENAI_ENDPOINTS if is_upstream_name(provider) else None


def is_upstream_name(name: str) -> bool:
    """Say whether an upstream of the settings may be called so."""
    fits = len(name) <= LONGEST_UPSTREAM_NAME and UPSTREAM_NAME.fullmatch(name) is not None
    return fits and name not in RESERVED_NAMES


def parse_scope(value: object) -> Scope:
    """Read decoded JSON into a Scope; raises ScopeError naming the field."""
    if not isinstance(value, list) or not value:
        raise ScopeError(_ROOT, "must be a list of at least one detail")
    details = tuple(_parse_detail(item, f"{_ROOT}[{i}]") for i, item in enumerate(value))
    seen: set[str] = set()
    for i, detail in enumerate(details):
        if detail.provider in seen:
            raise ScopeError(f"{_ROOT}[{i}].provider", "must be given once only")
        seen.add(detail.provider)
    scope = Scope(details)
    size = len(json.dumps(scope_to_wire(scope), separators=(",", ":")))
    if size > _MAX_BYTES:
        raise ScopeError(
            _ROOT, f"is {size} bytes of JSON, at most {_MAX_BYTES} fit into a token: name less"
        )
    return scope


def scope_to_wire(scope: Scope) -> list[dict[str, object]]:
    """Return the JSON form; parts that are not set are left out."""
    return [_detail_to_wire(detail) for detail in scope.details]


def narrow(parent: Scope, child: Scope) -> Scope:
    """Return `child` when `parent` covers it in every dimension; raises ScopeError otherwise."""
    for i, detail in enumerate(child.details):
        field = f"{_ROOT}[{i}]"
        covering = parent.for_provider(detail.provider)
        if covering is None:
            raise ScopeError(f"{field}.provider", f"{detail.provider} is not allowed")
        _check_covered(covering, detail, field)
    return child


def _covers(pattern: str, wanted: str) -> bool:
    """Say whether every model `wanted` can mean is meant by `pattern`; both may end in `*`."""
    if pattern.endswith("*"):
        return wanted.startswith(pattern[:-1])
    return wanted == pattern


def _check_covered(parent: Detail, child: Detail, field: str) -> None:
    for name in ("endpoints", "features"):
        allowed = getattr(parent, name)
        for i, item in enumerate(getattr(child, name)):
            if item not in allowed:
                raise ScopeError(f"{field}.{name}[{i}]", f"{item} is not allowed")
    for i, domain in enumerate(child.allowed_domains):
        # A domain allows everything below it, so one below it is less.
        if not any(f".{domain}".endswith(f".{around}") for around in parent.allowed_domains):
            raise ScopeError(f"{field}.allowed_domains[{i}]", f"{domain} is not allowed")
    for i, model in enumerate(child.models):
        if not any(_covers(pattern, model) for pattern in parent.models):
            raise ScopeError(f"{field}.models[{i}]", f"{model} is not allowed")
    cap = parent.max_output_tokens
    if cap is not None and (child.max_output_tokens is None or child.max_output_tokens > cap):
        raise ScopeError(f"{field}.max_output_tokens", f"must be given and at most {cap}")
    if BODIES.index(child.body) > BODIES.index(parent.body):
        allowed = " or ".join(BODIES[: BODIES.index(parent.body) + 1])
        raise ScopeError(f"{field}.body", f"must be {allowed}; left out it is {USUAL_BODY}")


def _parse_detail(value: object, field: str) -> Detail:
    if not isinstance(value, dict):
        raise ScopeError(field, "must be an object")
    for key in value:
        if key not in _REQUIRED and key not in _OPTIONAL:
            raise ScopeError(f"{field}.{key}", "unknown field")
    for key in sorted(_REQUIRED):
        if key not in value:
            raise ScopeError(f"{field}.{key}", "is missing")
    if value["type"] != DETAIL_TYPE:
        raise ScopeError(f"{field}.type", f"must be {DETAIL_TYPE}")
    provider = value["provider"]
    known = endpoints_of(provider) if isinstance(provider, str) else None
    if known is None:
        raise ScopeError(f"{field}.provider", "unknown provider")
    endpoints = _strings(value["endpoints"], f"{field}.endpoints")
    for i, endpoint in enumerate(endpoints):
        if endpoint not in known:
            raise ScopeError(f"{field}.endpoints[{i}]", f"unknown endpoint of {provider}")
    return Detail(
        provider=provider,
        endpoints=endpoints,
        models=_strings(value["models"], f"{field}.models", _MODEL),
        features=_strings(value.get("features", []), f"{field}.features", _FEATURE, least=0),
        allowed_domains=_strings(
            value.get("allowed_domains", []), f"{field}.allowed_domains", _DOMAIN, least=0
        ),
        max_output_tokens=_cap(value, f"{field}.max_output_tokens"),
        body=_body(value, f"{field}.body"),
    )


def _strings(
    value: object, field: str, pattern: re.Pattern[str] | None = None, *, least: int = 1
) -> tuple[str, ...]:
    """Read a list of different strings."""
    if not isinstance(value, list) or not least <= len(value) <= _MAX_ITEMS:
        raise ScopeError(field, f"must be a list of {least} to {_MAX_ITEMS} strings")
    for i, item in enumerate(value):
        if not isinstance(item, str):
            raise ScopeError(f"{field}[{i}]", "must be a string")
        if pattern is not None and not pattern.fullmatch(item):
            raise ScopeError(f"{field}[{i}]", "is not of the expected form")
        if item in value[:i]:
            raise ScopeError(f"{field}[{i}]", "must be given once only")
    return tuple(value)


def _cap(detail: Mapping[str, object], field: str) -> int | None:
    if "max_output_tokens" not in detail:
        return None
    value = detail["max_output_tokens"]
    # type() and not isinstance(): true is an int in Python and must not become a cap of 1.
    if type(value) is not int or not 1 <= value <= _MAX_OUTPUT_TOKENS:
        raise ScopeError(field, f"must be an integer from 1 to {_MAX_OUTPUT_TOKENS}")
    return value


def _body(detail: Mapping[str, object], field: str) -> str:
    value = detail.get("body", USUAL_BODY)
    if not isinstance(value, str) or value not in BODIES:
        raise ScopeError(field, f"must be {', '.join(BODIES[:-1])} or {BODIES[-1]}")
    return value


def _detail_to_wire(detail: Detail) -> dict[str, object]:
    wire: dict[str, object] = {
        "type": DETAIL_TYPE,
        "provider": detail.provider,
        "endpoints": list(detail.endpoints),
        "models": list(detail.models),
    }
    if detail.features:
        wire["features"] = list(detail.features)
    if detail.allowed_domains:
        wire["allowed_domains"] = list(detail.allowed_domains)
    if detail.max_output_tokens is not None:
        wire["max_output_tokens"] = detail.max_output_tokens
    if detail.body != USUAL_BODY:
        wire["body"] = detail.body
    return wire
