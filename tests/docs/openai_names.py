"""What OpenAI's official client knows, as JSON: runs in its own environment (test_openai_fields).

Names at the top of each body, and the `type` of every tool, part and item.
"""

import json
import typing
from typing import Any

from openai.types import embedding_create_params  # type: ignore[import-not-found]
from openai.types.chat import (  # type: ignore[import-not-found]
    chat_completion_assistant_message_param,
    chat_completion_content_part_param,
    chat_completion_tool_union_param,
    completion_create_params,
)
from openai.types.responses import (  # type: ignore[import-not-found]
    response_create_params,
    response_input_content_param,
    response_input_item_param,
    tool_param,
)
from typing_extensions import is_typeddict


def names(params: Any) -> list[str]:
    """The names of a body."""
    return sorted(typing.get_type_hints(params))


def kinds(union: Any) -> list[str]:
    """The types of a union of objects."""
    found: set[str] = set()
    for each in typing.get_args(union):
        if typing.get_origin(each) is not None:
            found |= set(kinds(each))
        elif is_typeddict(each):
            said = typing.get_type_hints(each).get("type")
            found |= {word for word in words(said) if isinstance(word, str)}
    return sorted(found)


def words(hint: Any) -> list[Any]:
    """The literals of a hint."""
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    return [word for each in typing.get_args(hint) for word in words(each)]


def main() -> None:
    """Print it."""
    parts = chat_completion_content_part_param.ChatCompletionContentPartParam
    assistant = chat_completion_assistant_message_param.ContentArrayOfContentPart
    known = {
        "chat": names(completion_create_params.CompletionCreateParamsStreaming),
        "responses": names(response_create_params.ResponseCreateParamsStreaming),
        "embeddings": names(embedding_create_params.EmbeddingCreateParams),
        "tools": kinds(tool_param.ToolParam)
        + kinds(chat_completion_tool_union_param.ChatCompletionToolUnionParam),
        "parts": kinds(parts)
        + kinds(assistant)
        + kinds(response_input_content_param.ResponseInputContentParam),
        "items": kinds(response_input_item_param.ResponseInputItemParam),
    }
    print(json.dumps(known))


if __name__ == "__main__":
    main()
