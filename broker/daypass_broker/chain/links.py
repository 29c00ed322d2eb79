"""What the hash chain is made of: the bytes of an event, the step from one to the next, a head."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from daypass_broker import db

GENESIS = "0" * 64
"""What the first head follows."""
FIELDS = (
    "actor",
    "at",
    "detail",
    "request_id",
    "sandbox",
    "seq",
    "subject",
    "tag",
    "tenant",
)
"""What of an event is hashed. Never changed: a column that comes later is in no old hash."""
_FORMAT = 1
_NUMBERS = ("first", "upto", "events", "at")
_TEXTS = ("previous", "hash")


@dataclass(frozen=True, slots=True)
class Head:
    """Where the chain stands after the event number `upto`.

    It covers the `events` from number `first` on that no head before it does; `at` is when it was
    made, in epoch milliseconds of the store; hashes are hex. `previous` is that of the head before.
    """

    first: int
    upto: int
    events: int
    at: int
    previous: str
    hash: str

    def text(self) -> bytes:
        """Return what is signed: JSON with sorted keys and no spaces.

        It begins with a brace, as what is signed of a JWT never does: so a signature of a head is
        one of no token, whatever its verifier looks at, and the key of access tokens can make it.
        """
        return db.to_json({**self.as_dict(), "format": _FORMAT}).encode()

    def as_dict(self) -> dict[str, object]:
        """Return it as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Signed:
    """A head with the key id and the signature (64 bytes in hex) that it came with.

    `of` takes it from a row or a line of the log; both may hold anything. So may its texts.
    """

    head: Head
    kid: str
    signature: str

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Signed:
        """Return the head that these values are; raises ValueError for what is no whole head."""
        for fields, kind in ((_NUMBERS, int), ((*_TEXTS, "kid", "signature"), str)):
            for name in fields:
                if type(values.get(name)) is not kind:
                    raise ValueError(f"{name} is no {kind.__name__}")
        head = Head(**{name: values[name] for name in (*_NUMBERS, *_TEXTS)})  # type: ignore[arg-type]
        return cls(head, str(values["kid"]), str(values["signature"]))


class Running:
    """The chain while events are added to it."""

    def __init__(self, previous: str) -> None:
        """`previous` is the hash to go on from; raises ValueError when it is none."""
        self._digest = bytes.fromhex(previous)
        self.events = 0

    @property
    def hash(self) -> str:
        """Where it stands, in hex."""
        return self._digest.hex()

    def add(self, event: Mapping[str, object]) -> None:
        """Add the next event: SHA-256 of the hash so far and of the event's FIELDS as JSON.

        `detail` is the text of its column. Raises KeyError for an event that lacks a field.
        """
        line = db.to_json({name: event[name] for name in FIELDS}).encode()
        self._digest = hashlib.sha256(self._digest + line).digest()
        self.events += 1
