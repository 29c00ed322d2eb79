"""What a call may use at most, before it is sent; and what it probably used, when nobody says.

Place in the flow: `admit` holds what the quote says; `attempt` falls back on the guess when an
answer that may have been billed never told its usage. The quote errs upwards, the guess must not.
"""

from __future__ import annotations

import msgspec

from daypass_proxy.ledger import MAX_NANO, MAX_TOKENS, Hold
from daypass_proxy.price import GEO, ORDINARY, PARTS, Plan, Price, Prices, PriceTable, Tariff
from daypass_proxy.providers import Call
from daypass_proxy.text_tokens import most_tokens

IMAGE_TOKENS = 4_784
"""Most tokens of one image on current models; larger images are scaled down to it."""
TEMPLATE_TOKENS = 1_000
"""What the provider adds to a request unseen: the instructions for tools, mostly."""
HOSTED_TOOL_TOKENS = 3_000
"""What the provider adds for one tool that it describes itself."""
LONG_CONTEXT_TOKENS = 1_000_000
"""What the provider takes of a request whose beta flags ask for the long context window."""
FIRST_OUTPUT_TOKENS = 1_024
"""How many output tokens a stream is admitted with at least, beside its thinking."""
_LONG_CONTEXT_FLAG = b"context-1m-"
_BYTES_PER_TOKEN = 4
_FILE_BYTES_PER_TOKEN = 16  # of a document's base64: a dense page is 50 KB and 3,000 tokens
# Half of what a row holds is left to the output.
_BASE_MAX = MAX_NANO // 2
_SCALE = PARTS * GEO


class Unpriced(Exception):
    """A call with something in it that has no price, so no budget could hold it.

    `field` and `value` say what it asks for beside the model: `speed`, `service_tier`,
    `inference_geo` or `web_search`.
    """

    def __init__(self, provider: str, model: str, field: str = "", value: str = "") -> None:
        of = f" with {field} {value[:64]}".rstrip() if field else ""
        super().__init__(f"model {model[:128]}{of} has no price here")
        self.provider = provider
        self.model = model
        self.field = field
        self.value = value


class Quote(msgspec.Struct, frozen=True):
    """What a call may cost: `base` whatever it writes, `output_nano` nano-dollars for each token.

    It writes up to `output_most` tokens; `output_least` have to be held before it is sent. Where
    several models may write the answer in turn, each token is one of each.
    """

    tariff: Tariff
    base: Hold
    output_least: int
    output_most: int
    output_nano: int


