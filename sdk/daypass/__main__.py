"""The `daypass` command: how one is run, and how errors end; `_parser` has what can be asked.

Every error is one line on standard error that says what to do: exit code 1 when something was
refused or failed, 2 when the question was wrong, 130 after Ctrl-C. Modules are imported when
their command runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from daypass._errors import DaypassError
from daypass._parser import build_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code."""
    parser = build_parser()
    try:
        options = parser.parse_args(arguments)
        if options.act == "completion":
            from daypass._completion import script

            print(script(options.shell, parser), end="")
            return 0
        module, name = options.act.split(":")
        act: Callable[[argparse.Namespace], int] = getattr(import_module(module), name)
        return act(options)
    except DaypassError as error:
        return _complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone; do not complain about that at exit either
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror or error}; check path and permissions", 1)


def _complain(text: str, code: int) -> int:
    print(f"daypass: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
