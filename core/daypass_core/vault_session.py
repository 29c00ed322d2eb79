"""The Vault token in use: when to get another, and when not to ask for one again.

Place in the flow: `vault` asks here before each request, and after each refusal. One login at a
time, however many threads want one; a login that failed, or did not help, is not tried again
before a pause that grows. A new login instead of renewals: those shorten silently near the token's
maximum life, and end in refusals for ever (case B13).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from logging import ERROR
from typing import Protocol

from daypass_core.log import event, get_logger
from daypass_core.vault_errors import VaultError, VaultUnavailable
from daypass_core.vault_login import Stamp

log = get_logger(__name__)

SPARE = 0.2
"""A token is replaced when this share of its life is left."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 10.0
"""Bounds of the pause after a login that failed."""
USELESS_SECONDS = 300.0
"""The longest pause after logins whose tokens were refused as well: that is a matter of policy."""


@dataclass(frozen=True, slots=True)
class Granted:
    """What a login gave: seconds to the token's end, 0 for no end that is known."""

    life: float


class Door(Protocol):
    """Where tokens come from."""

    def log_in(self) -> Granted:
        """Get a token and use it from now on; blocks. Raises VaultError."""
        ...

    def stamp(self) -> Stamp:
        """Return what changes when there is a new token to be had without asking Vault."""
        ...

    def ended(self) -> bool:
        """Say whether Vault does not know the token in use any more, as far as it tells; blocks."""
        ...

    @property
    def given(self) -> bool:
        """Whether the token is given to us, so that Vault is not asked for one."""
        ...

    @property
    def words(self) -> str:
        """The way to log in, for a person."""
        ...


class Session:
    """May be used from several threads; times are monotonic seconds."""

    def __init__(
        self,
        door: Door,
        monotonic: Callable[[], float],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`jitter` gives 0 … 1: a fleet must not log in, or try again, in step."""
        self._door = door
        self._monotonic = monotonic
        self._jitter = jitter
        self._lock = threading.Lock()
        self._logins = 0
        self._since = 0.0
        self._due = 0.0  # infinity for tokens whose end is not known
        self._ends = 0.0
        self._stamp: Stamp = None
        self._failure: VaultError | None = None
        self._not_before = 0.0  # of the next login
        self._pause = FIRST_PAUSE_SECONDS
        self._useless_pause = FIRST_PAUSE_SECONDS
        self._useless_until = 0.0
        self.counts = {"ok": 0, "failed": 0}
        """How logins ended; for the metrics."""

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end of the token in use; None without one, or when it is not known."""
        if not self._logins or self._ends == float("inf"):
            return None
        return max(0.0, self._ends - self._monotonic())

    def ensure(self) -> int:
        """Log in when there is no token, it nears its end, or its file was replaced.

        Returns which token it is now. Raises VaultError when there is none that could be used; one
        that has not ended yet goes on when the login for the next one fails.
        """
        # While somebody gets the next token, the one that has not ended is as good.
        if not self._lock.acquire(blocking=not self._usable(self._monotonic())):
            return self._logins
        try:
            now = self._monotonic()
            replaced = self._logins > 0 and self._door.stamp() != self._stamp
            if now < self._due and not replaced:
                return self._logins
            usable = self._usable(now)
            if now < self._not_before and not replaced:
                if usable:
                    return self._logins
                raise self._failure or VaultUnavailable("vault login failed a moment ago")
            try:
                self._log_in()
            except VaultError:
                if not usable:
                    raise
            return self._logins
        finally:
            self._lock.release()

    def another(self, seen: int) -> bool:
        """After token number `seen` was refused: say whether there is another one to try with.

        Logs in unless somebody has since. Raises VaultError when that fails.
        """
        with self._lock:
            if self._logins != seen:
                return True
            now = self._monotonic()
            if self._door.given and self._door.stamp() == self._stamp:
                return False
            if now < self._useless_until or now < self._not_before:
                # Others' refusals hold this one back; but not if it is the token after all.
                young = now < self._since + FIRST_PAUSE_SECONDS
                if young or now < self._not_before or not self._door.ended():
                    return False
            # Doubled now, and taken back when the new token is of use: who may not read one path
            # must not log in at each look at it.
            self._useless_until = now + self._spread(self._useless_pause)
            self._useless_pause = min(self._useless_pause * 2, USELESS_SECONDS)
            self._log_in()
            return True

    def helped(self) -> None:
        """Take note that the token got after a refusal was of use."""
        with self._lock:
            self._useless_pause = FIRST_PAUSE_SECONDS

    def _usable(self, now: float) -> bool:
        # Whoever gave a token may have renewed it since: its end is not ours to know.
        return self._logins > 0 and (self._door.given or now < self._ends)

    def _log_in(self) -> None:
        stamp = self._door.stamp()
        try:
            granted = self._door.log_in()
        except VaultError as error:
            self._failed(error, stamp)
            raise
        now = self._since = self._monotonic()
        spare = SPARE * (1 + 0.5 * self._jitter())
        self._due = now + granted.life * (1 - spare) if granted.life else float("inf")
        if granted.life:
            self._ends = now + granted.life
        elif not self._logins or stamp is None or stamp != self._stamp:
            self._ends = float("inf")
        self._stamp, self._failure = stamp, None
        self._pause, self._not_before = FIRST_PAUSE_SECONDS, 0.0
        self._logins += 1
        self.counts["ok"] += 1
        event(log, "vault_logged_in", by=self._door.words, life_seconds=round(granted.life))

    def _failed(self, error: VaultError, stamp: Stamp) -> None:
        self._stamp = stamp  # looked at once, while the token from before goes on
        # Reading a file again costs Vault nothing; asking one that is away holds a thread.
        first = self._door.given and not self._logins
        free = first and not isinstance(error, VaultUnavailable)
        pause = 0.0 if free else self._spread(self._pause)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)
        self._failure, self._not_before = error, self._monotonic() + pause
        self.counts["failed"] += 1
        event(
            log,
            "vault_login_failed",
            level=ERROR,
            by=self._door.words,
            reason=str(error),
            seconds_left=None if (left := self.seconds_left) is None else round(left),
        )

    def _spread(self, seconds: float) -> float:
        return seconds * (0.8 + 0.4 * self._jitter())
