"""What bodies of OpenAI's API may ask for: an accepted and a refused example of each class."""

import json
from typing import Any

import pytest

from daypass_core.problem import Code
from daypass_proxy.providers.openai_check import IMAGE_TOKENS
from tests.fakes.openai import (
    CHAT,
    EMBEDDINGS,
    PIXEL,
    RESPONSES,
    detail,
    items,
    read,
    refused,
    user,
)

LINK = "https://files.example.com/a.png"
WEB: dict[str, Any] = {"type": "web_search", "filters": {"allowed_domains": ["example.com"]}}
MCP: dict[str, Any] = {
    "type": "mcp",
    "server_label": "x",
    "server_url": "https://mcp.example.com/sse",
}
NAMESPACE: dict[str, Any] = {"type": "namespace", "name": "n", "description": "d", "tools": []}
DOMAINS = ("example.com",)


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES, EMBEDDINGS])
def test_model_scope(endpoint: str) -> None:
    """B39, row 32: the model of the body must be in scope, and the refusal lists what is."""
    problem = refused(endpoint, {"model": "o3"})
    assert (problem.code, problem.field) == (Code.MODEL_NOT_ALLOWED, "model")
    assert problem.hint == "allowed: gpt-4o*"
    assert read(endpoint, {"model": "gpt-4o-mini"}).model == "gpt-4o-mini"


@pytest.mark.parametrize("model", [None, "", 3, ["gpt-4o"], "gpt-4o*", "gpt 4o"])
def test_model_must_be_a_name(model: object) -> None:
    """A model that is no plain name is refused, whatever the scope."""
    assert refused(CHAT, {"model": model}).field == "model"


# -- options pass, kinds do not


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES])
@pytest.mark.parametrize("value", ["x", 1, 1.5, True, None])
def test_unknown_scalars_pass(endpoint: str, value: object) -> None:
    """Open on options: an unknown scalar goes up unchanged."""
    call = read(endpoint, {"brand_new": value})
    assert json.loads(call.body)["brand_new"] == value


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES, EMBEDDINGS])
@pytest.mark.parametrize("value", [{}, [], {"a": 1}, [1]])
def test_unknown_structures_need_a_feature(endpoint: str, value: object) -> None:
    """Closed on kinds: an unknown object or list names the feature that would allow it."""
    problem = refused(endpoint, {"brand_new": value})
    assert (problem.code, problem.field) == (Code.FIELD_NOT_ALLOWED, "brand_new")
    assert '"brand_new"' in problem.title
    assert read(endpoint, {"brand_new": value}, detail("brand_new")).unseen


@pytest.mark.parametrize(
    "key", ["Model", "\uff4dodel", "MESSAGES", " store", "Stream_Options", "N"]
)
def test_lookalikes(key: str) -> None:
    """Row 31: a key that only looks like one we decide by is refused."""
    assert refused(CHAT, {key: "x"}).code is Code.INVALID_REQUEST


@pytest.mark.parametrize(
    ("endpoint", "name"),
    [(CHAT, "n"), (CHAT, "store"), (RESPONSES, "background"), (EMBEDDINGS, "dimensions")],
)
def test_scalars_are_no_structures(endpoint: str, name: str) -> None:
    """An object in the place of a scalar is refused, for nobody knows how it would be read."""
    assert refused(endpoint, {name: {"a": 1}}).field == name


# -- state of others, and where answers are left


