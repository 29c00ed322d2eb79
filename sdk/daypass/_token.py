"""TokenProvider: a good access token whenever one is asked for.

It exchanges the launch credential, keeps the token, renews it at 72 to 80 % of its life while
others go on with the old one, and lets callers wait only when the old one is as good as dead.
One exchange is in flight at a time: across threads by a flight that all share, across processes
by the lock of `_cache`. Lives are counted from the server's `expires_in` on the monotonic clock,
so a wrong or jumping wall clock in the sandbox does no harm.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from daypass._cache import TokenCache, default_path
from daypass._errors import DaypassError, Refused, SettingsError, Unreachable
from daypass._http import Origin
from daypass._renewal import Held, Launch, Renewer, Time, last_moments
from daypass._settings import RULE, SandboxSettings, bare_origin, sandbox_settings

SELF_PATH = "/v1/self"
# After a renewal that failed or was refused: how long to leave the token endpoint alone.
BACK_OFF_SECONDS = 5.0
# The same after an outage that left callers without any token, and while another process renews.
SHORT_BACK_OFF_SECONDS = 1.0


@dataclass(frozen=True)
class AccessToken:
    """A token and when it ends (wall-clock epoch seconds, as far as this machine knows)."""

    value: str = field(repr=False)
    expires_at: float


class _Flight:
    """One renewal in progress; whoever waits for it shares its outcome."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: DaypassError | None = None


