"""The sliding minute: calls and tokens of the last 60 s, to the millisecond where it matters.

Place in the flow: `book` reads and writes it for accounts with a limit per minute. What happens in
one second shares a slice, which counts until 60 s after the last call in it: in no 60 s more than
the limit is let through, and room comes back at most a second late, never early.
"""

from __future__ import annotations

from typing import Final

import msgspec

MINUTE_MS: Final = 60_000
SLICE_MS: Final = 1_000

Slice = list[int]
"""Its last moment (epoch milliseconds), calls admitted, tokens settled."""

_decoder: Final = msgspec.json.Decoder(list[list[int]])


class Minute:
    """The slices of one account at `now_ms`, the oldest first."""

    def __init__(self, text: str, now_ms: int) -> None:
        """Read what `text` wrote. After the clock went back, a slice of the future is of now.

        `redated` says that there was one: unless it is written so, it is of the future again, and
        with it the end of its 60 s, for as long as the clock has gone back.
        """
        self.slices: list[Slice] = []
        self.calls = 0
        self.tokens = 0
        self.redated = False
        self._now = now_ms
        for last, calls, tokens in _decoder.decode(text):
            self.redated |= last > now_ms
            if last > now_ms - MINUTE_MS:
                self._add(min(last, now_ms), calls, tokens)

    def text(self) -> str:
        """Return the column `minute`."""
        return msgspec.json.encode(self.slices).decode()

    def add(self, *, calls: int = 0, tokens: int = 0) -> None:
        """Count now."""
        self._add(self._now, calls, tokens)

    def resets_at(self) -> int | None:
        """Return when the oldest slice stops counting, in epoch milliseconds; None when empty."""
        return self.slices[0][0] + MINUTE_MS if self.slices else None

    def calls_fit_at(self, spare: int) -> int | None:
        """Return when at most `spare` calls count; None for a negative number of them."""
        return self._fit_at(1, self.calls, spare)

    def tokens_fit_at(self, spare: int) -> int | None:
        """Return when at most `spare` tokens count; None for a negative number of them."""
        return self._fit_at(2, self.tokens, spare)

    def _fit_at(self, column: int, used: int, spare: int) -> int | None:
        at = self._now
        for piece in self.slices:
            if used <= spare:
                break
            used -= piece[column]
            at = piece[0] + MINUTE_MS
        return at if used <= spare else None

    def _add(self, at: int, calls: int, tokens: int) -> None:
        self.calls += calls
        self.tokens += tokens
        if self.slices and self.slices[-1][0] // SLICE_MS == at // SLICE_MS:
            newest = self.slices[-1]
            newest[0] = max(newest[0], at)
            newest[1] += calls
            newest[2] += tokens
        else:
            self.slices.append([at, calls, tokens])
