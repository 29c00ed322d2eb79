"""Flags that several commands take: what a sandbox may use, and what is said when it begins."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def life(parser: argparse.ArgumentParser) -> None:
    """Add what may be said at registering and at activating."""
    parser.add_argument(
        "--source",
        action="append",
        metavar="NETWORK",
        help="any, first, or a network its tokens may be used from; repeatable",
    )
    parser.add_argument("--vendor", metavar="NAME=ID", help="who runs it, and its id there")
    parser.add_argument(
        "--label", action="append", default=[], metavar="NAME=VALUE", help="a note; repeatable"
    )


def count(text: str) -> int | str:
    """Read a number, or `none` for no limit; raises ArgumentTypeError for anything else."""
    try:
        return text if text == "none" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor none") from None


def limits(
    parser: argparse.ArgumentParser, number: Callable[[str], int | str], budget: str
) -> None:
    """Add a flag for each limit; `number` reads counts, `budget` says what the budget is."""
    parser.add_argument("--budget", metavar="USD", help=budget)
    parser.add_argument("--day", metavar="USD", help="per day of the tenant's time zone")
    parser.add_argument("--month", metavar="USD", help="per month of the tenant's time zone")
    parser.add_argument("--tokens", type=number, metavar="N", help="tokens in all")
    parser.add_argument("--rpm", type=number, metavar="N", help="calls in any 60 s")
    parser.add_argument("--tpm", type=number, metavar="N", help="tokens in any 60 s")
    parser.add_argument("--concurrency", type=number, metavar="N", help="calls at once")
    ways = ("cutoff", "clamp", "reject") if number is int else ("cutoff", "clamp", "reject", "none")
    parser.add_argument(
        "--over-budget", choices=ways, help="a call that may need more than is left"
    )
    parser.add_argument("--drain-seconds", metavar="S", help="read on after the client has gone")
    parser.add_argument("--drain-tokens", type=number, metavar="N", help="and at most so much")