class TokenProvider:
    """Gives access tokens for one sandbox; safe to share between threads and across a fork.

    `base_url` is the proxy (default: DAYPASS_BASE_URL, ANTHROPIC_BASE_URL). The launch credential
    is `launch`, else the content of `launch_file`, else what the environment names. `cache` is a
    file shared with other processes, None for the default place, False for memory only.
    Raises `SettingsError` when something needed is missing.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        launch: str | None = None,
        launch_file: str | Path | None = None,
        organization: str | None = None,
        rule: str | None = None,
        cache: str | Path | bool | None = None,
        ca_file: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        clock: Time | None = None,
    ) -> None:
        found = sandbox_settings(env)
        url = bare_origin(base_url) if base_url else found.base_url
        if url is None:
            raise SettingsError(
                "no proxy address", hint="set ANTHROPIC_BASE_URL, or pass --base-url"
            )
        self.base_url = url
        given = launch is not None or launch_file is not None
        credential = Launch(
            value=launch if given else found.launch,
            file=Path(launch_file) if launch_file else None if given else found.launch_file,
            rule=rule or found.rule,
            organization=organization or found.organization,
        )
        self.cache_path = _cache_path(cache, credential, found)
        if credential.value is None and credential.file is None and self.cache_path is None:
            raise SettingsError(
                "no launch credential",
                hint="set ANTHROPIC_IDENTITY_TOKEN_FILE, or pass --launch FILE",
            )
        self._origin = Origin(url, ca_file=Path(ca_file) if ca_file else None, env=env)
        self._time = clock or Time()
        self._renewer = Renewer(self._origin, credential, TokenCache(self.cache_path), self._time)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._held: Held | None = None
        self._flight: _Flight | None = None
        self._failure: DaypassError | None = None
        self._quiet_until = 0.0  # no early renewal before this
        self._closed_until = 0.0  # no renewal at all before this

    @property
    def single_use(self) -> bool:
        """True when the last exchange gave a renewal generation, as `single_use` launches do."""
        return self._renewer.generation is not None

    def token(self, *, rejected: str | None = None) -> str:
        """A good token; pass the one a server answered 401 to as `rejected` to get another.

        Raises `Revoked` when access is over, `Unreachable` or `Unavailable` when the token
        endpoint cannot say and no good token is left.
        """
        return self.get(rejected=rejected).value

    def get(self, *, rejected: str | None = None) -> AccessToken:
        """Like `token`, with the end of its life."""
        if os.getpid() != self._pid:
            self._after_fork()
        while True:
            with self._lock:
                held, urgent = self._held, self._is_urgent(rejected)
                if held is not None and not urgent and not self._is_due(held):
                    return AccessToken(held.value, held.expires_at)
                flight = self._flight
                if flight is None:
                    self._check_closed(urgent)
                    flight = self._flight = _Flight()
                    break
            if held is not None and not urgent:
                return AccessToken(held.value, held.expires_at)
            flight.done.wait()
            if flight.error is not None:
                raise flight.error
        held = self._lead(flight, urgent, rejected)
        return AccessToken(held.value, held.expires_at)

    def verified(self) -> AccessToken:
        """A token that the proxy accepts at this moment: one more request, for helpers.

        A token from the cache may have been revoked by now, and who prints it cannot see the
        401 that its reader will get. Raises as `token`.
        """
        held = self.get()
        headers = {"authorization": f"Bearer {held.value}"}
        try:
            answer = self._origin.call("GET", SELF_PATH, headers=headers)
        except Unreachable:
            return held  # the token may well be good; its reader will see what is wrong
        return self.get(rejected=held.value) if answer.status == 401 else held

    @property
    def failure(self) -> DaypassError | None:
        """Why the last renewal failed; None when it succeeded. An old token may still be good."""
        return self._failure

    def seconds_to_renewal(self) -> float:
        """Seconds until the next renewal is due; 0 when it is due or nothing is held."""
        with self._lock:
            held = self._held
            if held is None:
                return 0.0
            due = max(held.renew_at, self._quiet_until)
            due = min(due, held.ends - last_moments(held.lifetime))
            return max(0.0, due - self._time.monotonic())

    def __repr__(self) -> str:
        """Name the proxy, never a token."""
        return f"TokenProvider({self.base_url!r})"

    def _after_fork(self) -> None:
        """A lock or flight of the parent would never end in the child; the token stays good."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._flight = None

    def _is_due(self, held: Held) -> bool:
        now = self._time.monotonic()
        return now >= held.renew_at and now >= self._quiet_until

    def _is_urgent(self, rejected: str | None) -> bool:
        """Whether the held token is of no use to this caller."""
        held = self._held
        if held is None or (rejected is not None and rejected == held.value):
            return True
        return held.ends - self._time.monotonic() <= last_moments(held.lifetime)

    def _check_closed(self, urgent: bool) -> None:
        """Answer at once what the token endpoint said a moment ago."""
        if urgent and self._failure and self._time.monotonic() < self._closed_until:
            raise self._failure

    def _lead(self, flight: _Flight, urgent: bool, rejected: str | None) -> Held:
        """Renew for all who wait on `flight`; a failed early renewal leaves the old token."""
        before = self._held
        try:
            fresh = self._renewer.renew(before, urgent=urgent, rejected=rejected)
        except DaypassError as error:
            self._note_failure(error, urgent)
            if urgent or before is None:
                flight.error = error
                raise
            return before
        else:
            with self._lock:
                self._failure = None
                if fresh is not None:
                    self._held = fresh
                else:
                    self._quiet_until = self._time.monotonic() + SHORT_BACK_OFF_SECONDS
            held = fresh or before
            assert held is not None
            return held
        finally:
            with self._lock:
                self._flight = None
            flight.done.set()

    def _note_failure(self, error: DaypassError, urgent: bool) -> None:
        now = self._time.monotonic()
        with self._lock:
            self._failure = error
            self._quiet_until = now + BACK_OFF_SECONDS
            if urgent:
                said_no = isinstance(error, Refused)
                self._closed_until = now + (BACK_OFF_SECONDS if said_no else SHORT_BACK_OFF_SECONDS)


def _cache_path(
    wanted: str | Path | bool | None, launch: Launch, found: SandboxSettings
) -> Path | None:
    if wanted is False:
        return None
    if wanted is not None and wanted is not True:
        return Path(wanted)
    if found.token_cache is not None:
        return found.token_cache
    # A credential in a file may be replaced there: the file's name keeps its place in the cache.
    key = str(launch.file.absolute()) if launch.file else launch.value
    if not key:
        return None
    # One assertion may serve several rules, each with its own tokens. Our own launch credential
    # has one, which some processes of a sandbox name and others do not.
    own = launch.rule == RULE
    return default_path(found.cache_dir, key if own else f"{key} {launch.rule}")
