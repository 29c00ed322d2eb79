"""Where the tokens of a sandbox may be used from, decided at every exchange.

`judge` gives the networks that go into the token, which the proxy enforces at every call. A sandbox
that is bound and asks from elsewhere, or from nobody knows where, gets nothing: a credential in two
places is a copy. `bind` writes the first one down, once something is issued there. Runs inside the
caller's write transaction, the sandbox's row is locked.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from daypass_broker import audit, schema
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_broker.fields import Fields
from daypass_broker.refused import Refused
from daypass_core.claims import MAX_SOURCES
from daypass_core.source import ANY, FIRST, inside, is_host, network_of, read_network, within

FOREIGN_SOURCE = "foreign_source"
"""The incident of a credential that was used from elsewhere."""
_SEPARATOR = " "


def judge(act: Act, sandbox: sa.Row[Any], peer: str) -> tuple[str, ...] | Refused:
    """Return the networks that a token of this sandbox may be used from, empty for anywhere.

    `peer` is the address that the proxy saw. A client of a Unix socket has no address: to a sandbox
    that is bound, or is to be, it is a stranger.
    """
    networks = bound_to(sandbox)
    if networks is None:
        first = network_of(peer)
        return _refuse(act, sandbox, peer) if first is None else (first,)
    if not networks or inside(networks, peer):
        return networks
    return _refuse(act, sandbox, peer)


def bind(act: Act, sandbox: sa.Row[Any], networks: tuple[str, ...]) -> None:
    """Bind a sandbox of `first` that is bound nowhere yet to what `judge` returned.

    Not before something is issued by a credential of its own: whoever is refused, or holds but a
    token of before, must not be able to lock it up in another place.
    """
    if bound_to(sandbox) is not None:
        return
    (network,) = networks
    table = schema.sandbox
    act.conn.execute(sa.update(table).where(table.c.id == sandbox.id).values(source_bound=network))
    act.tell(
        AuditTag.SOURCE_PINNED,
        tenant=sandbox.tenant,
        sandbox=sandbox.id,
        subject=sandbox.id,
        detail={"source": network},
    )


def bound_to(sandbox: sa.Row[Any]) -> tuple[str, ...] | None:
    """Return the networks of a sandbox, empty for anywhere; None while the first is awaited."""
    if sandbox.source == ANY:
        return ()
    if sandbox.source == FIRST:
        return None if sandbox.source_bound is None else (sandbox.source_bound,)
    return tuple(sandbox.source.split(_SEPARATOR))


def read(fields: Fields) -> str | None:
    """Take `source` out of an object, as the text of a row: any, first, or networks.

    Raises FieldError.
    """
    value: object = fields.raw("source")
    if value is None:
        return None
    if value in (ANY, FIRST):
        return str(value)
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_SOURCES:
        raise fields.error(
            "source", f"must be any, first, or a list of 1 to {MAX_SOURCES} networks"
        )
    networks = [_network(fields, number, item) for number, item in enumerate(value)]
    return _SEPARATOR.join(dict.fromkeys(networks))


def document(text: str) -> str | list[str]:
    """Write the text of a row as `read` takes it again."""
    return text if text in (ANY, FIRST) else text.split(_SEPARATOR)


def narrowed(most: str, wanted: str | None) -> str:
    """Return what is wanted where `most` allows it, and `most` when nothing is.

    Raises ValueError saying what is allowed. Of `first`, one host alone is narrower.
    """
    if wanted is None or wanted == most:
        return most if wanted is None else wanted
    if most == ANY:
        return wanted
    if most == FIRST:
        if wanted != ANY and _SEPARATOR not in wanted and is_host(wanted):
            return wanted
        raise ValueError("must be first, or the network of one host")
    networks = most.split(_SEPARATOR)
    if wanted in (ANY, FIRST) or not within(wanted.split(_SEPARATOR), networks):
        raise ValueError(f"must be networks within {', '.join(networks)}")
    return wanted


def _network(fields: Fields, number: int, item: object) -> str:
    try:
        return read_network(item if isinstance(item, str) else "")
    except ValueError as error:
        raise fields.error(f"source[{number}]", str(error)) from None


def _refuse(act: Act, sandbox: sa.Row[Any], peer: str) -> Refused:
    audit.count(act.conn, sandbox.id, FOREIGN_SOURCE, act.at)
    if network_of(peer) is None:
        return Refused(
            FOREIGN_SOURCE,
            "sandbox is bound to a network, and your address is not known: use the proxy by TCP,"
            " or have it registered with source any",
        )
    return Refused(
        FOREIGN_SOURCE,
        "sandbox is bound to another network; ask your orchestrator for a sandbox of your own",
    )
