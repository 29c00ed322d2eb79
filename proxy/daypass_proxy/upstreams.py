"""Servers of one's own that speak OpenAI's API: vLLM, llama.cpp, Ollama, LiteLLM and their like.

Read by `settings` from the JSON file that DAYPASS_UPSTREAMS names. Each has a name, which is its
`provider` in a scope and the beginning of its paths: `/<name>/v1/chat/completions`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from daypass_core.scope import is_upstream_name
from daypass_proxy.key_references import KeySource, parse_keys


@dataclass(frozen=True, slots=True)
class Upstream:
    """One of them. `url` is what a client would have as its base URL, as a rule with /v1.

    `keys` maps a tenant, or "*" for all others, to where the key lives; empty where it asks for
    none. `prices` are entries as in a price file.
    """

    url: str
    keys: Mapping[str, KeySource] = field(default_factory=lambda: MappingProxyType({}))
    prices: tuple[Mapping[str, Any], ...] = ()


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    keys: str = ""
    prices: list[dict[str, Any]] = []


def read_upstreams(path: Path, parse_url: Callable[[str], str]) -> dict[str, Upstream]:
    """Return the upstreams of a file by name; raises ValueError that repeats no value of it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    try:
        document = json.loads(content, object_pairs_hook=_each_once)
        entries = msgspec.convert(document, dict[str, Any])
    except msgspec.ValidationError:
        raise ValueError("must be a JSON object of upstreams by name") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    return {name: _upstream(name, entry, parse_url) for name, entry in entries.items()}


def _upstream(name: str, entry: Any, parse_url: Callable[[str], str]) -> Upstream:
    if not is_upstream_name(name):
        raise ValueError(
            f"{name[:64]!r} cannot be the name of an upstream: lower case letters, digits and"
            " single hyphens, at most 32, and no name of a provider or path of ours"
        )
    try:
        read = msgspec.convert(entry, _Entry)
        keys = parse_keys(read.keys) if read.keys else {}
        return Upstream(parse_url(read.url), MappingProxyType(keys), tuple(read.prices))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name appears twice in one object; keep one")
    return fields
