"""`python -m daypass_proxy reconcile`: flags, the two sides, the answer.

Exit codes: 0 within the tolerance, 1 beyond it, 2 when a side cannot be read or the metrics cannot
be written.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path

from daypass_core.clock import Clock, SystemClock
from daypass_core.problem import Refusal
from daypass_core.settings import SettingsError
from daypass_core.vault import Vault
from daypass_proxy.app import make_transport
from daypass_proxy.keyring import Keyring
from daypass_proxy.price import PriceTable
from daypass_proxy.providers.anthropic import NAME, Anthropic
from daypass_proxy.reconcile import Comparison, Reported, Unreadable, booked, reported
from daypass_proxy.reconcile.settings import read_admin_key
from daypass_proxy.reconcile.shown import document, table, write_textfile
from daypass_proxy.settings import Settings
from daypass_proxy.transport import Transport, TransportError, UpstreamRequest

EXIT_BEYOND = 1
EXIT_UNREADABLE = 2
_VERSION = (b"anthropic-version", b"2023-06-01")
_PLAIN = (b"accept-encoding", b"identity")
_PAGE_BYTES_MOST = 16 * 1024 * 1024
_MOST_DAYS = 366


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("--from", dest="since", type=_date, metavar="DAY", help="first day of UTC")
    parser.add_argument("--to", dest="until", type=_date, metavar="DAY", help="day after the last")
    parser.add_argument("--tenant", metavar="NAME", help="only calls of this tenant")
    parser.add_argument(
        "--workspace-id", action="append", default=[], metavar="ID", help="only this workspace"
    )
    parser.add_argument(
        "--api-key-id", action="append", default=[], metavar="ID", help="only this provider key"
    )
    parser.add_argument(
        "--tolerance",
        type=_percent,
        default=Decimal("0.005"),
        metavar="PERCENT",
        help="default 0.5",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--textfile", type=Path, metavar="PATH", help="also write metrics there")


def main(asked: argparse.Namespace, settings: Settings, clock: Clock | None = None) -> int:
    """Reconcile and print; return the exit code."""
    clock = clock or SystemClock()
    try:
        found = asyncio.run(reconcile(asked, settings, clock))
    except (Unreadable, SettingsError) as error:
        sys.stderr.write(f"daypass-proxy: {error}\n")
        return EXIT_UNREADABLE
    sys.stdout.write(document(found) if asked.json else table(found))
    if asked.textfile is not None:
        try:
            write_textfile(found, asked.textfile, clock.now())
        except OSError as error:
            sys.stderr.write(f"daypass-proxy: cannot write {asked.textfile}: {error.strerror}\n")
            return EXIT_UNREADABLE
    return EXIT_BEYOND if found.beyond else 0


async def reconcile(asked: argparse.Namespace, settings: Settings, clock: Clock) -> Comparison:
    """Read both sides and compare; raises Unreadable and SettingsError."""
    since, until = _range(asked, clock)
    prices = PriceTable.load(settings.prices)

    def name(model: str) -> str:
        """Return a model's name as the price table says it: dated ids and aliases are one."""
        price = prices.find(NAME, model, clock.now())
        return model if price is None else price.model

    theirs = await _reported(
        settings,
        clock,
        reported.Wanted(since, until, asked.workspace_id, asked.api_key_id),
        name,
    )
    ours = booked.read(settings.database_url, booked.Range(since, until, asked.tenant), name)
    return Comparison(ours, theirs, asked.tolerance)


async def _reported(
    settings: Settings, clock: Clock, wanted: reported.Wanted, name: Callable[[str], str]
) -> Reported:
    reference, secrets = read_admin_key(settings)
    async with AsyncExitStack() as stack:
        vault = None
        if settings.vault is not None:
            vault = Vault(settings.vault)
            stack.callback(vault.close)
        keyring = Keyring(
            {"anthropic": {"*": reference}}, env_secrets=secrets, vault=vault, clock=clock
        )
        stack.push_async_callback(keyring.close)
        await keyring.start()
        try:
            key = await keyring.header_for("admin", Anthropic())
        except Refusal:
            raise Unreadable(f"the admin key cannot be read from {reference}") from None
        try:
            transport = make_transport(settings)
        except RuntimeError as error:  # its words are for a person already
            raise Unreadable(str(error)) from None
        stack.push_async_callback(transport.close)
        ask = _asker(settings.anthropic_url, key, transport)
        return await reported.read(ask, wanted, name, asyncio.sleep)


def _asker(
    origin: str, key: tuple[bytes, bytes], transport: Transport
) -> Callable[[str], Awaitable[reported.Page]]:
    """Return what asks the provider for one page."""

    async def ask(target: str) -> reported.Page:
        request = UpstreamRequest("GET", origin + target, (_VERSION, _PLAIN, key), b"")
        body = bytearray()
        try:
            answer = await transport.send(request)
            try:
                while data := await answer.read():
                    body += data
                    if len(body) > _PAGE_BYTES_MOST:
                        raise Unreadable("the usage report has a page that is too large")
            finally:
                answer.close()
        except TransportError as error:
            raise Unreadable(
                f"the provider cannot be asked for its usage report: {error}"
            ) from None
        return reported.Page(answer.status, bytes(body), _retry_after(dict(answer.headers)))

    return ask


def _retry_after(headers: dict[bytes, bytes]) -> float | None:
    said = headers.get(b"retry-after", b"")
    return float(said) if said.isdigit() else None


def _range(asked: argparse.Namespace, clock: Clock) -> tuple[date, date]:
    """Return the range: by default the last day of UTC that is over."""
    until: date = asked.until or datetime.fromtimestamp(clock.now(), UTC).date()
    since: date = asked.since or until - timedelta(days=1)
    if not 0 < (until - since).days <= _MOST_DAYS:
        raise Unreadable(f"--to must be 1 to {_MOST_DAYS} days after --from")
    return since, until


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must be a day such as 2026-11-30") from None


def _percent(text: str) -> Decimal:
    try:
        value = Decimal(text) / 100
    except InvalidOperation:
        raise argparse.ArgumentTypeError("must be a number of percent such as 0.5") from None
    if not (value.is_finite() and 0 <= value <= 1):
        raise argparse.ArgumentTypeError("must be 0 to 100 percent")
    return value
