"""One provider key in memory: since when, until when, and by what it would be found in an answer.

Place in the flow: `keyring` reads and changes these; nothing here reads, waits or reveals.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from enum import StrEnum

from daypass_core.secret import Reference, Secret

STALE_SECONDS = 15 * 60
"""So long a key is used that could not be read again."""
FRESH_SECONDS = 2 * 60
"""A key that was read within this time is fresh: one look a minute, and one that may fail."""
SEARCHED_SECONDS = 15 * 60
"""So long an answer may be on its way to a call that went up with a key of before."""
TELL_SECONDS = 50
"""Between two log lines about one key that goes on to fail."""
_MOST_SEARCHED = 32
_MARGIN_SECONDS = 5.0
_AHEAD_MOST_SECONDS = 120.0
_AHEAD_LEAST_SECONDS = 30.0


class State(StrEnum):
    """What a key is good for."""

    FRESH = "fresh"
    STALE = "stale"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class _Old:
    """The forms of a key of before, and when it was replaced."""

    forms: re.Pattern[bytes] = field(repr=False)
    since: float


@dataclass(slots=True)
class Held:
    """One key; times in monotonic seconds.

    `forms` are how it could show in an answer, `old` those of keys before it. A pattern finds them
    in one pass over the headers of every answer; None when there are none. `error` is why it could
    not be read the last time, told at `told_at`; `passing`, that it may pass by itself. `life` is
    that of a credential with an end, in seconds, else None.
    """

    reference: Reference
    secret: Secret | None = None
    read_at: float = 0.0
    life: float | None = None
    tried_at: float | None = None
    reread_at: float | None = None
    error: str | None = None
    passing: bool = False
    told_at: float | None = None
    forms: re.Pattern[bytes] | None = field(default=None, repr=False)
    old: tuple[_Old, ...] = field(default=(), repr=False)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def federated(self) -> bool:
        """Whether it is exchanged for an identity token, and ends by itself."""
        return self.reference.kind == "federation"

    @property
    def finding(self) -> str | None:
        """Why it could not be read the last time; None where it was."""
        return self.error or ("was not read in time" if self.secret is None else None)

    def usable(self, now: float) -> bool:
        """Say whether a call may go up with it."""
        if self.secret is None:
            return False
        if self.life is not None:
            return now < self.read_at + self.life - _MARGIN_SECONDS
        return now - self.read_at <= STALE_SECONDS

    def state(self, now: float) -> State:
        """Say what it is good for."""
        if not self.usable(now):
            return State.LOST
        if self.life is not None:
            # It needs no second look while it lives; when the next one fails, its time runs out.
            return State.FRESH if self.error is None else State.STALE
        return State.FRESH if now - self.read_at <= FRESH_SECONDS else State.STALE

    def renewal_at(self, jitter: float) -> float:
        """Return when to exchange for the next one, ahead of its end; `jitter` is 0 … 1."""
        if self.secret is None or self.life is None:
            return 0.0
        ahead = min(_AHEAD_MOST_SECONDS, max(_AHEAD_LEAST_SECONDS, self.life / 4))
        return self.read_at + self.life - min(ahead * (1 + 0.5 * jitter), self.life / 2)

    def took(
        self, secret: Secret, forms: re.Pattern[bytes] | None, began: float, life: float | None
    ) -> None:
        """Take what was read at `began`; the forms of the one before stay searched for."""
        if forms is not self.forms and self.forms is not None:
            late = began - SEARCHED_SECONDS
            kept = tuple(each for each in self.old if each.since > late)
            self.old = (*kept, _Old(self.forms, began))[-_MOST_SEARCHED:]
        self.secret, self.read_at, self.forms, self.life = secret, began, forms, life
        self.error = None

    def failed(self, error: Exception, now: float, *, passing: bool) -> bool:
        """Keep what there is, and why it could not be read; say whether that is to be told.

        Tried every few seconds, it is told once a minute, or when it is another kind of fault.
        """
        self.tried_at = now  # its end: whoever waited for it does not wait for the next one too
        same = self.error is not None and self.error.startswith(f"{type(error).__name__}:")
        self.error, self.passing = f"{type(error).__name__}: {error}", passing
        if same and self.told_at is not None and now - self.told_at < TELL_SECONDS:
            return False
        self.told_at = now
        return True

    def is_in(self, data: bytes) -> bool:
        """Say whether `data` holds the key, or one before it."""
        if self.forms is not None and self.forms.search(data):
            return True
        return bool(self.old) and any(each.forms.search(data) for each in self.old)
