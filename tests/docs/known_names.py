"""What an official client can put into a body, as JSON: `python known_names.py openai`.

Runs in the environment of that client (`tests.docs.test_names`). `keys` are the names of every
object that a request may hold, `types` the values of their `type`, `free` the names of what may
hold anything, and nowhere an object of the client: the names in there are the caller's own.
"""

import json
import sys
import typing
from collections.abc import Iterator
from typing import Any

from typing_extensions import is_typeddict


def anthropic() -> tuple[list[Any], list[str]]:
    """The bodies of Anthropic's client, and the betas that it knows."""
    from anthropic.types import (
        anthropic_beta_param,
        message_count_tokens_params,
        message_create_params,
    )
    from anthropic.types.beta import message_count_tokens_params as beta_count
    from anthropic.types.beta import message_create_params as beta_create

    bodies = [
        message_create_params.MessageCreateParamsStreaming,
        beta_create.MessageCreateParamsStreaming,
        message_count_tokens_params.MessageCountTokensParams,
        beta_count.MessageCountTokensParams,
    ]
    return bodies, sorted(words(anthropic_beta_param.AnthropicBetaParam))


def openai() -> tuple[list[Any], list[str]]:
    """The bodies of OpenAI's client; its betas are of other endpoints."""
    from openai.types import embedding_create_params  # type: ignore[import-not-found]
    from openai.types.chat import completion_create_params  # type: ignore[import-not-found]
    from openai.types.responses import response_create_params  # type: ignore[import-not-found]

    bodies = [
        completion_create_params.CompletionCreateParamsStreaming,
        response_create_params.ResponseCreateParamsStreaming,
        embedding_create_params.EmbeddingCreateParams,
    ]
    return bodies, []


def parts(hint: Any) -> Iterator[Any]:
    """Yield a hint and everything that it is made of."""
    yield hint
    for each in typing.get_args(hint):
        if not isinstance(each, str):
            yield from parts(each)


def words(hint: Any) -> set[str]:
    """The texts that a hint lists."""
    listed = [each for each in parts(hint) if typing.get_origin(each) is typing.Literal]
    return {str(word) for each in listed for word in typing.get_args(each)}


def known(bodies: list[Any]) -> dict[str, list[str]]:
    """What these bodies and all objects in them may say."""
    keys, types, free, typed = set[str](), set[str](), set[str](), set[str]()
    seen = set[Any]()
    waiting = list(bodies)
    while waiting:
        kind = waiting.pop()
        if kind in seen:
            continue
        seen.add(kind)
        for name, hint in typing.get_type_hints(kind, include_extras=True).items():
            keys.add(name)
            inside = list(parts(hint))
            objects = [each for each in inside if is_typeddict(each)]
            waiting += objects
            if objects:
                typed.add(name)
            if name == "type":
                types |= words(hint)
            if any(each is object or typing.get_origin(each) is dict for each in inside):
                free.add(name)
    return {"keys": sorted(keys), "types": sorted(types), "free": sorted(free - typed)}


if __name__ == "__main__":
    found, betas = {"anthropic": anthropic, "openai": openai}[sys.argv[1]]()
    print(json.dumps({**known(found), "betas": betas}))
