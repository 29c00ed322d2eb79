"""Recomputes the hash chain: `python -m daypass_broker verify-trail`, `daypass audit verify`.

Every head must follow the one before, bear the signature of one of our keys, and be what the events
come to that it covers. Each is recomputed from the hash that it says it follows, so one event that
was changed spoils the head of its minute and no other. Events that were pruned are read from their
exports. With heads that were kept elsewhere also a chain that was made anew is found.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from daypass_broker import db, schema, times
from daypass_broker.chain.links import FIELDS, GENESIS, Head, Running, Signed
from daypass_broker.keys import Purpose
from daypass_broker.retention import RetentionError, exports, trail
from daypass_broker.retention.batches import reading
from daypass_core.jwks import parse_jwks

_PORTION = 2_000
_HASH_CHARS = len(GENESIS)
_MOST_SAID = 100
_DAMAGED = (
    *(ValueError, KeyError, TypeError, RecursionError),
    *(EOFError, gzip.BadGzipFile, zlib.error),
)

_ES256 = jwt.get_algorithm_by_name("ES256")

Keys = Mapping[str, EllipticCurvePublicKey]


@dataclass(slots=True)
class Verified:
    """What was found; `wrong` is empty when all is as it was sealed.

    `elsewhere` are events that no export at hand has, `unsealed` those after the last head,
    `uncovered` exported ones that no head covers, `compared` the heads that were kept elsewhere
    (None: nobody asked). `sealed_at` is epoch milliseconds.
    """

    heads: int = 0
    events: int = 0
    elsewhere: int = 0
    unsealed: int = 0
    uncovered: int = 0
    compared: int | None = None
    sealed_upto: int | None = None
    sealed_at: int | None = None
    kids: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def say(self, problem: str) -> None:
        """Note a problem; of very many only the first."""
        if len(self.wrong) < _MOST_SAID:
            self.wrong.append(problem)

    def as_dict(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "heads": self.heads,
            "events": self.events,
            "elsewhere": self.elsewhere,
            "unsealed": self.unsealed,
            "uncovered": self.uncovered,
            "compared": self.compared,
            "sealed_upto": self.sealed_upto,
            "sealed_at": None if self.sealed_at is None else _time(self.sealed_at),
            "kids": sorted(self.kids),
            "wrong": self.wrong,
        }

    def lines(self) -> list[str]:
        """Return it in words, a line for each kind."""
        said = [f"{self.events} events in {self.heads} heads verified, {len(self.wrong)} problems"]
        if self.sealed_at is not None:
            said.append(f"sealed up to event {self.sealed_upto} at {_time(self.sealed_at)}")
        if self.compared is not None:
            said.append(f"{self.compared} heads were kept elsewhere, and compared")
        if self.elsewhere:
            said.append(f"{self.elsewhere} events were pruned: name their exports with --export")
        if self.unsealed:
            said.append(f"{self.unsealed} events are in no head yet")
        if self.uncovered:
            said.append(f"{self.uncovered} exported events are in no head, and were not verified")
        return [*said, *self.wrong]


def verify(
    engine: sa.Engine, *, directory: Path | None = None, kept: Iterable[Signed] | None = None
) -> Verified:
    """Recompute the chain of a database; `directory` has exports, `kept` are heads from elsewhere.

    Raises RetentionError, ValueError, OSError and StoreUnavailable.
    """
    if directory is not None and not directory.is_dir():
        raise RetentionError(f"{directory} is no directory")
    found = Verified()
    # Two snapshots, the heads' first: then every event that they cover is in the other.
    with _snapshot(engine) as heads, _snapshot(engine) as rows:
        keys = _keys(heads)
        known = _compared(found, keys, kept)
        lowest = rows.execute(sa.select(sa.func.min(schema.audit.c.seq))).scalar() or 0
        gone = 0 if directory is not None else min(trail.pruned_upto(rows), lowest - 1)
        verifier = _Verifier(found, keys, gone, _events(rows, directory, lowest))
        for row in heads.execute(_streamed(schema.audit_head, schema.audit_head.c.upto)):
            try:
                verifier.head(Signed.of(row._asdict()))
            except ValueError as error:
                found.say(f"head of event {row.upto}: is no whole head: {error}")
                continue
            if known.pop(row.upto, row.hash) != row.hash:
                found.say(f"head of event {row.upto}: is another than was kept elsewhere")
        verifier.rest()
    for upto in sorted(known):
        found.say(f"head of event {upto}: was kept elsewhere and is not in the database")
    return found


class _Verifier:
    """Goes through heads and events side by side, both in the order of their numbers."""

    def __init__(
        self, found: Verified, keys: Keys, gone: int, events: Iterator[Mapping[str, Any]]
    ) -> None:
        """`gone`: up to this number events were exported, and their exports are not at hand."""
        self._found = found
        self._keys = keys
        self._gone = gone
        self._events = events
        self._next = next(events, None)
        self._last: Head | None = None

    def head(self, signed: Signed) -> None:
        """Verify the next head, and the events up to it."""
        head, before = signed.head, self._last
        self._found.heads += 1
        self._found.kids.add(signed.kid)
        if head.previous != (GENESIS if before is None else before.hash):
            self._found.say(f"head of event {head.upto}: does not follow the head before it")
        if not _is_signed(self._keys, signed):
            self._found.say(f"head of event {head.upto}: its signature is none of our keys")
        self._cover(head)
        self._last = head
        self._found.sealed_upto, self._found.sealed_at = head.upto, head.at

    def rest(self) -> None:
        """Count what comes after the last head."""
        while self._next is not None:
            self._found.unsealed += 1
            self._next = next(self._events, None)

    def _cover(self, head: Head) -> None:
        while self._next is not None and self._next["seq"] < head.first:
            if self._next.get("exported"):
                self._found.uncovered += 1
            else:
                self._found.say(f"event {self._next['seq']}: is in no head, and was put in later")
            self._next = next(self._events, None)
        running = Running(head.previous if _is_hash(head.previous) else GENESIS)
        while self._next is not None and self._next["seq"] <= head.upto:
            with suppress(TypeError):  # SQLite holds bytes in a column of text: counted as missing
                running.add(self._next)
            self._next = next(self._events, None)
        if head.first <= self._gone:
            self._found.elsewhere += head.events
        elif (running.hash, running.events) == (head.hash, head.events):
            self._found.events += head.events
        else:
            self._found.say(_differs(head, running.events))


def _differs(head: Head, events: int) -> str:
    what = "one of them was changed"
    if events != head.events:
        what = f"there were {head.events} and are {events}"
    sealed = f"sealed at {_time(head.at)}"
    return f"events {head.first} to {head.upto}: are not what was {sealed}; {what}"


def _time(ms: int) -> str:
    """Return when a head says that it was made: it may say anything."""
    try:
        return times.format_ms(ms)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def _compared(found: Verified, keys: Keys, kept: Iterable[Signed] | None) -> dict[int, str]:
    """Return the hashes of heads that were kept elsewhere, by their last event."""
    known: dict[int, str] = {}
    if kept is None:
        return known
    found.compared = 0
    for one in kept:
        found.compared += 1
        if not _is_signed(keys, one):
            found.say(f"head of event {one.head.upto}, kept elsewhere: its signature is not ours")
        elif known.setdefault(one.head.upto, one.head.hash) != one.head.hash:
            found.say(f"head of event {one.head.upto}: two different ones were kept elsewhere")
    return known


def _keys(conn: sa.Connection) -> Keys:
    """Return every access key there ever was: the rows of signing keys are never deleted."""
    table = schema.signing_key
    query = sa.select(table.c.public_jwk).where(table.c.purpose == Purpose.ACCESS.value)
    keys: dict[str, EllipticCurvePublicKey] = {}
    for text in conn.execute(query).scalars():
        keys.update(parse_jwks({"keys": [db.from_json(text)]}))
    return keys


def _is_signed(keys: Keys, signed: Signed) -> bool:
    key = keys.get(signed.kid)
    with suppress(ValueError):  # neither hex nor, in a head's texts, what UTF-8 can hold
        raw, text = bytes.fromhex(signed.signature), signed.head.text()
        return key is not None and bool(_ES256.verify(text, key, raw))
    return False


def _is_hash(text: str) -> bool:
    return len(text) == _HASH_CHARS and all(one in "0123456789abcdef" for one in text)


def _events(
    conn: sa.Connection, directory: Path | None, lowest: int
) -> Iterator[Mapping[str, Any]]:
    """Yield the events in their order: what the database has, and before it what exports have."""
    if directory is not None:
        yield from _exported(directory, _exports(directory, trail.newest(conn)), lowest)
    for row in conn.execute(_streamed(schema.audit, schema.audit.c.seq)):
        yield row._asdict()


def _exports(directory: Path, named: Mapping[str, str] | None) -> list[dict[str, Any]]:
    """Return the exports of the trail in their order; `named` is the one that the trail names.

    That one, the one before it and so on to the first: others may be of another database. All of
    them where one of these is not there.
    """
    files = [one for one in exports.manifests(directory) if one["kind"] == "audit"]
    for one in files:
        if type(one["first"]) is not int or type(one["last"]) is not int:
            raise RetentionError(f"{one['file']}: is damaged; see `verify-export`")
    ours, by_digest = [], {str(one["sha256"]): one for one in files}
    digest = "" if named is None else named["sha256"]
    while digest in by_digest:
        ours.append(by_digest.pop(digest))
        digest = str(ours[-1]["previous"])
    whole = bool(ours) and ours[-1]["previous"] is None
    return sorted(ours if whole else files, key=lambda one: (one["first"], one["last"]))


def _exported(
    directory: Path, files: Iterable[Mapping[str, Any]], before: int
) -> Iterator[Mapping[str, Any]]:
    """Yield the exported events with numbers below `before`, each once."""
    last = 0
    for one in files:
        if one["last"] <= last:
            continue
        try:
            with gzip.open(directory / one["file"]) as lines:
                for line in lines:
                    event = json.loads(line)
                    if last < event["seq"] < before:
                        last = event["seq"]
                        yield {**{name: event[name] for name in FIELDS}, "exported": True}
        except _DAMAGED:
            raise RetentionError(f"{one['file']}: is damaged; see `verify-export`") from None


@contextmanager
def _snapshot(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a read transaction that sees one state; on SQLite every one does."""
    with reading(engine) as conn:
        if conn.dialect.name == "postgresql":
            conn.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield conn


def _streamed(table: sa.Table, order: sa.Column[Any]) -> sa.Select[Any]:
    query = sa.select(table).order_by(order)
    return query.execution_options(stream_results=True, yield_per=_PORTION)
