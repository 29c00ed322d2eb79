"""What a request for embeddings asks for, checked against the scope.

Called by `providers.openai` with the body's bytes, here or in a worker process. Nothing is written;
each text is read by itself, so there may be many windows full of them.
"""

from typing import Any

from msgspec.structs import replace

from daypass_core.scope import Detail
from daypass_proxy.body.outline import Buffer
from daypass_proxy.body.strict import parse
from daypass_proxy.providers import Asked
from daypass_proxy.providers import openai_fields as fields
from daypass_proxy.providers.openai_check import OpenAICheck
from daypass_proxy.providers.places import invalid

MAX_INPUTS = 2048


def check_embeddings(body: Buffer, detail: Detail, *, max_tokens_needed: bool = False) -> Asked:
    """Return what `body` asks for; raises Refusal (400)."""
    check = OpenAICheck(detail)
    document = parse(body)
    check.top_level(document, fields.EMBEDDINGS)
    inputs = _inputs(document)
    return replace(check.asked(), max_output_tokens=0, thinking_tokens=0, inputs=inputs)


def _inputs(body: dict[str, Any]) -> int:
    """Return how many texts there are; a list of numbers is one, as tokens."""
    given = body.get("input")
    if not isinstance(given, list):
        if isinstance(given, str):
            return 1
        raise invalid("input", "input must be a text, or a list of texts or tokens")
    kinds = {type(item) for item in given}
    if kinds == {int}:
        return 1
    if kinds not in ({str}, {list}) or any(
        type(item) is list and set(map(type, item)) != {int} for item in given
    ):
        raise invalid("input", "input must be a text, or a list of texts or tokens")
    if len(given) > MAX_INPUTS:
        raise invalid("input", f"input may hold {MAX_INPUTS} texts at most")
    return len(given)
