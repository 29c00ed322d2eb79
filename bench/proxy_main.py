"""The real proxy with one thing changed, for rows that show what a part costs.

usage: python -m bench.proxy_main [--no-ledger] [--minimal] [--profile FILE] serve

It is `python -m daypass_proxy` with names replaced in its composition root before it runs. The
product has no such settings on purpose: a proxy without a ledger must not be one flag away.
"""

import argparse
import cProfile
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from daypass_proxy import __main__ as product
from daypass_proxy import app, forward, serving
from daypass_proxy.ledger import Balance, Hold, Reservation, Reserved, Settlement


class AdmitEverything:
    """A `Ledger` that admits every call and books nothing."""

    ready = True
    waiting = 0

    @classmethod
    async def open(cls, *_: object, **__: object) -> "AdmitEverything":
        return cls()

    async def reserve(self, reservation: Reservation) -> Reserved:
        # All of the output is held at once, so nothing is asked for while an answer streams.
        return Reserved(reservation.usage_id, reservation.output_most)

    async def extend(self, usage_id: str, more: Hold) -> bool:
        return True

    def release(self, usage_id: str, part: Hold) -> None:
        return None

    async def settle(self, settlement: Settlement) -> None:
        return None

    async def balance(self, account: str) -> Balance | None:
        return None

    def count(self, subject: str, kind: str) -> None:
        return None

    async def close(self) -> None:
        return None


def replace(module: ModuleType, name: str, value: Any) -> None:
    """Put `value` in the place of a name that must be there: the bench must not measure air."""
    if not hasattr(module, name):
        raise SystemExit(
            f"bench: {module.__name__} has no {name} any more; see bench/proxy_main.py"
        )
    setattr(module, name, value)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.proxy_main")
    parser.add_argument("--no-ledger", action="store_true")
    parser.add_argument("--minimal", action="store_true", help="neither metrics nor log lines")
    parser.add_argument("--profile", type=Path, help="write a cProfile file at the end")
    parser.add_argument("words", nargs="+")
    asked = parser.parse_args()
    if asked.no_ledger:
        replace(app, "BatchedLedger", AdmitEverything)
    if asked.minimal:
        replace(forward, "close_call", lambda *_, **__: None)
    if asked.profile is None:
        return product.main(asked.words)
    profile = cProfile.Profile()
    # From the first request on: what a start costs is another question.
    replace(serving, "run", partial(serving.run, on_started=profile.enable))
    try:
        return product.main(asked.words)
    finally:
        profile.disable()
        profile.dump_stats(asked.profile)


if __name__ == "__main__":
    sys.exit(main())
