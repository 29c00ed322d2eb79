"""Write `docs/reference/body-firewall.md` from `tests/vectors/body_firewall.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "docs" / "reference" / "body-firewall.md"
EXAMPLES = ROOT / "tests" / "vectors" / "body_firewall.json"
PLACES = {
    ("anthropic", "messages"): "Anthropic: messages",
    ("openai", "chat_completions"): "OpenAI: chat completions",
    ("openai", "responses"): "OpenAI: responses",
    ("openai", "embeddings"): "OpenAI: embeddings",
    ("own", "chat_completions"): "Servers of your own: chat completions",
}
HEAD = """# What gets around a scope, and what stops it

A list of models and a network without a way out do not stop a request that has the provider fetch
an address, that names a second model, or that reads what another sandbox left there. Each field
that can is checked, in every body. Below is one example of each that is refused (400
`field_not_allowed`, `model_not_allowed` or `invalid_request`, with the field in the message), and
what in a scope would let it pass. What becomes of every single field is in [fields](fields.md).

This page is written by `python proxy/tools/make_firewall.py` from
`tests/vectors/body_firewall.json`, where each example has a body that is refused, one that passes
and the scopes of both; the tests send them all through the real check.
"""
CLASSES = {
    "egress": "the provider reaches out for the sandbox",
    "second model": "another model than the one that was checked answers, advises or judges",
    "shared state": "what lies at the provider is the whole account's",
    "price and placement": "the same tokens cost more, or elsewhere",
    "who pays": "somebody else's bill, somebody else's data",
    "unknown": "nobody here knows what it does",
}


def page() -> str:
    """Return the whole page."""
    known: dict[str, list[dict[str, Any]]] = json.loads(EXAMPLES.read_text(encoding="utf-8"))
    lines = [HEAD, "| class | what it is |", "|---|---|"]
    lines += [f"| {name} | {words} |" for name, words in CLASSES.items()]
    for place, title in PLACES.items():
        lines += ["", f"## {title}", "| class | example | refused at | passes with |"]
        lines += ["|---|---|---|---|"]
        for name in CLASSES:
            for each in known["fields"]:
                if (each["provider"], each["endpoint"]) == place and each["class"] == name:
                    lines.append(row(each))
    lines += ["", "## Headers", "These never go up: they choose whose data or whose bill.", ""]
    lines += sorted({f"- `{each['header']}`" for each in known["headers"]})
    return "\n".join(lines) + "\n"


def row(example: dict[str, Any]) -> str:
    """Return the line of one example."""
    refused = example["refused"]
    by: str = refused["allowed_by"]
    if by.startswith("feature "):
        by = f"the feature `{by[9:-1]}`"
        if example["accepted"]["scope"].get("body") == "open":
            by += ", or `body: open`"
        elif refused["scope"].get("body") == "strict":
            by += ", or another `body`"
    elif not by.startswith("nothing"):
        by = f"`{by}` that cover it"
    return f"| {example['class']} | {example['field']} | `{refused['field']}` | {by} |"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
