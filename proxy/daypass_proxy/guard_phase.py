"""Where a connection of `guard` stands in the message that it reads."""

from enum import Enum, auto


class Phase(Enum):
    """One of five."""

    IDLE = auto()  # between messages
    HEAD = auto()  # request line or headers are arriving
    BODY = auto()  # headers are frozen, the body is arriving
    SERVING = auto()  # the message is complete, the answer is not
    REFUSED = auto()  # nothing more is believed on this connection


# Read many times for each request; a member of an Enum is not a plain attribute.
IDLE, HEAD, BODY, SERVING, REFUSED = Phase
