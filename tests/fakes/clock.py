"""A clock that stands still until a test moves it."""

DEFAULT_NOW = 1_800_000_000.0


class FakeClock:
    """A `Clock` whose times are plain attributes: set `time` and `mono`, or `advance()` both."""

    def __init__(self, now: float = DEFAULT_NOW, monotonic: float = 1_000.0) -> None:
        self.time = now
        self.mono = monotonic

    def now(self) -> float:
        """Return `time`, epoch seconds."""
        return self.time

    def monotonic(self) -> float:
        """Return `mono`, seconds."""
        return self.mono

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on both clocks."""
        self.time += seconds
        self.mono += seconds
