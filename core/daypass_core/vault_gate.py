"""Lets everybody ask a Vault that answers, and one at a time one that does not.

Place in the flow: around every request of `vault`. A Vault that hangs takes each request's whole
time limit; the threads of a service are few, and who waits here is a call. So while it is away one
request at a time finds out whether it is back, and all others fail at once.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from daypass_core.vault_errors import VaultBusy, VaultError, VaultUnavailable


class Gate:
    """May be used from several threads."""

    def __init__(self) -> None:
        self._probe = threading.Lock()
        self.away = False
        """Whether the last answer was none."""

    @contextmanager
    def passing(self, what: str) -> Iterator[None]:
        """Ask inside; raises VaultUnavailable at once while another one finds out."""
        probing = self.away
        if probing and not self._probe.acquire(blocking=False):
            raise VaultUnavailable(f"{what} was not tried: vault does not answer")
        try:
            yield
        except VaultError as error:
            # Over its rate limit it is there, and says so at once.
            self.away = isinstance(error, VaultUnavailable) and not isinstance(error, VaultBusy)
            raise
        else:
            self.away = False
        finally:
            if probing:
                self._probe.release()
