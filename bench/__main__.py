"""`python -m bench`: what a request costs here, as ratios to others measured in the same run."""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import cases, interpreter, profile, scale, targets
from bench.install import compiled, found, say
from bench.peers import Target
from bench.process import BenchError, allow_descriptors
from bench.results import Book, read_rows
from bench.run import Run
from bench.site import CACHE, ROOT, Site
from bench.table import failures, render

EPILOG = """quick: ours, nginx and (if installed) HAProxy on four cases, under 90 seconds.
full: every peer, installed below .cache/bench when missing, every case, about 15 minutes.
profile CASE: one case of ours under cProfile.   table FILE: the tables of an earlier run.
Exit status 1: a gate is missed by more than 15 %, or a row of ours is void; 2: cannot run."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    asked = parser().parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if asked.command == "table":
            rows, about = read_rows(Path(asked.what))
            print(render(rows, about), end="")
            return 0
        return execute(asked)
    except BenchError as error:
        say(f"cannot run: {error}")
        return 2
    except KeyboardInterrupt:
        say("interrupted; everything that was started is ended")
        return 130


def parser() -> argparse.ArgumentParser:
    """What can be asked."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("quick", "full", "profile", "table"))
    parser.add_argument("what", nargs="?", default="json1k", help="of profile: CASE; table: FILE")
    parser.add_argument("--only", help=f"targets, by commas: {'; '.join(targets.STARTS)}")
    parser.add_argument("--case", help=f"cases, by commas: {', '.join([*cases.CASES, *scale.ALL])}")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each case (3)")
    parser.add_argument("--json", action="store_true", help="print JSON lines, not tables")
    parser.add_argument("--tree", type=Path, default=ROOT, help="measure this checkout's proxy")
    parser.add_argument(
        "--python",
        type=Path,
        metavar="PATH",
        help="run the proxy on this Python"
        f" ({interpreter.DISTRIBUTION} when new enough, else the project's)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the run's folder with all logs")
    parser.add_argument("--ledger", action="store_true", help="of profile: with the ledger on")
    return parser


def execute(asked: argparse.Namespace) -> int:
    """Measure and report."""
    allow_descriptors()
    load, upstream = compiled("load"), compiled("upstream")
    python = interpreter.chosen(asked.python)
    other = interpreter.other(python)
    folder = Path(tempfile.mkdtemp(prefix="dpb-"))  # short: Unix socket paths are limited
    try:
        with Site(folder, upstream, python, other, asked.tree) as site:
            if asked.command == "profile":
                flags = [] if asked.ledger else ["--no-ledger"]
                print(profile.profile(asked.what, site, flags))
                return 0
            run_id = time.strftime("%Y%m%d-%H%M%S")
            book = Book(CACHE / f"results-{run_id}.jsonl", run_id, str(python))
            run = Run(site, load, book, asked.rounds, hurried=asked.command == "quick")
            whole = measure(asked, run)
    finally:
        if asked.keep:
            say(f"logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    say(f"rows: {book.path}")
    for row in book.rows if asked.json else ():
        print(book.line(row))
    if not asked.json:
        print(render(book.rows, book.about), end="")
    failed = failures(book.rows)
    for verdict in failed:
        say(f"failed: {verdict.gate.what} ({verdict.word})")
    return 1 if failed or not whole else 0


def measure(asked: argparse.Namespace, run: Run) -> bool:
    """Start the targets, run the cases; False when one of ours could not be measured."""
    quick = asked.command == "quick"
    names = chosen(asked.only, targets.STARTS, targets.QUICK if quick else tuple(targets.STARTS))
    every = [*cases.CASES, *scale.ALL]
    wanted = chosen(asked.case, every, cases.QUICK if quick else tuple(every))
    if quick and not asked.only and found("haproxy") is None:
        say("HAProxy is not installed: without it (make bench-full installs it)")
        names = [name for name in names if not name.startswith("haproxy")]
    names.sort(key=lambda name: name not in targets.OURS)
    if names[0] not in targets.OURS:
        names.insert(0, "daypass")  # it is where the token comes from
    started = targets.start_all(run.site, names)
    return not [name for name in wanted if not finished(name, run, started)]


def finished(name: str, run: Run, started: Sequence[Target]) -> bool:
    """Run one case; a case that fails is said and does not end the run."""
    try:
        if name in cases.CASES:
            run.case(cases.CASES[name], started)
        else:
            scale.ALL[name](run, started)
    except BenchError as error:
        say(f"{name} could not be finished: {error}")
        return False
    return True


def chosen(asked: str | None, known: Iterable[str], default: Sequence[str]) -> list[str]:
    """The names asked for by commas ("daypass, ledger on" has one itself); raises BenchError."""
    known = list(known)
    if asked is None:
        return list(default)
    rest, names = asked, []
    while rest:
        fitting = [name for name in known if rest == name or rest.startswith(name + ",")]
        best = max(fitting, key=len, default=None)
        if best is None:
            raise BenchError(f"nothing is named {rest!r}; there is: {'; '.join(known)}")
        names.append(best)
        rest = rest[len(best) + 1 :].strip()
    return names


if __name__ == "__main__":
    sys.exit(main())
