"""What the token endpoint decides instead of a token, as values: not at all, or not yet."""

from __future__ import annotations

from dataclasses import dataclass

from daypass_broker.oauth import OAuthError


@dataclass(frozen=True, slots=True)
class Refused:
    """The decision to say no to a caller whose proof verified, so it may carry help.

    `reason` is a stable slug for counters and the log; `description` goes to the caller.
    """

    reason: str
    description: str
    error: str = "invalid_grant"
    status: int = 400
    retry_after: int | None = None

    def as_error(self) -> OAuthError:
        """Return the refusal as it goes on the wire."""
        return OAuthError(
            self.error, self.description, status=self.status, retry_after=self.retry_after
        )


@dataclass(frozen=True, slots=True)
class TooSoon:
    """Nothing may be issued before this epoch second: a cut-off covers everything earlier."""

    second: int
