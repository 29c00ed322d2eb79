"""`make test-fleet`: strike a whole fleet with every fault and print what its clients saw of it.

Exit status 1 when any bound is broken. `--fault NAME` makes one (may be repeated), `--list` names
them, `--json FILE` keeps the figures, `--rate` is in streams a second, `--seconds` their length.
Faults of clocks need a C compiler; a full run needs root.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.fleet import wallclock
from tests.fleet.cell import Cell, uptime
from tests.fleet.faults import FAULTS
from tests.fleet.report import as_json, table
from tests.fleet.run import run


def main() -> int:
    """Run what was asked for."""
    options = _options()
    if options.list:
        for fault in FAULTS:
            print(f"{fault.name:22} {fault.says}")
        return 0
    faults = [one for one in FAULTS if not options.fault or one.name in options.fault]
    if any(one.clocks for one in faults) and wallclock.compiler() is None:
        print("faults of clocks need a C compiler: install gcc", file=sys.stderr)
        return 2
    began = time.monotonic()

    def tell(words: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {words}", file=sys.stderr, flush=True)

    folder = Path(tempfile.mkdtemp(prefix="fleet-", dir="/var/tmp"))
    folder.chmod(0o755)
    with Cell(folder, stream_seconds=options.seconds) as cell:
        tell(f"the fleet runs; its logs are in {folder}")
        results = run(cell, faults, options.rate, tell)
    print(table(results))
    print(f"\n{options.rate:.0f} streams a second of {options.seconds:g} s each; {uptime()}")
    if options.json:
        options.json.write_text(json.dumps([as_json(one) for one in results], indent=1))
    return 1 if any(one.broken for one in results) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fleet", description=__doc__)
    parser.add_argument("--fault", action="append", choices=[one.name for one in FAULTS])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=2.0)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
