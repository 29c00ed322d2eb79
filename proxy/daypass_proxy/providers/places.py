"""Places in a body, and the refusals that name them: what the checks of all dialects share."""

from typing import Any

from daypass_core.problem import Code, Refusal, refuse

Where = tuple[str | int, ...]
"""The place of a value in the body; made into words only for a refusal."""


Chain = tuple[Any, ...]
"""A place that is longer by a step than another one: (that one, the step); at its root a Where.

What walks through all of a body makes one for each object, and none has to be copied for that.
"""


def unrolled(chain: Chain) -> Where:
    """Return the place that a chain leads to."""
    steps: list[str | int] = []
    while chain and isinstance(chain[0], tuple):
        chain, step = chain
        steps.append(step)
    return (*chain, *reversed(steps))


def items(value: object, where: str) -> list[dict[str, Any]]:
    """Return the objects of a list; an absent list is empty. Raises Refusal."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid(where, f"{where} must be a list")
    for index, item in enumerate(value):
        if type(item) is not dict:
            raise invalid(f"{where}[{index}]", f"{where}[{index}] must be an object")
    return value


def words(where: Where) -> str:
    """Return a place as people write it: `messages[3].content[0].source`."""
    first, *steps = where
    return f"{first}" + "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps
    )


def shown(name: str) -> str:
    """Return the beginning of a word of the client's: what else it may hold is not ours to echo."""
    return name if len(name) <= 64 else name[:64] + "…"


def invalid(where: str, title: str) -> Refusal:
    """Return the refusal of a value that no scope would allow."""
    return refuse(Code.INVALID_REQUEST, title, field=where)


def not_allowed(where: str, title: str) -> Refusal:
    """Return the refusal of a value that another scope may allow."""
    return refuse(Code.FIELD_NOT_ALLOWED, title, field=where)