@pytest.mark.parametrize(
    ("endpoint", "changes", "feature"),
    [
        (RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id"),
        (RESPONSES, {"conversation": "conv_1"}, "conversation"),
        (RESPONSES, {"conversation": {"id": "conv_1"}}, "conversation"),
        (RESPONSES, {"prompt": {"id": "pmpt_1"}}, "prompt"),
        (RESPONSES, items({"type": "item_reference", "id": "msg_1"}), "item_reference"),
        (RESPONSES, items({"id": "msg_1"}), "item_reference"),
        (
            RESPONSES,
            items({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}),
            "files",
        ),
        (
            RESPONSES,
            items({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}),
            "files",
        ),
        (CHAT, user({"type": "file", "file": {"file_id": "f"}}), "files"),
        (CHAT, {"store": True}, "store"),
        (RESPONSES, {"store": True}, "store"),
    ],
)
def test_state_needs_a_feature(endpoint: str, changes: dict[str, Any], feature: str) -> None:
    """Row 36: what lies at the provider for all tenants is out of reach without a feature."""
    problem = refused(endpoint, changes)
    assert problem.code is Code.FIELD_NOT_ALLOWED
    assert f'the feature "{feature}"' in problem.title
    call = read(endpoint, changes, detail(feature))
    assert call.unseen or feature in ("store", "files")


def test_answers_are_not_stored() -> None:
    """Left out, `store` means true there: false is put in, but for a profile that may store."""
    assert json.loads(read(RESPONSES).body) == {"store": False, "model": "gpt-4o", "input": "hi"}
    assert json.loads(read(RESPONSES, {"store": None}).body)["store"] is False
    assert "store" not in json.loads(read(RESPONSES, None, detail("store")).body)
    unchanged = b'{"model": "gpt-4o", "store": false, "input": "hi"}'
    assert read(RESPONSES, body=unchanged).body == unchanged
    assert json.loads(read(CHAT).body)["store"] is False
    assert "store" not in json.loads(read(CHAT, None, detail("store")).body)
    own = read(CHAT, None, detail(provider="own"), provider="own")
    assert "store" not in json.loads(own.body)


@pytest.mark.parametrize("features", [(), ("background", "background_options")])
def test_background_is_refused(features: tuple[str, ...]) -> None:
    """An answer that comes elsewhere could not be counted, so no feature allows it."""
    for changes in ({"background": True}, {"background_options": {"a": 1}}):
        assert refused(RESPONSES, changes, detail(*features)).code is Code.FIELD_NOT_ALLOWED
    assert read(RESPONSES, {"background": False}).billable


# -- ways out through the provider


@pytest.mark.parametrize(
    ("endpoint", "changes"),
    [
        (CHAT, user({"type": "image_url", "image_url": {"url": LINK}})),
        (CHAT, user({"type": "image_url", "image_url": LINK})),
        (
            RESPONSES,
            items({"role": "user", "content": [{"type": "input_image", "image_url": LINK}]}),
        ),
        (
            RESPONSES,
            items({"role": "user", "content": [{"type": "input_file", "file_url": LINK}]}),
        ),
        (
            RESPONSES,
            items(
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [{"type": "input_image", "image_url": LINK}],
                }
            ),
        ),
        (
            RESPONSES,
            items(
                {
                    "type": "computer_call_output",
                    "call_id": "c",
                    "output": {"type": "computer_screenshot", "image_url": LINK},
                }
            ),
        ),
    ],
)
def test_addresses_are_fetched_by_nobody(endpoint: str, changes: dict[str, Any]) -> None:
    """Row 34: an address needs the feature and a host within the domains of the scope."""
    assert '"url_sources"' in refused(endpoint, changes).title
    elsewhere = detail("url_sources", domains=("other.test",))
    assert "within the domains" in refused(endpoint, changes, elsewhere).title
    read(endpoint, changes, detail("url_sources", domains=DOMAINS))


@pytest.mark.parametrize(
    "link",
    [
        "http://files.example.com/a.png",
        "https://files.example.com@evil.test/a",
        "https://evil.test/?x=.example.com",
        "https://files.example.com.evil.test/",
        "file:///etc/passwd",
        "ftp://files.example.com/",
        "//files.example.com/",
        "",
        " data:image/png;base64,aa",
    ],
)
def test_addresses_in_disguise(link: str) -> None:
    """Row 34: only a plain https URL of an allowed host is one."""
    scope = detail("url_sources", domains=DOMAINS)
    assert refused(CHAT, user({"type": "image_url", "image_url": {"url": link}}), scope)


def test_images_in_the_body_are_counted() -> None:
    """An image in the body passes; its base64 is no text, and it is held at its fixed maximum."""
    call = read(CHAT, user({"type": "image_url", "image_url": {"url": PIXEL}}))
    assert (call.images, call.image_bytes) == (1, len(PIXEL.partition(",")[2]))
    assert call.image_tokens == IMAGE_TOKENS
    given = {"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]}
    assert read(RESPONSES, items(given)).images == 1


def test_files_in_the_body_are_counted() -> None:
    """A file in the body passes and counts as a document, of whatever length when it is read."""
    file = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}
    call = read(CHAT, user({"type": "file", "file": file}))
    assert (call.documents, call.document_bytes) == (1, 8)
    part = {"type": "input_file", **file}
    assert read(RESPONSES, items({"role": "user", "content": [part]})).documents == 1


