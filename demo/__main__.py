"""`make demo`: the product's first minute, on real parts, on this machine.

Each step is a function that takes the `World` and raises when what it shows does not hold. Exit 0
only if every step held; everything started is ended either way, Ctrl-C included.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from demo import steps_calls, steps_end, steps_start
from demo.terminal import RED, Terminal
from demo.world import StepFailed, World

STEP_SECONDS = 90
STEPS: tuple[tuple[str, Callable[[World], None]], ...] = (
    ("Start OpenBao, a real LLM, and daypass", steps_start.start_servers),
    ("Give two sandboxes a day pass and close a cell around each", steps_start.open_cells),
    ("Try to get out of a cell", steps_start.try_to_get_out),
    ("Stream an answer to the agent in it", steps_calls.stream_an_answer),
    ("Serve another tenant, with another key", steps_calls.serve_another_tenant),
    ("Search both cells for the real keys", steps_calls.search_the_cells),
    ("Ask for a model the sandbox may not use", steps_calls.ask_for_a_foreign_model),
    ("Kill the proxy and start it again", steps_calls.restart_the_proxy),
    ("Revoke the sandbox while it streams", steps_end.revoke_while_streaming),
    ("Read the audit trail", steps_end.show_the_audit_trail),
    ("Search what the servers wrote for the real keys", steps_calls.search_what_was_written),
    ("Compare the books with the LLM's own counters", steps_end.balance_the_books),
)


def on_alarm(number: int, frame: FrameType | None) -> None:
    """A step that hangs fails."""
    raise StepFailed(f"not done within {STEP_SECONDS} s")


def on_terminate(number: int, frame: FrameType | None) -> None:
    """To be ended from outside is to be interrupted."""
    raise KeyboardInterrupt


def run(world: World) -> None:
    """Every step in order."""
    for title, step in STEPS:
        signal.alarm(STEP_SECONDS)
        with world.terminal.step(title):
            step(world)
    signal.alarm(0)


def main() -> int:
    """Run the demo; its exit status."""
    terminal = Terminal(sys.stdout)
    if sys.platform != "linux":
        terminal.heading("the demo needs Linux: it looks into processes through /proc", RED)
        return 2
    signal.signal(signal.SIGALRM, on_alarm)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_terminate)
    started = time.monotonic()
    terminal.heading("Agents get a day pass, never the key.")
    world, status = World(terminal), 1
    try:
        run(world)
        status = 0
    except KeyboardInterrupt:
        status = 130
        terminal.heading("Interrupted.", RED)
    except Exception as error:
        terminal.heading(f"That step failed: {error or type(error).__name__}", RED)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        world.close(keep_logs=status == 1)
    if status == 1:
        terminal.heading(f"The logs are in {world.directory}", RED)
    if status == 0:
        terminal.heading(f"Every step held. {time.monotonic() - started:.0f} s, all cleaned up.")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
