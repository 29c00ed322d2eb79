"""Keeps the token file of a running command fresh, and with it the cache that its clients share.

`daypass run` starts one beside its command. The file is replaced whole, so a reader never sees half
a token; when access is over it is removed, so that a helper which prints it fails instead of
printing a dead token. The cache stays: who renews from there is told why it is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from daypass._errors import DaypassError, Revoked
from daypass._files import write_private
from daypass._token import AccessToken, TokenProvider

# How often to try again after an outage, and to look for a new launch credential after a refusal:
# the refused one is not presented again for minutes, see `_renewal`.
OUTAGE_SECONDS = 5.0
# A due renewal that another process is doing, or a very short life, must not become a busy loop.
LEAST_SECONDS = 0.2


class Keeper:
    """Writes the file at once, then again at each renewal, until `stop`."""

    def __init__(
        self, provider: TokenProvider, token_file: Path, say: Callable[[str], None]
    ) -> None:
        self._provider = provider
        self._token_file = token_file
        self._say = say
        self._written: str | None = None
        self._trouble: type[DaypassError] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="daypass-keeper", daemon=True)

    def start(self) -> None:
        """Write the file for the first time and keep it fresh in the background."""
        self._write(self._provider.get())
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing and remove the file."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=1.0)
        self._remove()

    def step(self) -> float:
        """Renew if that is due; gives the seconds until the next step."""
        try:
            token = self._provider.get()
            self._write(token)
        except Revoked as error:
            self._remove()
            self._note(error, f"access is over: {error}")
            return OUTAGE_SECONDS
        except DaypassError as error:
            self._note(error, f"cannot renew: {error}")
            return OUTAGE_SECONDS
        except OSError as error:
            self._note(DaypassError(), f"cannot write {self._token_file}: {error.strerror}")
            return OUTAGE_SECONDS
        failure = self._provider.failure
        if failure is not None:  # the old token is still good for a while
            what = "access ends soon" if isinstance(failure, Revoked) else "cannot renew yet"
            self._note(failure, f"{what}: {failure}")
        elif self._trouble is not None:
            self._trouble = None
            self._say("renewed, access goes on")
        return max(LEAST_SECONDS, self._provider.seconds_to_renewal())

    def _keep(self) -> None:
        wait = max(LEAST_SECONDS, self._provider.seconds_to_renewal())
        while not self._stop.wait(wait):
            wait = self.step()

    def _note(self, error: DaypassError, text: str) -> None:
        """Say each kind of trouble once, not at every attempt."""
        if self._trouble is not type(error):
            self._trouble = type(error)
            self._say(text)

    def _write(self, token: AccessToken) -> None:
        if token.value == self._written:
            return
        write_private(self._token_file, token.value.encode())
        self._written = token.value

    def _remove(self) -> None:
        self._written = None
        self._token_file.unlink(missing_ok=True)