# -- tools


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "name": "f", "parameters": {}},
        {"type": "function", "function": {"name": "f"}},
        {"type": "custom", "name": "f"},
        {"type": "local_shell"},
        {"type": "apply_patch"},
        {"type": "computer_use_preview", "display_width": 1, "display_height": 1},
        {"type": "shell", "environment": {"type": "local"}},
        {"type": "tool_search"},
        NAMESPACE | {"tools": [{"type": "function", "name": "f"}]},
    ],
)
def test_tools_of_the_client_pass(tool: dict[str, Any]) -> None:
    """What runs in the sandbox needs no feature."""
    read(RESPONSES, {"tools": [tool]})


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "file_search", "vector_store_ids": ["vs_1"]},
        {"type": "image_generation", "model": "gpt-image-2"},
        {"type": "web_search_preview"},
        {"type": "web_search_preview_2025_03_11"},
        {"type": "programmatic_tool_calling"},
        {"type": "shell"},
        {"type": "shell", "environment": {"type": "container_auto"}},
        NAMESPACE | {"tools": [{"type": "code_interpreter"}]},
    ],
)
def test_tools_with_a_fee_are_refused(tool: dict[str, Any]) -> None:
    """What cannot be priced is refused, whatever the features, also within a namespace."""
    everything = detail(*{str(tool["type"]), "code_interpreter", "file_search", "shell"})
    problem = refused(RESPONSES, {"tools": [tool], "max_tool_calls": 1}, everything)
    assert problem.code is Code.FIELD_NOT_ALLOWED
    late = items({"type": "additional_tools", "role": "developer", "tools": [tool]})
    assert refused(RESPONSES, late | {"max_tool_calls": 1}, everything)
    found = items({"type": "tool_search_output", "tools": [tool]})
    assert refused(RESPONSES, found | {"max_tool_calls": 1}, everything)


def test_web_search() -> None:
    """A search needs the feature, a bound of uses, and domains within those of the scope."""
    scope = detail("web_search", domains=DOMAINS)
    assert '"web_search"' in refused(RESPONSES, {"tools": [WEB], "max_tool_calls": 3}).title
    assert "max_tool_calls" in refused(RESPONSES, {"tools": [WEB]}, scope).title
    for calls in (0, 101, True, "3", 1.0):
        assert refused(RESPONSES, {"tools": [WEB], "max_tool_calls": calls}, scope)
    none: list[Any] = [None, {}, {"allowed_domains": []}, {"allowed_domains": ["evil.test"]}]
    for filters in none:
        wide = {"tools": [WEB | {"filters": filters}], "max_tool_calls": 3}
        assert "within those of this sandbox" in refused(RESPONSES, wide, scope).title
    call = read(RESPONSES, {"tools": [WEB], "max_tool_calls": 3}, scope)
    assert (call.searches, call.loops, call.hosted_tools) == (3, 3, 1)
    assert call.found >= 3 * 25_000
    kept = {"type": "web_search_2025_08_26", "external_web_access": False}
    assert read(RESPONSES, {"tools": [kept], "max_tool_calls": 1}, scope).searches == 1


def test_mcp() -> None:
    """Row 35: a server elsewhere needs the feature and an address within the domains."""
    scope, asked = detail("mcp", domains=DOMAINS), {"tools": [MCP], "max_tool_calls": 5}
    assert '"mcp"' in refused(RESPONSES, asked).title
    assert "max_tool_calls" in refused(RESPONSES, {"tools": [MCP]}, scope).title
    evil = {"tools": [MCP | {"server_url": "https://evil.test/"}], "max_tool_calls": 5}
    assert "within the domains" in refused(RESPONSES, evil, scope).title
    for name in ("connector_id", "tunnel_id"):
        other = {"tools": [MCP | {name: "x"}], "max_tool_calls": 5}
        assert f'"mcp_{name}"' in refused(RESPONSES, other, scope).title
    call = read(RESPONSES, asked, scope)
    assert (call.loops, call.found) == (5, 10**9)


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES])
def test_unknown_tools_need_a_feature_and_a_bound(endpoint: str) -> None:
    """A tool of an unknown kind is refused by its name; with the feature it needs a bound too."""
    tool = {"tools": [{"type": "teleport"}]}
    assert '"teleport"' in refused(endpoint, tool).title
    assert "max_tool_calls" in refused(endpoint, tool, detail("teleport")).title


@pytest.mark.parametrize("part", [{"type": "hologram"}, {"type": "video_url", "video_url": {}}])
def test_unknown_parts_need_a_feature(part: dict[str, Any]) -> None:
    """A part of an unknown kind is refused by its name, and held at the whole window with it."""
    kind = part["type"]
    assert f'"{kind}"' in refused(CHAT, user(part)).title
    assert read(CHAT, user(part), detail(kind)).unseen
    item = {"role": "user", "content": [part]}
    assert f'"{kind}"' in refused(RESPONSES, items(item)).title
    assert '"time_machine"' in refused(RESPONSES, items({"type": "time_machine"})).title
