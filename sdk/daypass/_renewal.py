"""One renewal: look into the shared cache, exchange if that does not help, store the result.

`_token` decides when; this file knows how. Between processes the lock of the cache makes sure
that one of them exchanges and the rest take over what it got.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from daypass._cache import Stored, TokenCache, launch_id
from daypass._errors import DaypassError, Revoked, SettingsError, Unavailable
from daypass._exchange import Issued, exchange_launch, renew, repeatable
from daypass._files import read_credential
from daypass._http import Origin

# At the latest; a life of 600 s then leaves 90 s before the last moments, for an outage of 80.
RENEW_AT = 0.8
JITTER = 0.1
# Closer than this to the end (or 5 % of a short life) nobody goes on with the old token.
LAST_SECONDS = 30.0
# How long an exchange that may be repeated is repeated; the broker's grace is ten seconds.
REPEAT_SECONDS = 8.0
FIRST_PAUSE_SECONDS = 0.25
# A credential that was refused for good is not presented again for so long, a new one at once.
REFUSED_SECONDS = 300.0
LOCK_SECONDS = 35.0


@dataclass(frozen=True)
class Held:
    """A token in memory; `ends` and `renew_at` on the monotonic clock, `expires_at` wall clock."""

    value: str = field(repr=False)
    lifetime: float
    ends: float
    renew_at: float
    expires_at: float


@dataclass(frozen=True)
class Time:
    """The clocks, the dice and the pause, so that tests can bring their own."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    uniform: Callable[[float, float], float] = random.uniform
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Launch:
    """Where the launch credential is, and what the exchange says beside it."""

    value: str | None = field(repr=False)
    file: Path | None
    rule: str | None
    organization: str | None

    def read(self) -> str | None:
        """The credential now; its file is read anew, it may have been replaced."""
        return read_credential(self.file) if self.file else self.value


def last_moments(lifetime: float) -> float:
    """How many seconds before its end a token of `lifetime` seconds counts as gone."""
    return min(LAST_SECONDS, lifetime * 0.05)


class Renewer:
    """Gets the next token for one sandbox; not thread-safe, `TokenProvider` sees to that."""

    def __init__(self, origin: Origin, launch: Launch, cache: TokenCache, clock: Time) -> None:
        self._origin = origin
        self._launch = launch
        self._cache = cache
        self._time = clock
        self._launch_id: str | None = None
        self._refused: tuple[str | None, float, Revoked] | None = None  # credential, until, why
        self.generation: str | None = None

    def renew(self, before: Held | None, *, urgent: bool, rejected: str | None) -> Held | None:
        """The next token, or None when another process is renewing and there is no hurry.

        Raises any `DaypassError` of the exchange, and `Unavailable` when the lock stays taken.
        """
        wait = LOCK_SECONDS if urgent else 0.0
        pause, clock = self._time.sleep, self._time.monotonic
        with self._cache.locked(wait, sleep=pause, clock=clock) as mine:
            if not mine and not urgent:
                return None
            if not mine:
                raise Unavailable(
                    f"another process has been renewing for {LOCK_SECONDS:.0f} s",
                    hint=f"see which process holds {self._cache.path}.lock",
                )
            return self._take_over_or_exchange(before, rejected)

    def _take_over_or_exchange(self, before: Held | None, rejected: str | None) -> Held:
        launch, missing = None, None
        try:
            launch = self._launch.read()
        except SettingsError as error:
            missing = error  # fine as long as there is a renewal generation
        stored = self._matching(self._cache.load(), launch)
        if stored is not None and self._good(stored, before, rejected):
            self.generation, self._launch_id = stored.refresh_token, stored.launch_id
            return self._hold(stored.access_token, stored.lifetime, stored.expires_at)
        if stored is not None and stored.refresh_token is not None:
            self.generation, self._launch_id = stored.refresh_token, stored.launch_id
        elif launch is not None and launch_id(launch) != self._launch_id:
            self.generation = None  # it belongs to a credential that has been replaced
        issued = self._exchange(launch, missing)
        self.generation = issued.refresh_token
        self._launch_id = launch_id(launch) if launch else self._launch_id
        expires_at = self._time.wall() + issued.lifetime
        self._cache.save(
            Stored(
                issued.access_token,
                expires_at,
                issued.lifetime,
                issued.refresh_token,
                self._launch_id,
            )
        )
        return self._hold(issued.access_token, issued.lifetime, expires_at)

    def _matching(self, stored: Stored | None, launch: str | None) -> Stored | None:
        """The stored entry, unless it belongs to a launch credential that was replaced since."""
        if stored is None or launch is None or stored.launch_id == launch_id(launch):
            return stored
        return None

    def _good(self, stored: Stored, before: Held | None, rejected: str | None) -> bool:
        left = stored.expires_at - self._time.wall()
        known = (rejected, before.value if before else None)
        return left > last_moments(stored.lifetime) and stored.access_token not in known

    def _exchange(self, launch: str | None, missing: SettingsError | None) -> Issued:
        """One exchange, repeated for a while where that is safe."""
        give_up = self._time.monotonic() + REPEAT_SECONDS
        pause = FIRST_PAUSE_SECONDS
        while True:
            outcome = self._try(launch, missing)
            if isinstance(outcome, Issued):
                return outcome
            wait = max(pause, getattr(outcome, "retry_after", None) or 0.0)
            again = repeatable(outcome, renewal=self.generation is not None)
            if not again or self._time.monotonic() + wait > give_up:
                raise outcome
            self._time.sleep(wait)
            pause *= 2

    def _try(self, launch: str | None, missing: SettingsError | None) -> Issued | DaypassError:
        presented = self.generation or launch
        if self._refused is not None:
            refused, until, why = self._refused
            if refused == presented and self._time.monotonic() < until:
                return why
        try:
            if self.generation is not None:
                return renew(self._origin, self.generation)
            if launch is not None:
                return exchange_launch(
                    self._origin,
                    launch,
                    rule=self._launch.rule,
                    organization=self._launch.organization,
                )
        except Revoked as error:
            self._refused = presented, self._time.monotonic() + REFUSED_SECONDS, error
            return error
        except DaypassError as error:
            return error
        return missing or SettingsError(
            "no launch credential, and nothing usable in the token cache",
            hint="start this command through `daypass run` again",
        )

    def _hold(self, value: str, lifetime: float, expires_at: float) -> Held:
        # The wall-clock end is capped by the life, so a clock set back cannot stretch it.
        left = min(expires_at - self._time.wall(), lifetime)
        ends = self._time.monotonic() + left
        share = RENEW_AT * self._time.uniform(1 - JITTER, 1)
        return Held(value, lifetime, ends, ends - lifetime * (1 - share), expires_at)
