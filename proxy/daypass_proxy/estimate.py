"""What a call may use at most, before it is sent; and what it probably used, when nobody says.

Place in the flow: `admit` holds the ceiling; `attempt` falls back on the guess when an answer that
may have been billed never told its usage. The ceiling errs upwards, the guess must not.
"""

from daypass_proxy.ledger import MAX_NANO
from daypass_proxy.price import Price
from daypass_proxy.providers import Call

IMAGE_TOKENS = 4_784
"""Most tokens of one image on current models; larger images are scaled down to it."""
TEMPLATE_TOKENS = 1_000
"""What the provider adds to a request unseen: the instructions for tools, mostly."""
LONG_CONTEXT_TOKENS = 1_000_000
"""What the provider takes of a request whose beta flags ask for the long context window."""
_LONG_CONTEXT_FLAG = b"context-1m-"
_BYTES_PER_TOKEN = 4
_FILE_BYTES_PER_TOKEN = 16  # of a document's base64: a dense page is 50 KB and 3,000 tokens
_BINARY_FROM = 1024  # a shorter "data" string is text like any other


def ceiling(call: Call, price: Price) -> int:
    """Return the most that `call` can cost at this price, in nano-dollars.

    A token is at least one byte. More than the context window is refused by the provider, and a
    document may fill it, whatever its size in bytes.
    """
    window = _window(call, price)
    if call.documents:
        tokens = window
    else:
        tokens = min(len(call.body) + call.images * IMAGE_TOKENS + TEMPLATE_TOKENS, window)
    wanted = window if call.max_output_tokens is None else call.max_output_tokens
    return min(price.ceiling(tokens, min(wanted, window)), MAX_NANO)


def likely_input(call: Call, price: Price) -> int:
    """Return the input tokens `call` probably had.

    Text by four bytes each, images by number, documents by their size: a document that counted
    nothing could be sent for nothing, by hanging up on each answer.
    """
    binary = _binary_bytes(call)
    tokens = -(-(len(call.body) - binary) // _BYTES_PER_TOKEN) + call.images * IMAGE_TOKENS
    if call.documents:
        tokens += binary // _FILE_BYTES_PER_TOKEN
    return min(tokens, _window(call, price))


def _window(call: Call, price: Price) -> int:
    """Return how many input tokens of `call` the provider would take."""
    for name, value in call.headers:
        if name == b"anthropic-beta" and _LONG_CONTEXT_FLAG in value.lower():
            return max(price.context_window, LONG_CONTEXT_TOKENS)
    return price.context_window


def _binary_bytes(call: Call) -> int:
    """Return how many bytes of the body are base64 of its images and documents."""
    total = position = 0
    for _ in range(call.images + call.documents):
        key = call.body.find(b'"data"', position)
        start = call.body.find(b'"', key + 6) + 1
        end = call.body.find(b'"', start)
        if key < 0 or start <= 0 or end < 0:
            break
        if end - start >= _BINARY_FROM:
            total += end - start
        position = end + 1
    return total
