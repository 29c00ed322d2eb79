"""The names a Messages body may hold and what becomes of each, read from `anthropic.fields.json`.

That file is the one table: `anthropic_body` decides by it, `docs/reference/fields.md` is written
from it, and a test compares it with the types of the official SDK, so that a new kind there is
noticed here before somebody uses it.
"""

import json
from importlib import resources
from typing import Any

FIELDS: dict[str, Any] = json.loads(
    resources.files(__package__).joinpath("anthropic.fields.json").read_bytes()
)
_TOP = FIELDS["top_level"]

SCALARS = frozenset(_TOP["scalars"])
STRUCTURES = frozenset(_TOP["structures"])
KNOWN = SCALARS | STRUCTURES
GATED: tuple[str, ...] = tuple(_TOP["gated"])
UNSEEN = frozenset(_TOP["unseen"])
"""Gated names that bring in what the body does not hold."""
VALUES: dict[str, list[str]] = _TOP["values"]
ASIDE = frozenset(GATED) | frozenset(VALUES) | frozenset(FIELDS["aside"])
"""Names that seldom occur and are looked at one by one when they do."""

CLIENT_TOOLS = frozenset(FIELDS["tools"]["client"])
SERVER_TOOLS: dict[str, str] = FIELDS["tools"]["server"]
FEE_TOOLS = frozenset(FIELDS["tools"]["fees"])
SEARCH_TOOLS = frozenset(FIELDS["tools"]["searches"])
"""Tools of the provider that have a fee for each use, and a price here."""
INWARD_TOOLS = frozenset(FIELDS["tools"]["inward"])
"""Tools of the provider that find only what is in the body."""
EGRESS_TOOLS = frozenset(FIELDS["tools"]["egress"])
TOOL_KEYS = frozenset(FIELDS["tools"]["keys"])
TOOL_OPTIONS = frozenset(FIELDS["tools"]["options"])
FALLBACK_KEYS = frozenset(FIELDS["fallback_keys"])

BLOCKS = frozenset(FIELDS["blocks"]["known"])
COUNTED = frozenset({"image", "document"})
CHANGES = frozenset(FIELDS["blocks"]["tool_changes"])
NESTING = frozenset(FIELDS["blocks"]["nesting"])
"""The keys of a block that may hold what is checked itself."""
SOURCES = frozenset(FIELDS["sources"]["known"])
GATED_KINDS: dict[str, str] = FIELDS["blocks"]["gated"] | FIELDS["sources"]["gated"]
REFERENCES = frozenset(FIELDS["references"])