def quote(call: Call, prices: PriceTable, now: float) -> Quote:
    """Return the quote for `call` at the prices in force at `now`, epoch seconds.

    Raises Unpriced when it asks for what has no price.
    """
    listing = prices.at(call.provider, now)
    writers = call.models[: call.writers or None]
    priced = {model: _price(listing, call, model) for model in call.models}
    own = priced[call.model]
    answer = _window(call, own)
    if call.max_output_tokens is not None:
        answer = min(call.max_output_tokens, answer)
    text = _most_text(call, max(_window(call, price) for price in priced.values()))
    base, tokens, per_output = _fees(own, call), 0, 0
    for model in writers:
        price = priced[model]
        size = _most_input(call, text, _window(call, price))
        per_in, per_out = _dearest(price, call, size, own=price is own)
        base += per_in * size
        tokens += size
        per_output += per_out
    for extra in call.beside:
        price = priced[extra.model]
        size = _most_input(call, text, _window(call, price))
        written = answer if extra.output_tokens is None else extra.output_tokens
        per_in, per_out = _dearest(price, call, size, own=price is own)
        base += (per_in * size + per_out * written) * extra.passes
        tokens += (size + written) * extra.passes
    tokens += answer * (len(writers) - 1)
    thought = 0 if call.thinking_tokens is None else call.thinking_tokens
    return Quote(
        tariff=Tariff(own, listing, call.speed, call.inference_geo),
        base=Hold(min(-(-base // _SCALE), _BASE_MAX), min(tokens, MAX_TOKENS // 2)),
        output_least=min(FIRST_OUTPUT_TOKENS + thought, answer),
        output_most=answer,
        output_nano=min(-(-per_output // _SCALE), _BASE_MAX // answer),
    )


def likely_input(call: Call, tariff: Tariff) -> int:
    """Return the input tokens `call` probably had.

    Text by four bytes each, images by number, documents by their size: a document that counted
    nothing could be sent for nothing, by hanging up on each answer.
    """
    text = len(call.body) - call.image_bytes - call.document_bytes
    tokens = -(-text // _BYTES_PER_TOKEN) + call.images * IMAGE_TOKENS
    tokens += call.document_bytes // _FILE_BYTES_PER_TOKEN
    return min(tokens, _window(call, tariff))


def _most_text(call: Call, enough: int) -> int:
    """Return the most tokens of all that is not an image, of `enough` at least.

    An image is refused or read as one, so its bytes are no text. The block says how many they are;
    a longer text cannot hide among them.
    """
    own = call.hosted_tools * HOSTED_TOOL_TOKENS + TEMPLATE_TOKENS
    return own + most_tokens(call.body, enough + call.image_bytes) - call.image_bytes


def _most_input(call: Call, text: int, window: int) -> int:
    """Return the most input tokens that a model with this window may read of `call`.

    More than the window is refused by the provider; a document may fill it, whatever its size in
    bytes, and so may what the provider's own tools find.
    """
    if call.documents or call.loops:
        return window
    return min(text + call.images * IMAGE_TOKENS, window)


def _window(call: Call, model: Price | Tariff) -> int:
    """Return how many input tokens of `call` the provider would take."""
    for name, value in call.headers:
        if name == b"anthropic-beta" and _LONG_CONTEXT_FLAG in value.lower():
            return max(model.context_window, LONG_CONTEXT_TOKENS)
    return model.context_window


def _price(listing: Prices, call: Call, model: str) -> Price:
    price = listing.find(model)
    if price is None:
        raise Unpriced(call.provider, model)
    return price


def _fees(price: Price, call: Call) -> int:
    """Return the fees that the call may cost, in PARTS times GEO."""
    if not call.searches:
        return 0
    if price.web_search is None:
        raise Unpriced(call.provider, call.model, "web_search")
    return call.searches * price.web_search * GEO


def _dearest(price: Price, call: Call, size: int, *, own: bool) -> tuple[int, int]:
    """Return the most for an input and an output token, in PARTS times GEO.

    That is, however the provider may serve the call: what was asked for may not be to be had, and
    what was left open is chosen there.
    """
    multiple = _multiple(price, call, own=own)
    rates = [plan.dearest(size) for plan in _plans(price, call, own=own)]
    return max(each[0] for each in rates) * multiple, max(each[1] for each in rates) * multiple


def _plans(price: Price, call: Call, *, own: bool) -> list[Plan]:
    plans = [price.plan]
    tier, speed = call.service_tier, call.speed
    if tier is None or tier == "auto":
        tier = "priority" if "priority" in price.service_tiers else ORDINARY
    elif tier == "standard_only":
        tier = ORDINARY
    for field, value, listed in (
        ("service_tier", tier, price.service_tiers),
        ("speed", speed, price.speeds),
    ):
        if value is None or value == ORDINARY:
            continue
        if value in listed:
            plans.append(listed[value])
        elif own:
            raise Unpriced(call.provider, call.model, field, value)
    return plans


def _multiple(price: Price, call: Call, *, own: bool) -> int:
    geo = call.inference_geo
    if geo is None:
        return price.dearest_multiple  # the provider's default, which nobody here knows
    multiple, known = price.multiple(geo)
    if own and not known:
        raise Unpriced(call.provider, call.model, "inference_geo", geo)
    return multiple
