"""The table of fields against the official client's types: what is new there is named here."""

import importlib.util
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_create_params
from typing_extensions import is_typeddict

from daypass_proxy.providers.anthropic_body import _DATED
from daypass_proxy.providers.anthropic_fields import (
    BLOCKS,
    CLIENT_TOOLS,
    FALLBACK_KEYS,
    FEE_TOOLS,
    FIELDS,
    GATED_KINDS,
    KNOWN,
    NESTING,
    REFERENCES,
    SCALARS,
    SERVER_TOOLS,
    SOURCES,
    STRUCTURES,
    TOOL_KEYS,
    TOOL_OPTIONS,
)

ROOT = Path(__file__).parents[2]
REQUESTS = (
    message_create_params.MessageCreateParamsNonStreaming,
    message_create_params.MessageCreateParamsStreaming,
    beta_create_params.MessageCreateParamsNonStreaming,
    message_count_tokens_params.MessageCountTokensParams,
    beta_count_params.MessageCountTokensParams,
)
# `betas` becomes the header anthropic-beta.
NOT_IN_THE_BODY = {"betas"}
# Names that stand for a model, a price, a place or a state, wherever they occur.
TELLING = {
    *("model", "max_tokens", "max_uses", "budget_tokens", "total", "speed", "bill_to"),
    *("url", "allowed_domains", "server_name", "mcp_server_name", "authorization_token"),
    *("file_id", "skill_id", "skills", "previous_message_id", "token"),
}
WRAPPERS = {"Required", "NotRequired", "Annotated"}


def members_of(hint: Any) -> Iterator[Any]:
    """Yield the types that a hint allows, without wrappers and unions."""
    origin = get_origin(hint)
    if getattr(origin, "__name__", getattr(origin, "_name", "")) in WRAPPERS:
        yield from members_of(get_args(hint)[0])
    elif origin is typing.Union or type(hint).__name__ == "UnionType":
        for each in get_args(hint):
            yield from members_of(each)
    else:
        yield hint


@cache
def fields_of(kind: Any) -> dict[str, Any]:
    """The fields of one object of the client."""
    return get_type_hints(kind, include_extras=True)


def objects_in(hint: Any) -> Iterator[Any]:
    """Yield the objects that a hint allows, itself or in lists and values."""
    for each in members_of(hint):
        if is_typeddict(each):
            yield each
        elif get_origin(each) not in (None, typing.Literal):
            for inner in get_args(each):
                yield from objects_in(inner)


def all_objects() -> set[Any]:
    """Every object that a request may hold."""
    found: set[Any] = set()
    waiting = list(REQUESTS)
    while waiting:
        kind = waiting.pop()
        if kind not in found:
            found.add(kind)
            waiting += [each for hint in fields_of(kind).values() for each in objects_in(hint)]
    return found


def type_of(kind: Any) -> str | None:
    """The value of `type` of an object."""
    for each in members_of(fields_of(kind).get("type")):
        if get_origin(each) is typing.Literal:
            return str(get_args(each)[0])
    return None


def base(name: str) -> str:
    """A kind of tool without its date."""
    match = _DATED.fullmatch(name)
    return match[1] if match else name


def below(*places: str, of: set[Any]) -> set[str]:
    """The types of the objects that stand in these fields of the given objects."""
    kinds = (
        type_of(each)
        for kind in of
        for name, hint in fields_of(kind).items()
        if name in places
        for each in objects_in(hint)
    )
    return {kind for kind in kinds if kind is not None}


OBJECTS = all_objects()
BLOCK_OBJECTS = {kind for kind in OBJECTS if type_of(kind) in BLOCKS | GATED_KINDS.keys()}


def test_every_field_is_known() -> None:
    """Row 32: a new field of a request is noticed; objects and lists are known to be such."""
    asked = {name: hint for kind in REQUESTS for name, hint in fields_of(kind).items()}
    assert asked.keys() - NOT_IN_THE_BODY - KNOWN == set()
    for name, hint in asked.items():
        scalar = all(each in (str, int, float, bool, type(None)) or is_literal(each)
                     for each in members_of(hint))  # fmt: skip
        if name not in NOT_IN_THE_BODY | {"fallback_credit_token", "container"}:
            assert name in (SCALARS if scalar else STRUCTURES), name


def is_literal(hint: Any) -> bool:
    """Whether a hint lists values."""
    return get_origin(hint) is typing.Literal


def test_every_tool_is_known() -> None:
    """Row 34: a new kind of tool is noticed, and so is a new option of one."""
    known = CLIENT_TOOLS | SERVER_TOOLS.keys() | FEE_TOOLS
    tools = below("tools", "definition", of={*REQUESTS, *OBJECTS}) - {"tool_reference"}
    assert {base(name) for name in tools} - known == set()
    assert len(tools) > 20
    assert not TOOL_KEYS & TOOL_OPTIONS


def test_every_block_and_source_is_known() -> None:
    """Rows 34, 35: a new kind of block or source is noticed."""
    turns = {kind for kind in OBJECTS if "role" in fields_of(kind)}
    assert below("content", of=turns | BLOCK_OBJECTS) - BLOCKS - GATED_KINDS.keys() == set()
    assert below("tool_changes", of=BLOCK_OBJECTS) - BLOCKS == set()
    assert below("system", of=set(REQUESTS)) - BLOCKS == set()
    assert below("source", of=BLOCK_OBJECTS) - SOURCES - GATED_KINDS.keys() == set()
    changes = below("tool", of=BLOCK_OBJECTS)
    assert changes - REFERENCES == {"tool_definition"}
    assert len(BLOCK_OBJECTS) > 40


def test_blocks_nest_only_where_it_is_looked() -> None:
    """Rows 34, 35: a field of a block that may hold a block, a source or a tool is looked into."""
    looked_at = BLOCKS | GATED_KINDS.keys() | SOURCES | REFERENCES | {"tool_definition"}
    for kind in BLOCK_OBJECTS:
        for name, hint in fields_of(kind).items():
            holds = {type_of(each) for each in objects_in(hint)} & looked_at
            assert not holds or name in NESTING | FIELDS["inert"].keys(), (kind, name, holds)


def test_fallbacks_are_known() -> None:
    """Row 32: a new field of a fallback is noticed."""
    (fallback,) = {kind for kind in OBJECTS if kind.__name__ == "BetaFallbackParam"}
    assert fields_of(fallback).keys() == FALLBACK_KEYS


def test_every_telling_field_was_looked_at() -> None:
    """Rows 32, 34-37: a new field that names a model, price, place or state is noticed."""
    found = {
        f"{base(type_of(kind) or kind.__name__.removeprefix('Beta'))}.{name}"
        for kind in OBJECTS - set(REQUESTS)
        for name in fields_of(kind).keys() & TELLING
    }
    found |= {f"ContainerParams.{name}" for name in ("id",)}
    assert found == FIELDS["reviewed"].keys()


def test_the_page_is_the_table() -> None:
    """docs/reference/fields.md is what `python proxy/tools/make_fields.py` writes."""
    path = ROOT / "proxy" / "tools" / "make_fields.py"
    spec = importlib.util.spec_from_file_location("make_fields", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.TARGET.read_text(encoding="utf-8") == tool.page()
