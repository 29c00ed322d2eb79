"""The names that bodies of OpenAI's API may hold and what becomes of each: `openai.fields.json`.

That file is the one table: the checks decide by it, `docs/reference/fields.md` is written from it,
and a test compares it with the types of the official client.
"""

import json
import re
from dataclasses import dataclass
from importlib import resources
from typing import Any

FIELDS: dict[str, Any] = json.loads(
    resources.files(__package__).joinpath("openai.fields.json").read_bytes()
)


@dataclass(frozen=True, slots=True)
class TopLevel:
    """The names at the top of one endpoint's body."""

    scalars: frozenset[str]
    structures: frozenset[str]
    gated: tuple[str, ...]
    unseen: frozenset[str]
    """Gated names that bring in what the body does not hold."""
    refused: dict[str, str]
    """Names that no feature allows, and why."""
    values: dict[str, list[str]]
    known: frozenset[str]
    """All names that are listed."""


def _top_level(endpoint: str) -> TopLevel:
    table = FIELDS[endpoint]
    scalars, structures = frozenset(table["scalars"]), frozenset(table["structures"])
    return TopLevel(
        scalars,
        structures,
        tuple(table.get("gated", ())),
        frozenset(table.get("unseen", ())),
        table.get("refused", {}),
        table.get("values", {}),
        scalars | structures,
    )


CHAT = _top_level("chat")
RESPONSES = _top_level("responses")
EMBEDDINGS = _top_level("embeddings")

LIMITS = tuple(FIELDS["limits"])
"""What limits the output, at one endpoint or another."""
CHOICES = tuple(FIELDS["choices"])
"""How many answers are written, at one endpoint or another."""
OPTIONS = frozenset(FIELDS["elsewhere"]["options"])
"""Options of servers of one's own that stand for no model, price, place or state."""

_DATED = re.compile(r"(.{1,64}?)_20[0-9]{2}_[0-9]{2}_[0-9]{2}")


def base_of(kind: str) -> str:
    """Return a kind of tool without its date."""
    match = _DATED.fullmatch(kind)
    return match[1] if match else kind


CLIENT_TOOLS = frozenset(FIELDS["tools"]["client"])
SERVER_TOOLS: dict[str, str] = FIELDS["tools"]["server"]
FEE_TOOLS = frozenset(FIELDS["tools"]["fees"])
SEARCH_TOOLS = frozenset(FIELDS["tools"]["searches"])

PARTS = frozenset(FIELDS["parts"]["known"])
IMAGES = frozenset(FIELDS["parts"]["images"])
FILES = frozenset(FIELDS["parts"]["files"])
TEXTS = PARTS - IMAGES - FILES
REFUSED_PARTS: dict[str, str] = FIELDS["parts"]["refused"]
ITEMS = frozenset(FIELDS["items"]["known"])
GATED_ITEMS = frozenset(FIELDS["items"]["gated"])
TOOL_ITEMS = frozenset(FIELDS["items"]["tools"])
PART_KEYS = frozenset(FIELDS["keys"]["parts"])
SOURCE_KEYS = frozenset(FIELDS["keys"]["sources"])
MESSAGE_KEYS = frozenset(FIELDS["keys"]["messages"])
ITEM_KEYS = frozenset(FIELDS["keys"]["items"])
REFUSED_KEYS: dict[str, str] = FIELDS["message_keys"]
