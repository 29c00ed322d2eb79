"""What every meter has, and the meter of a whole JSON answer."""

from __future__ import annotations

from daypass_proxy.ledger import Usage
from daypass_proxy.meter.tally import Tally, is_json, read_event
from daypass_proxy.transport.inflate import Inflate

BLOCK_TOKENS = 64
"""What a block may cost beside its text: the name of a tool and its frame."""
_JSON_MAX = 64 * 1024 * 1024


class Meter:
    """Reads the usage of one answer. This one reads nothing: the meter of what is not billed."""

    # How every answer begins.
    fed = 0
    """Bytes of the answer as they came."""
    deltas = 0
    text_bytes = 0
    """Bytes of generated text that passed, as JSON text: words, thinking and input of tools."""
    blocks = 0
    """Blocks that began."""
    finished = False
    """The provider said that the answer is whole (`message_stop`)."""
    final = False
    """The provider has said its last figures, though the answer may not be whole."""
    failed = False
    """The provider itself said that the call failed, under a status that says otherwise."""
    unreadable = False
    """Something that should carry usage could not be read."""
    torn = False
    """What came to its end is not what its media type says, so it cannot be whole."""
    between_events = False
    """All that came so far of a stream ends with a whole event: a comment would fit here."""

    def __init__(self, coding: str = "") -> None:
        """`coding` is the answer's content-encoding; raises UnknownCoding."""
        # None for what is not coded: the hot path has no use for an inflater that gives it back.
        self._inflate = None if coding in ("", "identity") else Inflate(coding)
        self._tally = Tally()

    def feed(self, raw: bytes) -> None:
        """Take the next bytes of the answer, as they came."""
        self.fed += len(raw)
        inflate = self._inflate
        if inflate is None:
            self._scan(raw)
        else:
            self._scan(inflate.feed(raw))
            self.unreadable |= inflate.blind

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

    @property
    def output_bound(self) -> int:
        """The most output tokens that can have passed, or as many as the provider has said.

        A token is one byte of text at least; a block costs some that are not text of it. Thinking
        that the provider keeps to itself does not pass.
        """
        bound = self.text_bytes + self.blocks * BLOCK_TOKENS
        return max(bound, self._tally.output_tokens)

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
        body = b"".join(self._pieces)
        self._pieces.clear()
        try:
            self._read(body)
        except ValueError:
            self.unreadable = True
            # A connection that ends is the end of an answer without a length, torn or not (B25).
            self.torn = not is_json(body)

    def _read(self, body: bytes) -> None:
        """Read a whole answer; raises ValueError for what is none."""
        message = read_event(body)
        self.finished = True
        self.failed = message.type == "error"
        self.final = message.usage is not None
        self._tally.take(message.usage)

    @property
    def output_seen(self) -> int:
        """A low estimate of the output tokens of a message that did not arrive whole."""
        return -(-self._size // 4)

    @property
    def output_bound(self) -> int:
        """The most output tokens that can have passed: a byte of the message each."""
        return max(self._size, self._tally.output_tokens)
