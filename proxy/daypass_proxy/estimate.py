"""What a call may use at most, before it is sent; and what it probably used, when nobody says.

Place in the flow: `admit` holds what the quote says; `attempt` falls back on the guess when an
answer that may have been billed never told its usage. The quote errs upwards, the guess must not.
"""

from __future__ import annotations

import re

import msgspec

from daypass_proxy.ledger import MAX_NANO, MAX_TOKENS, Hold
from daypass_proxy.likely_tokens import likely_tokens
from daypass_proxy.price import GEO, ORDINARY, PARTS, Plan, Price, Prices, PriceTable, Tariff
from daypass_proxy.providers import Call
from daypass_proxy.text_tokens import most_tokens

IMAGE_TOKENS = 4_784
"""Most tokens of one image on current models; larger images are scaled down to it."""
TEMPLATE_TOKENS = 1_000
"""What the provider adds to a request unseen: the instructions for tools, mostly."""
HOSTED_TOOL_TOKENS = 3_000
"""What the provider adds for one tool that it describes itself."""
FIRST_OUTPUT_TOKENS = 1_024
"""How many output tokens a stream is admitted with at least, beside its thinking."""
# A beta flag for a longer context, such as `context-1m-2025-08-07`: in millions of tokens.
_LONG_CONTEXT = re.compile(rb"context-([0-9]{1,2})m\b")
_FILE_BYTES_PER_TOKEN = 16  # of a document's base64: a dense page is 50 KB and 3,000 tokens
_FILE_TOKENS = 20_000  # and of any document at least: ten pages take few bytes when packed
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
    several models may write the answer in turn, each token is one of each. `whole`: all of it may
    be thinking that nobody sees, so no more may be asked for than is held before it is sent.
    """

    tariff: Tariff
    base: Hold
    output_least: int
    output_most: int
    output_nano: int
    whole: bool


def quote(call: Call, prices: PriceTable, now: float) -> Quote:
    """Return the quote for `call` at the prices in force at `now`, epoch seconds.

    Raises Unpriced when it asks for what has no price.
    """
    listing = prices.at(call.provider, now)
    writers = call.models[: call.writers or None]
    priced = {model: _price(listing, call, model) for model in call.models}
    own = priced[call.model]
    asked = _long_context(call)
    answer = max(asked, *[priced[model].context_window for model in writers])
    if call.max_output_tokens is not None:
        answer = min(call.max_output_tokens, answer)
    answer *= call.choices
    widest = max(asked, *[price.context_window for price in priced.values()])
    text = _most_text(call, widest * call.inputs)
    base, tokens, per_output = _fees(own, call) + own.second * own.max_seconds * GEO, 0, 0
    for model in writers:
        price = priced[model]
        window = max(asked, price.context_window) * call.inputs
        first, again = _most_input(call, text, answer, window)
        size = first + again * call.loops
        # The provider says the sum of all readings, and a threshold counts for that.
        per_in, per_out = _dearest(price, call, size, own=price is own)
        base += per_in * size
        tokens += size
        per_output += per_out
    for extra in call.beside:
        price = priced[extra.model]
        _, size = _most_input(call, text, answer, max(asked, price.context_window))
        written = answer if extra.output_tokens is None else extra.output_tokens
        per_in, per_out = _dearest(price, call, size, own=price is own)
        base += (per_in * size + per_out * written) * extra.passes
        tokens += (size + written) * extra.passes
    tokens += answer * (len(writers) - 1)
    return Quote(
        tariff=Tariff(own, listing, call.speed, call.inference_geo),
        base=Hold(min(-(-base // _SCALE), _BASE_MAX), min(tokens, MAX_TOKENS // 2)),
        output_least=min(FIRST_OUTPUT_TOKENS * call.choices + (call.thinking_tokens or 0), answer),
        output_most=answer,
        output_nano=min(-(-per_output // _SCALE), _BASE_MAX // max(answer, 1)),
        whole=_thinks_freely(call, [priced[model] for model in writers]),
    )


def likely_input(call: Call, tariff: Tariff) -> int:
    """Return the input tokens `call` probably had.

    Text as tokenizers read it, images by number, documents by their size, and by the whole window
    what nobody here has seen: what counted nothing could be sent for nothing, by hanging up on each
    answer.
    """
    window = max(_long_context(call), tariff.context_window) * call.inputs
    if call.unseen:
        return window
    tokens = likely_tokens(call.body, call.image_bytes + call.document_bytes)
    tokens += call.images * IMAGE_TOKENS
    tokens += call.document_bytes // _FILE_BYTES_PER_TOKEN + call.documents * _FILE_TOKENS
    return min(tokens, window)


def _most_text(call: Call, enough: int) -> int:
    """Return the most tokens of all that is not an image, of `enough` at least.

    An image is refused or read as one, so its bytes are no text. The block says how many they are;
    a longer text cannot hide among them.
    """
    own = call.hosted_tools * HOSTED_TOOL_TOKENS + TEMPLATE_TOKENS
    return own + most_tokens(call.body, enough + call.image_bytes) - call.image_bytes


def _most_input(call: Call, text: int, answer: int, window: int) -> tuple[int, int]:
    """Return the most input tokens that a model with this window reads at first, and later.

    More than the window is refused by the provider; a document may fill it, whatever its size in
    bytes. Where tools run at the provider, what was written and found so far is read again too.
    """
    first = text + call.images * (call.image_tokens or IMAGE_TOKENS)
    if call.documents or call.unseen:
        first = window
    again = first + answer + call.found if call.loops else first
    return min(first, window), min(again, window)


def _thinks_freely(call: Call, writers: list[Price]) -> bool:
    """Say whether thinking, of which little may be seen, may fill all of the answer.

    So it is without a budget, and with a model that thinks unless it is told not to. What the
    request says is said to its own model; another may not support it, and then does as it does by
    itself.
    """
    untold = writers if call.thinking_tokens is None else writers[1:]
    return call.thinks_freely or any(price.thinks_unasked for price in untold)


def _long_context(call: Call) -> int:
    """Return the context that a beta flag of `call` asks for in tokens, 0 without one.

    A model may take so many input tokens then, or else as many as it does by itself.
    """
    window = 0
    for name, value in call.headers:
        if name == b"anthropic-beta":
            for millions in _LONG_CONTEXT.findall(value.lower()):
                window = max(window, int(millions) * 1_000_000)
    return window


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
    plans = _plans(price, call, own=own)
    if len(plans) == 1:
        per_in, per_out = plans[0].dearest(size, hour_cache=call.hour_cache)
        return per_in * multiple, per_out * multiple
    rates = [plan.dearest(size, hour_cache=call.hour_cache) for plan in plans]
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
