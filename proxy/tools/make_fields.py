"""Write `docs/reference/fields.md` from the tables by which the proxy decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daypass_proxy.providers import openai_fields
from daypass_proxy.providers.anthropic_fields import FIELDS

TARGET = Path(__file__).resolve().parents[2] / "docs" / "reference" / "fields.md"

HEAD = """# Fields of a Messages request

What the proxy does with each part of the body of `POST /v1/messages` and
`/v1/messages/count_tokens`. The body goes up byte for byte as it came, so whatever names a model, a
price, a way out or somebody's state is either allowed here or refused (400 `field_not_allowed`,
with the feature that a profile would have to name).

An [example of each](body-firewall.md) way around a scope, and what stops it.

- **Open on options**, if the scope does not [say otherwise](#how-much-may-be-unknown). A text,
  number, true, false or null under a name that is not listed passes, as do all values of
  `anthropic-beta`.
- **Closed on kinds.** An object or list under a name that is not listed needs a feature of that
  name; so does a tool, block or source of an unknown `type`. A key that only looks like a listed
  one (`Model`, full-width letters) is refused.
- `null` counts as absent.
- A key stands once in its object, whatever its spelling; numbers are finite and have at most 128
  digits; objects are nested at most 64 deep and hold 100,000 keys and 250,000 values in all.

This page is written by `python proxy/tools/make_fields.py` from `anthropic.fields.json`; a test
compares that table with the types of the official client ({source}).
OpenAI's API has [a table of its own](#openais-api) and the same rules.

## How much may be unknown
`body` of an entry of a scope (`authorization_details`), for all providers alike:

| `body` | unknown options | unknown kinds | unknown flags |
|---|---|---|---|
| `strict` | refused | refused | refused |
| `compat` | pass | refused | pass |
| `open` | pass | pass, looked into | pass |

- Options are texts, numbers, true and false; kinds are objects and lists at the top, tools, blocks,
  parts, items and sources; flags stand in `anthropic-beta` and `openai-beta`. Where a scope says
  nothing it is `compat`.
- Refused means: unless the scope has a feature of that name. What is known has its own rule below,
  whatever `body` says: `open` opens no gated field.
- `strict` compares every name and `type`, at any depth, with those of the official clients, and
  every `anthropic-*` and `openai-*` header: a newer version of a known tool is unknown. The input
  of a client's tools and their schemas are its own. `names.json` has the list, which
  `python proxy/tools/make_names.py` writes; a test compares it with the clients.
- `open` looks into what it does not know. A `model` is in the scope; a `url`, `href` or the like is
  https within `allowed_domains`; a limit of tokens is within the cap; what names somebody's state,
  credential, bill or another price (`file_id`, `container`, `bill_to`, `service_tier`, …) needs its
  feature; a known tool keeps its own rules. The whole context window is held. A fee that a provider
  takes for a kind that is unknown here can be neither held nor booked, so where there may be one,
  name the features instead.
- A delegated token has the same as its buyer, or one further up in this table.
"""

OPENAI_HEAD = """
# OpenAI's API

What the proxy does with each part of the bodies of `POST /openai/v1/chat/completions`, `/responses`
and `/embeddings`, and of the same paths below the name of an upstream of the settings. The rules
are those above, but for two:

- A limit of output tokens by the name that another endpoint has for it is refused: servers look
  past it.
- **Closed on options elsewhere.** To an upstream of the settings a text, number, true or false
  under a name that is not listed needs a feature of that name, but for the options
  [below](#options-of-servers-of-your-own): there are servers to which `api_base` says where to send
  the request and its key, and `n_predict` goes above every limit. With `body: open` it needs one
  only if its name sounds like that.

A body has 256 members at most, if not all are listed, and goes up as it came, but for three
members: `stream_options.include_usage` of a chat that streams, `store` of a response and of a chat
at OpenAI, and a limit of output tokens, where the scope has a cap and the body has no limit, where
a server may not know its name, or where a budget lowers it ([money](../money.md#what-is-held)).

This part is written from `openai.fields.json`; a test compares that table with the types of the
official client ({source}).
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD.format(source=FIELDS["source"].partition(",")[0])]
    parts += ["## Top level", *table("field", top_level())]
    parts += ["", "## Tools", "By `type`, without a date at its end. No `type` is a custom tool."]
    parts += table("tool", tools())
    parts += ["", "## Blocks and sources", "Wherever they stand: in turns, in the system prompt,"]
    parts[-1] += " in results, in documents, in what a compaction keeps."
    parts += table("kind", kinds())
    parts += ["", "## Fields that name a model, a price, a place or a state", ""]
    parts[-1] = "By the `type` of the object they are in, or its name in the official client."
    parts += table("field", FIELDS["reviewed"])
    return "\n".join([*parts, *openai_page()]) + "\n"


def openai_page() -> list[str]:
    """Return the lines about OpenAI's API."""
    known = openai_fields.FIELDS
    parts = [OPENAI_HEAD.format(source=known["source"].partition(",")[0])]
    for endpoint in ("chat", "responses", "embeddings"):
        parts += [f"## Top level of {endpoint}", *table("field", openai_top_level(known[endpoint]))]
        parts += [""]
    parts += ["## Tools of OpenAI's API", "By `type`, without a date at its end."]
    parts += table("tool", openai_tools(known["tools"]))
    parts += ["", "## Parts and items", "Parts of content, and items of the input of responses."]
    parts += table("kind", openai_kinds(known))
    parts += ["", "## Fields that name a place or a state", ""]
    parts[-1] = "By the `type` of the object they are in."
    parts += [*table("field", known["reviewed"]), "", "## Options of servers of your own", ""]
    parts[-1] = "These pass to an upstream of the settings, beside those of the tables above."
    return [*parts, "", *[f"- `{name}`" for name in known["elsewhere"]["options"]]]


def openai_top_level(endpoint: dict[str, Any]) -> dict[str, str]:
    """Say of each field what becomes of it."""
    said = dict.fromkeys([*endpoint["scalars"], *endpoint["structures"]], "passes")
    said |= {name: f"needs the feature `{name}`" for name in endpoint.get("gated", ())}
    for name, values in endpoint.get("values", {}).items():
        ordinary = " or ".join(f"`{value}`" for value in values)
        said[name] = f"{ordinary}; another needs a price and the feature `{name}`"
    said |= {name: f"refused: {why}" for name, why in endpoint.get("refused", {}).items()}
    words: dict[str, str] = endpoint["words"]
    return said | words


def openai_tools(known: dict[str, Any]) -> dict[str, str]:
    """Say of each tool what becomes of it."""
    said = dict.fromkeys(known["client"], "passes: it runs at the client")
    said |= dict.fromkeys(known["fees"], "refused: a fee for each use has no price here yet")
    words: dict[str, str] = known["words"]
    return said | words


def openai_kinds(known: dict[str, Any]) -> dict[str, str]:
    """Say of each part and item what becomes of it."""
    parts, items = known["parts"], known["items"]
    said = dict.fromkeys(parts["known"], "passes")
    said |= dict.fromkeys(parts["images"], "counted as an image; its address is looked at")
    said |= dict.fromkeys(parts["files"], "counted as a document; its address is looked at")
    said |= {name: f"refused: {why}" for name, why in parts["refused"].items()}
    said |= {f"item {name}": "passes; parts in it are looked at" for name in items["known"]}
    return said | {f"item {name}": words for name, words in items["words"].items()}


def top_level() -> dict[str, str]:
    """Say of each field what becomes of it."""
    top = FIELDS["top_level"]
    said = dict.fromkeys([*top["scalars"], *top["structures"]], "passes")
    said |= {name: f"needs the feature `{name}`" for name in top["gated"]}
    for name, values in top["values"].items():
        ordinary = " or ".join(f"`{value}`" for value in values)
        said[name] = f"{ordinary}; another needs a price and the feature `{name}`"
    words: dict[str, str] = FIELDS["words"]
    return said | words


def tools() -> dict[str, str]:
    """Say of each tool what becomes of it."""
    known: dict[str, Any] = FIELDS["tools"]
    said = dict.fromkeys(known["client"], "passes: it runs at the client")
    said |= {name: f"needs the feature `{feature}`" for name, feature in known["server"].items()}
    for name in known["egress"]:
        said[name] += ", `allowed_domains` within the scope's and `max_uses` of 1 to 100"
    for name in known["searches"]:
        said[name] += ", a price for each use and `max_uses` of 1 to 100"
    said["advisor"] += ", its `model` in scope, `max_uses` of 1 to 100 and `max_tokens`"
    return said | dict.fromkeys(known["fees"], "refused: a fee for each use has no price here yet")


def kinds() -> dict[str, str]:
    """Say of each block and source what becomes of it."""
    blocks, sources = FIELDS["blocks"], FIELDS["sources"]
    said = dict.fromkeys(blocks["known"], "passes")
    said |= dict.fromkeys(("image", "document"), "counted; its source is looked at")
    said |= dict.fromkeys(blocks["tool_changes"], "its tool is looked at as those of `tools`")
    said |= {name: f"needs the feature `{feature}`" for name, feature in blocks["gated"].items()}
    said |= {f"source {name}": "passes" for name in sources["known"]}
    gated = {name: f"needs the feature `{feature}`" for name, feature in sources["gated"].items()}
    gated["url"] += "; https within `allowed_domains`"
    return said | {f"source {name}": words for name, words in gated.items()}


def table(first: str, rows: dict[str, str]) -> list[str]:
    """Return a Markdown table, sorted."""
    lines = [f"| {first} | what becomes of it |", "|---|---|"]
    return lines + [f"| `{name}` | {rows[name]} |" for name in sorted(rows)]


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
