"""The Markdown of a run: one table a case with ratios, the gates, the machine."""

from collections.abc import Sequence
from typing import Any

from bench.cases import CASES
from bench.gates import GATES, Gate, Table, Verdict, added_ms, cpu, judge
from bench.results import Row

BASES = ("nginx", "haproxy+es256")
"""What the ratio columns divide by."""
SCALES = ("connections", "events", "bytes")


def render(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """Everything a run has to say."""
    table = Table(rows)
    parts = [_machine(rows, about)]
    by_case = {name: [row for row in rows if row.case == name] for name in CASES}
    parts += [_case(name, found, table) for name, found in by_case.items() if found]
    parts += [text for text in (_streams(rows), _scale(rows)) if text]
    parts.append(gates(rows))
    parts.append(_does(rows))
    return "\n\n".join(parts) + "\n"


def gates(rows: Sequence[Row]) -> str:
    """The goals and what came of them."""
    table = Table(rows)
    verdicts = [judge(gate, table) for gate in GATES]
    lines = [[_goal(v.gate), _value(v), v.word + (", noisy" if v.noisy else "")]
             for v in verdicts if v.word != "not run"]  # fmt: skip
    missing = [_goal(verdict.gate) for verdict in verdicts if verdict.word == "not run"]
    text = "### Goals\n\n" + _markdown(["goal", "measured", "verdict"], lines)
    return text + ("\n\nNot run: " + "; ".join(missing) + "." if missing else "")


def failures(rows: Sequence[Row]) -> list[Verdict]:
    """The verdicts that end a run with exit status 1."""
    table = Table(rows)
    return [verdict for verdict in (judge(gate, table) for gate in GATES) if verdict.fails]


def _goal(gate: Gate) -> str:
    limit = f" (gate {gate.gate:g})" if gate.gate is not None else ""
    sign = "≥" if gate.at_least else "≤"
    to = f" × {gate.against}" if gate.against else ""
    return f"{gate.what} {sign} {gate.goal:g}{limit}{to}"


def _value(verdict: Verdict) -> str:
    return "–" if verdict.value is None else f"{verdict.value:.3g}"


def _machine(rows: Sequence[Row], about: dict[str, Any]) -> str:
    loads = [row.load_avg for row in rows] or [0.0]
    return (
        f"Run {about.get('run_id')}: {about.get('cpu_model')}, {about.get('cores')} cores, Linux"
        f" {about.get('kernel')}, Python {about.get('python')}; load average"
        f" {min(loads):g} to {max(loads):g} (the bench itself makes about 2).\nCPU is that of the"
        " target's process tree, median of the rounds; ranges are smallest to largest round."
    )


def _case(name: str, rows: Sequence[Row], table: Table) -> str:
    case = CASES[name]
    bases = [base for base in BASES if any(row.target == base for row in rows)]
    head = ["target", f"CPU µs/{case.unit}", "range", *(f"× {base}" for base in bases)]
    head += ["added p50 ms", "p50", "p90", "p99 ms"] if name == "latency" else []
    head += ["event delay p50", "p99 ms"] if case.unit == "event" else []
    head += ["requests/s"] if case.unit == "request" and name != "latency" else []
    lines = []
    for row in rows:
        line = [row.target, *_cpu(row)]
        line += [_ratio(row, base, table) for base in bases]
        if name == "latency":
            line += [_number(added_ms(table, name, row.target)), *_ms(row.lat, 0, 1, 2)]
        elif case.unit == "event":
            line += _ms(row.evdelay, 0, 2)
        else:
            line.append(_number(row.rps))
        lines.append(line)
    return f"### {name}: {case.about}\n\n" + _markdown(head, lines)


def _cpu(row: Row) -> list[str]:
    if row.void:
        return [f"void: {row.bad} wrong answers, {row.errs} errors", ""]
    spread = " to ".join(map(_number, row.range)) if row.range and row.rounds > 1 else ""
    return [_number(row.us_req or row.us_ev), spread + (", noisy" if row.noisy else "")]


def _ratio(row: Row, base: str, table: Table) -> str:
    value = table.ratio(row.case, row.target, base, cpu)
    return "–" if value is None else f"{value:.2f}"


def _streams(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        if row.case not in ("memory", "streams5000"):
            continue
        what = "100 to 1,000 streams" if row.case == "memory" else "5,000 streams, 1 event/s each"
        state = f"{row.active:,}" if not row.void else f"void: {row.bad} bad, {row.errs} errors"
        line = [row.target, what, state, _number(row.kb_per_stream), _number(row.rss_mb)]
        lines.append([*line, _number(row.us_ev), *_ms(row.evdelay, 0, 2)])
    head = ["target", "what", "open to the end", "kB per stream", "RSS MB", "CPU µs/event",
            "event delay p50", "p99 ms"]  # fmt: skip
    return "### Open streams\n\n" + _markdown(head, lines) if lines else ""


def _scale(rows: Sequence[Row]) -> str:
    kinds = {kind: [row for row in rows if row.case.startswith(kind + " ")] for kind in SCALES}
    return "\n\n".join(_scale_table(kind, found) for kind, found in kinds.items() if found)


def _scale_table(kind: str, rows: Sequence[Row]) -> str:
    sizes = list(dict.fromkeys(row.case for row in rows))
    found = {(row.case, row.target): row for row in rows}
    if kind == "bytes":
        head = ["body", "CPU µs/request", "CPU ns/byte", "most memory while checked, × body",
                "while sent, × body", "longest block ms"]  # fmt: skip
        lines = [[row.case.partition(" ")[2], _number(row.us_req), _number(row.ns_byte),
                  _number(row.checked_x), _number(row.sent_x), _number(row.blocked_ms)]
                 for row in rows]  # fmt: skip
    else:
        targets = list(dict.fromkeys(row.target for row in rows))
        head = [f"open {kind}" if kind == "connections" else kind, *targets]
        lines = [[size.partition(" ")[2], *(_cell(found.get((size, t))) for t in targets)]
                 for size in sizes]  # fmt: skip
    titles = {"connections": "CPU µs per 1 kB request, 16 in flight over all of them in turn",
              "events": "CPU µs per event, all of an answer's events at once",
              "bytes": "a request body, ledger off"}  # fmt: skip
    return f"### How cost grows: {titles[kind]}\n\n" + _markdown(head, lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return "–"
    return "void" if row.void else _number(row.us_ev if row.case[0] == "e" else row.us_req)


def _does(rows: Sequence[Row]) -> str:
    told = {row.target: row for row in rows if row.does}
    lines = [[name, row.version, row.does] for name, row in told.items()]
    return "### What each does\n\n" + _markdown(["target", "version", "does"], lines)


def _ms(figures: Sequence[float], *places: int) -> list[str]:
    return [f"{figures[place] / 1000:.2f}" if figures else "–" for place in places]


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(out + ["| " + " | ".join(line) + " |" for line in lines])
