"""What a PromQL expression names: metrics, the labels it selects by, those it groups by."""

import re
from dataclasses import dataclass, field
from typing import Any

import promql_parser

_SUFFIX = re.compile(r"_(bucket|sum|count)$")


@dataclass
class Named:
    """Names of one expression; `selected` pairs each metric with the labels it is selected by."""

    selected: list[tuple[str, set[str]]] = field(default_factory=list)
    grouped: set[str] = field(default_factory=set)


def names(expression: str) -> Named:
    """Parse an expression; raises ValueError when Prometheus would not read it."""
    found = Named()

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql_parser.VectorSelector):
            labels = {matcher.name for matcher in node.matchers.matchers}
            found.selected.append((node.name or "", labels))
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            found.grouped |= set(node.modifier.labels)

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def family(name: str) -> str:
    """The name of a metric without the suffix that its samples have."""
    return _SUFFIX.sub("", name)
