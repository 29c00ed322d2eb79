"""What the demo says: one line per step, with a spinner while it works if a person is watching.

On anything but a terminal it writes plain lines, in order, without colours or control characters.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FRAME_SECONDS = 0.08
GREEN, RED, DIM, BOLD, PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[2m", "\x1b[1m", "\x1b[0m"
CLEAR_LINE = "\r\x1b[2K"
WIDEST = 100


class Terminal:
    """Writes steps and their details to one stream.

    On a terminal a step's details are held back until its line is final; `note` shows how it is
    going meanwhile.
    """

    def __init__(self, stream: TextIO) -> None:
        """Lively on a terminal, plain elsewhere."""
        self._stream = stream
        self._lively = stream.isatty()
        self._title = ""
        self._note = ""
        self._held: list[str] | None = None

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show a step: running, then done with its seconds, or failed; errors pass through."""
        started = time.monotonic()
        self._title, self._note = title, ""
        if not self._lively:
            self._stream.write(f"• {title}\n")
            self._stream.flush()
        mark, colour = "✗", RED
        try:
            with self._spinner():
                yield
            mark, colour = "✓", GREEN
        finally:
            took = f"{time.monotonic() - started:.1f} s"
            if self._lively:
                self._stream.write(f"{colour}{mark}{PLAIN} {title}  {DIM}{took}{PLAIN}\n")
            elif colour is RED:
                self._stream.write(f"  failed after {took}\n")
            held, self._held = self._held or [], None
            self._stream.writelines(held)
            self._stream.flush()

    def note(self, text: str) -> None:
        """Show how the running step is going, beside the spinner; nothing stays of it."""
        self._note = " ".join(text.split())

    def say(self, text: str) -> None:
        """A detail of the running step, wrapped and indented."""
        for line in textwrap.wrap(text, self._width() - 4) or [""]:
            self._detail(line)

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """Rows in columns as wide as they need, the first row being their names."""
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for number, row in enumerate(rows):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            line = "  ".join(cells).rstrip()
            self._detail(f"{DIM}{line}{PLAIN}" if self._lively and number == 0 else line)

    def heading(self, text: str, colour: str = BOLD) -> None:
        """A line of its own."""
        self._stream.write(f"{colour}{text}{PLAIN}\n" if self._lively else f"{text}\n")
        self._stream.flush()

    def _detail(self, line: str) -> None:
        if self._held is not None:
            self._held.append(f"    {line}\n")
            return
        self._stream.write(f"    {line}\n")
        self._stream.flush()

    @contextlib.contextmanager
    def _spinner(self) -> Iterator[None]:
        """Turn while the block runs, and leave an empty line behind."""
        if not self._lively:
            yield
            return
        self._held = []
        stop = threading.Event()
        spinner = threading.Thread(target=self._spin, args=(stop,), daemon=True)
        spinner.start()
        try:
            yield
        finally:
            stop.set()
            spinner.join()
            self._stream.write(CLEAR_LINE)

    def _spin(self, stop: threading.Event) -> None:
        for frame in itertools.cycle(FRAMES):
            line = f"{frame} {self._title}"
            if self._note:
                line += f"  {self._note[-max(self._width() - len(line) - 2, 0) :]}"
            self._stream.write(CLEAR_LINE + line[: self._width() - 1])
            self._stream.flush()
            if stop.wait(FRAME_SECONDS):
                return

    @staticmethod
    def _width() -> int:
        return min(shutil.get_terminal_size().columns, WIDEST)
