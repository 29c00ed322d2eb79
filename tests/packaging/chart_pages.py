"""What of the Helm chart is written by a program: `make chart` writes it, a test holds it.

- README.md: the table of values, from the comments of values.yaml and the types of its schema.
- values.schema.json: which settings may be handed on by name, from docs/reference/settings.md;
  those that the templates write themselves, and those that could hold a secret, are left out.
- files/: copies of the dashboard and the alerts, since a chart can only read what lies within it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "daypass"
OBSERVABILITY = ROOT / "deploy" / "observability"
COPIED = ("alerts.yaml", "dashboard.json")
BEGIN, END = "<!-- values: written by make chart -->\n", "<!-- end of values -->\n"
# The whole URL has a password in it, and both are read from files that the chart mounts.
NEVER = {"DAYPASS_DATABASE_URL", "DAYPASS_DATABASE_URL_FILE"}
TEMPLATES = {
    "broker": ("_broker.tpl", "_env.tpl"),
    "proxy": ("_proxy.tpl", "_env.tpl"),
}
_KEY = re.compile(r'^( *)("[^"]+"|[A-Za-z0-9_*-]+):(?: (.*))?$')


@dataclass(frozen=True, slots=True)
class Row:
    """One value: its dotted path, what it is unless set (None: it is a group), what it does."""

    path: str
    default: object
    meaning: str


def rows(text: str) -> list[Row]:
    """The documented values of a values.yaml, in its order."""
    values: dict[str, Any] = yaml.safe_load(text)
    found = list(_commented(text))
    groups = {path.rpartition(".")[0] for path, _ in found}
    return [
        Row(path, None if path in groups else _at(values, path), meaning) for path, meaning in found
    ]


def _commented(text: str) -> Iterator[tuple[str, str]]:
    """Yield the path and comment of each key that has one right above it."""
    above: list[str] = []
    parents: list[tuple[int, str]] = []
    for line in text.splitlines():
        stripped = line.strip()
        key = _KEY.match(line)
        if stripped.startswith("# "):
            above.append(stripped[2:])
            continue
        if key is not None:
            depth, name = len(key[1]), key[2].strip('"')
            parents = [each for each in parents if each[0] < depth] + [(depth, name)]
            if above:
                yield ".".join(each for _, each in parents), " ".join(above)
        above = []


def _at(values: Any, path: str) -> object:
    for name in path.split("."):
        values = values[name]
    result: object = values
    return result


def undocumented(text: str) -> list[str]:
    """Paths of values.yaml that stand in no row, nor below one."""
    known = {row.path for row in rows(text) if row.default is not None}
    leaves = _leaves(yaml.safe_load(text), ())
    return [".".join(path) for path in leaves if not _below(path, known)]


def _below(path: tuple[str, ...], known: set[str]) -> bool:
    return any(".".join(path[:length]) in known for length in range(1, len(path) + 1))


def _leaves(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(node, dict) and node:
        for name, child in node.items():
            yield from _leaves(child, (*path, name))
    else:
        yield path


def table(text: str, schema: dict[str, Any]) -> str:
    """The values as a Markdown table."""
    lines = ["| value | form | default | meaning |", "|---|---|---|---|"]
    for row in rows(text):
        shown = "" if row.default is None else f"`{json.dumps(row.default, ensure_ascii=False)}`"
        what = "" if row.default is None else form(schema, row.path)
        meaning = row.meaning.replace("|", "\\|")
        lines.append(f"| `{row.path}` | {what} | {shown} | {meaning} |")
    return "\n".join(lines) + "\n"


def form(schema: dict[str, Any], path: str) -> str:
    """What may be set there, in a word or two; raises KeyError for what the schema lacks."""
    node = schema
    for name in path.split("."):
        node = _resolved(schema, node["properties"][name])
    if "enum" in node:
        return "one of " + ", ".join(node["enum"])
    kind: str = node["type"]
    if kind == "integer" and "maximum" in node:
        return f"{node.get('minimum', 0)} to {node['maximum']}"
    return {"boolean": "switch", "array": "list", "object": "map", "string": "text"}[kind]


def _resolved(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node


def documented(component: str) -> set[str]:
    """The settings of broker or proxy, by docs/reference/settings.md."""
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    rows = sections["Broker and proxy"] + sections[component.capitalize()]
    if component == "broker":
        rows += "\n".join(re.findall(r"^.*The broker reads it too.*$", sections["Proxy"], re.M))
    return set(re.findall(r"^\| `(DAYPASS_[A-Z_]+)`", rows, re.M))


def written(component: str) -> set[str]:
    """The settings that the templates write for broker or proxy."""
    texts = [(CHART / "templates" / name).read_text("utf-8") for name in TEMPLATES[component]]
    return {name for text in texts for name in re.findall(r"DAYPASS_[A-Z_]+", text)}


def handed_on(component: str) -> list[str]:
    """The settings that `broker.settings` or `proxy.settings` may name."""
    shared = {name for name in documented("proxy") if name.startswith("DAYPASS_VAULT_")}
    return sorted((documented(component) - NEVER - shared) - written(component))


def outputs() -> dict[Path, str]:
    """Every file that `make chart` writes, with what it holds."""
    schema: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    for component in TEMPLATES:
        schema["$defs"][f"{component}Settings"]["propertyNames"]["enum"] = handed_on(component)
    readme = (CHART / "README.md").read_text("utf-8")
    before, _, rest = readme.partition(BEGIN)
    after = rest.partition(END)[2]
    values = (CHART / "values.yaml").read_text("utf-8")
    files = {
        CHART / "values.schema.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n",
        CHART / "README.md": f"{before}{BEGIN}{table(values, schema)}{END}{after}",
    }
    for name in COPIED:
        if (OBSERVABILITY / name).exists():
            files[CHART / "files" / name] = (OBSERVABILITY / name).read_text("utf-8")
    return files


def main() -> int:
    """Write what is not as it should be."""
    for path, text in outputs().items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
