"""What every meter has, and the meter of a whole JSON answer."""

from __future__ import annotations

from daypass_proxy.ledger import Usage
from daypass_proxy.meter.tally import Tally, read_event
from daypass_proxy.transport.inflate import Inflate

_JSON_MAX = 64 * 1024 * 1024


class Meter:
    """Reads the usage of one answer. This one reads nothing: the meter of what is not billed."""

    def __init__(self, coding: str = "") -> None:
        """`coding` is the answer's content-encoding; raises UnknownCoding."""
        self._inflate = Inflate(coding)
        self._tally = Tally()
        self.fed = 0
        """Bytes of the answer as they came."""
        self.deltas = 0
        self.text_bytes = 0
        """Bytes of generated text that passed, as JSON text."""
        self.finished = False
        """The provider said that the answer is whole (`message_stop`)."""
        self.final = False
        """The provider has said its last figures, though the answer may not be whole."""
        self.failed = False
        """The provider itself said in the stream that the call failed."""
        self.unreadable = False
        """Something that should carry usage could not be read."""

    def feed(self, raw: bytes) -> None:
        """Take the next bytes of the answer, as they came."""
        self.fed += len(raw)
        self._scan(self._inflate.feed(raw))
        self.unreadable |= self._inflate.blind

    def end(self) -> None:
        """Take note that nothing more will come."""
        self.finished = True

    @property
    def usage(self) -> Usage:
        """What the provider has said so far."""
        return self._tally.usage

    @property
    def output_seen(self) -> int:
        """A low estimate of the output tokens that passed: a delta or four bytes are one."""
        return max(self.deltas, -(-self.text_bytes // 4))

    def _scan(self, data: bytes) -> None:
        """Read decoded bytes."""


class JsonMeter(Meter):
    """Reads a whole JSON message."""

    def __init__(self, coding: str = "") -> None:
        super().__init__(coding)
        self._pieces: list[bytes] = []
        self._size = 0

    def _scan(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= _JSON_MAX:
            self._pieces.append(data)

    def end(self) -> None:
        """Parse what was collected."""
        try:
            message = read_event(b"".join(self._pieces))
        except ValueError:
            self.unreadable = True
        else:
            self.finished = True
            self.final = message.usage is not None
            self._tally.take(message.usage)
        self._pieces.clear()

    @property
    def output_seen(self) -> int:
        """A low estimate of the output tokens of a message that did not arrive whole."""
        return -(-self._size // 4)
