"""What bodies of OpenAI's API lead to, wherever it is written and however it is called."""

from typing import Any

import pytest

from daypass_core.problem import Code
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

LINK = "http://169.254.169.254/latest"
PDF = "data:application/pdf;base64,AAAA"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "x", "image_url": {"url": LINK}},
        {"type": "text", "text": "x", "file": {"file_data": LINK}},
        {"type": "text", "text": "x", "file_url": LINK},
        {"type": "text", "text": "x", "file_id": "file-1"},
        {"type": "refusal", "refusal": "x", "image_url": LINK},
        {"type": "image_url", "image_url": {"url": PIXEL}, "file_url": LINK},
        {"type": "image_url", "image_url": {"url": PIXEL}, "file": {"file_data": LINK}},
        {"type": "file", "file": {"file_data": LINK}},
        {"type": "file", "file": {"file_data": "gs://bucket/a"}},
        {"type": "file", "file": {"file_data": "QUJD", "file_url": LINK}},
        {"type": "text", "text": "x", "input_audio": {"data": "", "format": "wav"}},
    ],
)
@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES])
def test_whatever_a_part_calls_itself(endpoint: str, part: dict[str, Any]) -> None:
    """Row 35: an address beside a text is looked at like that of an image or a file."""
    changes = user(part) if endpoint == CHAT else items({"role": "user", "content": [part]})
    assert refused(endpoint, changes).code is Code.FIELD_NOT_ALLOWED
    scope = detail("url_sources", domains=("example.com",))
    assert refused(endpoint, changes, scope).code is Code.FIELD_NOT_ALLOWED


@pytest.mark.parametrize(
    "item",
    [
        {"type": "mcp_call", "output": [{"type": "input_image", "image_url": LINK}]},
        {"type": "shell_call_output", "output": [{"type": "input_file", "file_url": LINK}]},
        {"type": "program_output", "output": {"type": "input_image", "image_url": LINK}},
        {"type": "code_interpreter_call", "outputs": [{"type": "input_image", "image_url": LINK}]},
        {"type": "function_call_output", "output": [{"type": "input_image", "image_url": LINK}]},
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "file_id": "f"}},
    ],
)
def test_parts_in_results_are_looked_at(item: dict[str, Any]) -> None:
    """Also among results that have a shape of their own."""
    assert refused(RESPONSES, items(item)).code is Code.FIELD_NOT_ALLOWED


def test_results_in_a_shape_of_their_own_pass() -> None:
    """Texts of shells, programs and interpreters are no parts."""
    shell = {"type": "shell_call_output", "output": [{"stdout": "x", "stderr": ""}]}
    code = {"type": "code_interpreter_call", "outputs": [{"type": "logs", "logs": "x"}]}
    assert read(RESPONSES, items(shell, code, {"type": "mcp_call", "output": "x"})).billable


@pytest.mark.parametrize(
    "changes",
    [
        user({"type": "text", "text": "x", "Image_URL": {"url": LINK}}),
        user({"type": "image_url", "image_url": {"url": PIXEL, "URL": LINK}}),
        user({"type": "text", "text": "x", "Type": "image_url"}),
        user({"type": "file", "file": {"file_data": "QUJD", "File_Id": "file-1"}}),
        {"messages": [{"role": "user", "content": "x", "Content": []}]},
        {"messages": [{"role": "user", "content": "x", "\uff43ontent": []}]},
        {"stream": True, "stream_options": {"include_usage": True, "include_u\u017fage": False}},
    ],
)
def test_lookalikes_within(changes: dict[str, Any]) -> None:
    """Row 31: some servers read names whatever their case, and take the last one."""
    assert refused(CHAT, changes).code is Code.INVALID_REQUEST


def test_lookalikes_in_items_and_places() -> None:
    """Row 31: also of an item, and of where a shell runs."""
    item = {"type": "message", "role": "user", "content": "x", "Content": []}
    assert "looks like" in refused(RESPONSES, items(item)).title
    shell = {"type": "shell", "environment": {"type": "local", "Type": "container_auto"}}
    assert "looks like" in refused(RESPONSES, {"tools": [shell]}).title


def test_a_document_as_an_image_is_held_as_one() -> None:
    """An image has a most of tokens; a document in its place may fill the window."""
    picture = read(CHAT, user({"type": "image_url", "image_url": {"url": PIXEL}}))
    assert (picture.images, picture.documents) == (1, 0)
    paper = read(CHAT, user({"type": "image_url", "image_url": {"url": PDF}}))
    assert (paper.documents, paper.image_bytes) == (1, 0)


def test_an_id_that_is_an_address() -> None:
    """Some servers fetch what an id of a file names, so the domains hold for it too."""
    scope = detail("files", "url_sources", domains=("example.com",))
    part = {"type": "file", "file": {"file_id": LINK}}
    assert refused(CHAT, user(part), scope).code is Code.FIELD_NOT_ALLOWED
    for name in ("https://a.example.com/x", "file-1"):
        assert read(CHAT, user({"type": "file", "file": {"file_id": name}}), scope).unseen


def test_addresses_of_unknown_parts() -> None:
    """A part that a feature allows leads no further than any other."""
    part = {"type": "video_url", "video_url": {"url": LINK}}
    scope = detail("video_url", "url_sources", domains=("example.com",))
    assert refused(CHAT, user(part), scope).code is Code.FIELD_NOT_ALLOWED
    there = {"type": "video_url", "video_url": {"url": "https://example.com/v"}}
    assert read(CHAT, user(there), scope).unseen
    assert '"url_sources"' in refused(CHAT, user(there), detail("video_url")).title


@pytest.mark.parametrize("given", [[["a"]], [[{"image_url": LINK}]], [[1], [None]], [[]], [[1.5]]])
def test_tokens_are_numbers(given: object) -> None:
    """A list in the input of embeddings is one of tokens, and holds nothing else."""
    assert refused(EMBEDDINGS, {"input": given}).field == "input"
