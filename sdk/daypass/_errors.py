"""Every error of the SDK and the command, each with a sentence of what to do.

    DaypassError
    ├── SettingsError      something on our own side is missing or contradicts itself
    ├── NotInstalled       a part that this command needs is not installed
    ├── ServiceFailed      a service started by `daypass up` ended or never got ready
    ├── NotVerified        the ledger could not be checked, so nothing is known about it
    ├── NotRevoked         a revocation was not confirmed: what was to end has to be taken as good
    ├── Unreachable        no answer at all: address, network, TLS
    ├── Unavailable        an answer that says "later"; `retry_after` says when
    └── Refused            an answer that says "no"; `status`, `code` and `field` say why
        └── Revoked        the sandbox, its grant or its launch credential is no longer good

Messages start lower-case, carry no full stop and never carry a credential.
"""

from __future__ import annotations


class DaypassError(Exception):
    """Anything daypass cannot or will not do; `hint` says what to do about it."""

    exit_code = 1
    usual_hint = ""

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        self.message = message
        self.hint = self.usual_hint if hint is None else hint
        super().__init__(f"{message}; {self.hint}" if self.hint else message)


class SettingsError(DaypassError):
    """A setting, flag or file of ours is missing, malformed or contradicts another."""

    exit_code = 2


class NotInstalled(DaypassError):
    """A package this command needs is not installed."""

    usual_hint = "run: pip install 'daypass[server]'"


class ServiceFailed(DaypassError):
    """A service that `daypass up` started ended, or did not become ready in time."""


class NotVerified(DaypassError):
    """A check of the database could not be made; never to be taken for books that are wrong."""

    exit_code = 2


class NotRevoked(DaypassError):
    """The broker did not confirm a revocation; what was to end has to be taken as still good."""

    usual_hint = (
        "repeat it until it is confirmed, twice is harmless; if the broker stays away, stop the"
        " proxies"
    )


class Unreachable(DaypassError):
    """Nothing answered: wrong address, no network, no TLS trust, or a time-out.

    `sent` is False only when the request cannot have reached the other side, so that a
    credential good for one use may safely be presented again.
    """

    usual_hint = "check the address and that the service is running"

    def __init__(self, message: str = "", *, hint: str | None = None, sent: bool = True) -> None:
        self.sent = sent
        super().__init__(message, hint=hint)


class Unavailable(DaypassError):
    """The other side cannot say now; try again after `retry_after` seconds."""

    usual_hint = "try again in a moment"

    def __init__(
        self, message: str = "", *, hint: str | None = None, retry_after: float | None = None
    ) -> None:
        self.retry_after = retry_after
        super().__init__(message, hint=hint)


class Refused(DaypassError):
    """The other side understood and said no.

    `status` is the HTTP status, `code` the stable word of the refusal (or None), `field` the
    part of the request it is about (or None).
    """

    def __init__(
        self,
        message: str = "",
        *,
        hint: str | None = None,
        status: int = 0,
        code: str | None = None,
        field: str | None = None,
    ) -> None:
        self.status = status
        self.code = code
        self.field = field
        super().__init__(message, hint=hint)


class Revoked(Refused):
    """The token endpoint answered `invalid_grant` (RFC 6749 §5.2): renewing is over."""

    usual_hint = "ask whoever started this sandbox for a new launch credential"


def in_both_families(error: DaypassError, family: type[Exception]) -> DaypassError:
    """The same error as one of `family` too, the base class of an official client's errors.

    Such a client passes its own errors on and hides all others in a "Connection error".
    """
    kind = type(error)
    both = type(kind.__name__, (kind, family), {"__module__": kind.__module__})
    made: DaypassError = both.__new__(both, *error.args)
    made.__dict__.update(error.__dict__)
    return made
