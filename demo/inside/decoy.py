"""Plants a decoy in its cell, so that the search for the real key is seen to work.

The text in argv also goes into the environment (by whoever starts this) and into a file. The text
on standard input arrives reversed and is turned round, so it exists in memory alone. Then it waits
for the end of standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Plant, say so, and wait."""
    Path(sys.argv[2]).write_text(f"notes: {sys.argv[1]}\n")
    only_in_memory = sys.stdin.readline().strip()[::-1]
    print("planted", flush=True)
    sys.stdin.read()
    print(len(only_in_memory))


if __name__ == "__main__":
    main()
