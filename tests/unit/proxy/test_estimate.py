"""The quote is never below what a call can cost, and the guess is never absurd."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from daypass_proxy.estimate import (
    FIRST_OUTPUT_TOKENS,
    HOSTED_TOOL_TOKENS,
    IMAGE_TOKENS,
    TEMPLATE_TOKENS,
    Quote,
    Unpriced,
    likely_input,
    quote,
)
from daypass_proxy.ledger import MAX_NANO, Hold, Pass, Reservation, Usage
from daypass_proxy.likely_tokens import likely_tokens
from daypass_proxy.price import PriceTable
from daypass_proxy.providers import Beside, Call
from tests.fakes.call import BODY, TARIFF, make_call
from tests.fakes.prices import NOW, overlay

PICTURE = base64.b64encode(bytes(range(256)) * 400).decode()
FILE = base64.b64encode(b"%PDF" * 50_000).decode()
TEXT = len(BODY) + TEMPLATE_TOKENS
# USD per million tokens; in nano-dollars for one: thousands.
FLAT = {"cache_write": "0", "cache_write_1h": "0", "cache_read": "0"}
SMALL = {
    "model": "small",
    "context_window": 10_000,
    "input": "1",
    "output": "5",
    "thinks_unasked": False,
}
LARGE = {
    "model": "large",
    "context_window": 50_000,
    "input": "2",
    "output": "10",
    "service_tiers": {"priority": {"input": "3", "output": "11", **FLAT}},
    "speeds": {"fast": {"input": "8", "output": "40", **FLAT}},
    "geos": {"us": "1.5", "eu": "2"},
    "web_search": "0.01",
    "thinks_unasked": False,
}
TIERED = {
    **SMALL,
    "model": "tiered",
    "tiers": [{"above_input_tokens": 5_000, "input": "3", "output": "50"}],
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> PriceTable:
    """A table of a few models with round figures."""
    folder: Path = tmp_path_factory.mktemp("prices")
    return PriceTable.load(overlay(folder, SMALL, LARGE, TIERED))


def call_of(model: str = "small", body: bytes = BODY, **more: Any) -> Call:
    """Return a call of this model; `more` are fields of it."""
    more.setdefault("models", (model,))
    return replace(make_call(body, model=model), **more)


def of(table: PriceTable, call: Call) -> Quote:
    """Return the quote of a call."""
    return quote(call, table, NOW)


def test_text_by_bytes(table: PriceTable) -> None:
    """A text call is held at a token a byte and the template, each at the dearest input rate."""
    small = of(table, call_of())
    assert small.base == Hold(TEXT * 2_000, TEXT)
    assert (small.output_least, small.output_most, small.output_nano) == (100, 100, 5_000)
    assert small.tariff.model == "small"


def test_images_have_a_maximum(table: PriceTable) -> None:
    """B05: an image is held at the most an image can be, not at the bytes of its base64."""
    body = BODY + PICTURE.encode()
    call = call_of("large", body, images=1, image_bytes=len(PICTURE), inference_geo="global")
    size = TEXT + IMAGE_TOKENS
    assert of(table, call).base == Hold(size * 4_000, size)
    assert of(table, replace(call, images=2)).base.tokens == size + IMAGE_TOKENS


@pytest.mark.parametrize(
    "more", [{"documents": 1}, {"unseen": True}, {"body": b"x" * 5_000_000}, {"images": 90}]
)
def test_no_more_than_the_context_window(table: PriceTable, more: dict[str, Any]) -> None:
    """What the body does not tell the size of may fill the window; nothing can be more."""
    assert of(table, call_of(**more)).base.tokens == 10_000


@pytest.mark.parametrize(
    ("flags", "window"),
    [
        (("a-2026-01-01,Context-1M-2025-08-07",), 1_000_000),
        (("context-1m-2025-08-07", "x, context-2m-2027-01-01 ,y"), 2_000_000),
        (("context-1m-2025-08-07,context-2m-2027-01-01",), 2_000_000),
        (("context-management-2025-06-27,context-0m-1",), 10_000),
    ],
)
def test_the_long_context_flag_raises_the_window(
    table: PriceTable, flags: tuple[str, ...], window: int
) -> None:
    """A beta flag that opens a larger window than the price table's raises what is held."""
    headers = tuple((b"anthropic-beta", flag.encode()) for flag in flags)
    assert of(table, call_of(documents=1, headers=headers)).base.tokens == window


def test_without_caching_for_an_hour(table: PriceTable) -> None:
    """Where no cache write can live an hour, a token is held at the dearest other rate."""
    assert of(table, call_of(hour_cache=False)).base.nano == TEXT * 1_250
    assert of(table, call_of("tiered", b"x" * 6_000, hour_cache=False)).base.nano == 7_000 * 3_750


def test_tools_of_the_provider_have_the_model_read_again(table: PriceTable) -> None:
    """Each further reading has what was written and found before; none is above the window."""
    call = call_of("large", loops=3, found=1_000, inference_geo="global")
    size = TEXT + 3 * (TEXT + 100 + 1_000)
    assert of(table, call).base == Hold(size * 4_000, size)
    assert of(table, replace(call, found=10**9)).base.tokens == TEXT + 3 * 50_000


def test_advice_reads_what_was_written(table: PriceTable) -> None:
    """An advisor reads the answer so far and the advice before."""
    beside = (Beside("large", 2, 50),)
    call = call_of(models=("small", "large"), writers=1, beside=beside, loops=2, found=100)
    again = TEXT + 100 + 100
    assert of(table, call).base.tokens == TEXT + 2 * again + 2 * (again + 50)


@pytest.mark.parametrize(
    ("asked", "thinks", "budget", "whole"),
    [
        ({}, ("small",), 0, True),
        ({"stream": False}, ("small",), 0, True),
        ({"thinking_tokens": 0}, ("small",), 0, False),
        ({"thinking_tokens": 10}, ("small",), 10, False),
        ({"thinking_tokens": 0, "thinks_freely": True}, (), 0, True),
        ({"thinking_tokens": 10, "thinks_freely": True}, (), 10, True),
        ({}, (), 0, False),
        ({"models": ("small", "large")}, ("large",), 0, True),
        # What the request says is not said to a model that does not support it.
        ({"models": ("small", "large"), "thinking_tokens": 0}, ("large",), 0, True),
        ({"models": ("small", "large"), "thinking_tokens": 10}, ("large",), 10, True),
        ({"models": ("small", "large"), "thinking_tokens": 0}, ("small",), 0, False),
        ({"models": ("small", "large"), "writers": 1}, ("large",), 0, False),
    ],
)
def test_thinking_without_a_budget_is_held_before(
    tmp_path: Path, asked: dict[str, Any], thinks: tuple[str, ...], budget: int, whole: bool
) -> None:
    """Who may think all of an answer, unseen, may ask for no more than is held before."""
    entries = [each | {"thinks_unasked": each["model"] in thinks} for each in (SMALL, LARGE)]
    table = PriceTable.load(overlay(tmp_path, *entries))
    quoted = of(table, call_of(max_output_tokens=9_000, **asked))
    assert (quoted.output_least, quoted.whole) == (FIRST_OUTPUT_TOKENS + budget, whole)
    assert quoted.output_most == 9_000
    assert of(table, call_of(max_output_tokens=900, **asked)).output_least == 900


def test_an_answer_may_be_as_long_as_any_writer_can(table: PriceTable) -> None:
    """A fallback with a larger window than the request's model writes more than that."""
    call = call_of(models=("small", "large"), max_output_tokens=40_000)
    assert of(table, call).output_most == 40_000
    assert of(table, replace(call, writers=1)).output_most == 10_000


def test_tools_that_the_provider_describes(table: PriceTable) -> None:
    """A tool of a few bytes that the provider describes itself is held at its description."""
    assert of(table, call_of(hosted_tools=2)).base.tokens == TEXT + 2 * HOSTED_TOOL_TOKENS


def test_the_threshold_counts_at_the_bound(table: PriceTable) -> None:
    """A call that may be above a threshold is held at its rates, input and output."""
    below, above = call_of("tiered"), call_of("tiered", b"x" * 6_000)
    assert (of(table, below).base.nano, of(table, below).output_nano) == (TEXT * 2_000, 5_000)
    assert (of(table, above).base.nano, of(table, above).output_nano) == (7_000 * 6_000, 50_000)


@pytest.mark.parametrize(
    ("asked", "per_input", "per_output"),
    [
        # Left open, the provider decides: the dearest place, and priority where it has a price.
        ({}, 8_000, 22_000),
        ({"service_tier": "auto"}, 8_000, 22_000),
        ({"service_tier": "standard_only"}, 8_000, 20_000),
        ({"service_tier": "standard_only", "inference_geo": "global"}, 4_000, 10_000),
        ({"service_tier": "standard_only", "inference_geo": "us"}, 6_000, 15_000),
        ({"service_tier": "priority", "inference_geo": "global"}, 4_000, 11_000),
        ({"speed": "standard", "inference_geo": "global"}, 4_000, 11_000),
        ({"speed": "fast", "inference_geo": "global"}, 8_000, 40_000),
        ({"speed": "fast", "inference_geo": "eu"}, 16_000, 80_000),
    ],
)
def test_what_is_asked_for_is_held(
    table: PriceTable, asked: dict[str, Any], per_input: int, per_output: int
) -> None:
    """Speed, tier and place are held at what they may cost, and the tariff remembers them."""
    quoted = of(table, call_of("large", **asked))
    assert quoted.base.nano == TEXT * per_input
    assert quoted.output_nano == per_output
    assert (quoted.tariff.speed, quoted.tariff.inference_geo) == (
        asked.get("speed"),
        asked.get("inference_geo"),
    )


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"speed": "fast"}, "speed"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"searches": 1}, "web_search"),
        ({"models": ("small", "nobody")}, ""),
        ({"beside": (Beside("nobody"),), "models": ("small", "nobody"), "writers": 1}, ""),
    ],
)
def test_what_has_no_price_is_refused(table: PriceTable, asked: dict[str, Any], field: str) -> None:
    """A call with anything in it that has no price is not quoted, and it is said what it was."""
    with pytest.raises(Unpriced) as caught:
        of(table, call_of(**asked))
    assert caught.value.field == field
    assert caught.value.provider == "anthropic"
    assert caught.value.model == ("small" if field else "nobody")
    assert caught.value.model in str(caught.value)
    assert field in str(caught.value)


def test_searches_are_held(table: PriceTable) -> None:
    """Each search that a call may have is held at its fee; no place makes it dearer."""
    call = call_of("large", searches=3, inference_geo="eu")
    assert of(table, call).base.nano == TEXT * 8_000 + 30_000_000


def test_every_model_that_may_answer_is_held(table: PriceTable) -> None:
    """Each model that may write the answer in turn may read all and write all."""
    both = of(table, call_of("small", models=("small", "large"), inference_geo="global"))
    assert both.base == Hold(TEXT * (2_000 + 4_000), 2 * TEXT + 100)
    assert (both.output_most, both.output_nano) == (100, 5_000 + 11_000)


def test_passes_beside_the_answer_are_held(table: PriceTable) -> None:
    """Advice and compactions are held from the start, for nobody sees them being written."""
    beside = (Beside("large", 3, 50), Beside("small", 1, None))
    call = call_of(models=("small", "large"), writers=1, beside=beside, inference_geo="global")
    expected = TEXT * 2_000 + 3 * (TEXT * 4_000 + 50 * 11_000) + TEXT * 2_000 + 100 * 5_000
    assert of(table, call).base == Hold(expected, 5 * TEXT + 3 * 50 + 100)
    assert of(table, call).output_nano == 5_000


@pytest.mark.parametrize(
    ("most", "thinking", "least"),
    [
        (100, None, 100),
        (9_000, None, FIRST_OUTPUT_TOKENS),
        (9_000, 4_000, FIRST_OUTPUT_TOKENS + 4_000),
        (9_000, 9_000, 9_000),
        (None, None, FIRST_OUTPUT_TOKENS),
        (10**12, None, FIRST_OUTPUT_TOKENS),
    ],
)
def test_the_least_output(
    table: PriceTable, most: int | None, thinking: int | None, least: int
) -> None:
    """A call starts with a little output and all of its thinking; the window bounds the rest."""
    quoted = of(table, call_of(max_output_tokens=most, thinking_tokens=thinking))
    assert quoted.output_least == least
    assert quoted.output_most == min(most or 10_000, 10_000)


def test_a_hold_fits_a_row(tmp_path: Path) -> None:
    """A quote beyond what a row can hold is the most a row can hold."""
    huge = {**SMALL, "context_window": 10**9, "input": "999999999", "output": "999999999"}
    table = PriceTable.load(overlay(tmp_path, huge))
    quoted = of(table, call_of(documents=1, max_output_tokens=10**9, beside=(Beside("small", 9),)))
    held = Reservation(
        *("req", 1, "a", "t", "s", "g", "k", "anthropic", "messages", "small"),
        stream=True, base=quoted.base, output_least=quoted.output_least,
        output_most=quoted.output_most, output_nano=quoted.output_nano,
    ).hold(quoted.output_most)  # fmt: skip
    assert MAX_NANO * 0.9 < held.nano <= MAX_NANO


FIGURES = st.integers(0, 3_000)


@given(
    st.sampled_from(["small", "large", "tiered"]),
    st.lists(FIGURES, min_size=5, max_size=5),
    st.sampled_from([None, "global", "us", "eu"]),
    st.sampled_from([None, "standard", "fast"]),
    st.sampled_from([None, "standard", "priority"]),
    st.integers(0, 5),
    st.booleans(),
)
def test_the_quote_covers_the_bill(
    table: PriceTable,
    model: str,
    said: list[int],
    geo: str | None,
    speed: str | None,
    tier: str | None,
    searches: int,
    asked: bool,
) -> None:
    """However a call is served within what it asked for, it costs no more than was held."""
    if model != "large":
        geo = speed = tier = None
        searches = 0
    plain, output, short, long, read = said
    size = plain + short + long + read
    call = call_of(
        model,
        b"x" * size,
        max_output_tokens=max(output, 1),
        searches=searches,
        speed="fast" if speed == "fast" else None,
        inference_geo=geo if asked else None,
    )
    quoted = of(table, call)
    usage = Usage(
        plain, output, short + long, long, read, None, searches, tier, speed, geo,
        (Pass("message", model, *said),),
    )  # fmt: skip
    held = quoted.base.nano + quoted.output_nano * quoted.output_most
    if size <= quoted.tariff.context_window:
        assert quoted.tariff.cost(usage).nano <= held
        assert usage.tokens <= quoted.base.tokens + quoted.output_most


# -- the guess


def body_with(kind: str, data: str, *, text: str = "what is this?") -> bytes:
    """A body with one image or document block and some text."""
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": kind, "source": source}, {"type": "text", "text": text}]
    return json.dumps({"messages": [{"role": "user", "content": content}]}).encode()


def test_likely_input_of_text() -> None:
    """B05: without any figure a call is taken to have had the tokens that its text makes."""
    body = json.dumps("the quick brown fox " * 200).encode()
    assert likely_input(make_call(body), TARIFF) == likely_tokens(body)


def test_likely_input_without_binary() -> None:
    """B05: base64 is no text: a picture counts as a picture, a document by its pages."""
    empty = likely_tokens(body_with("image", ""))
    call = call_of(body=body_with("image", PICTURE), images=1, image_bytes=len(PICTURE))
    assert likely_input(call, TARIFF) == empty + IMAGE_TOKENS
    call = call_of(body=body_with("document", FILE), documents=1, document_bytes=len(FILE))
    assert likely_input(call, TARIFF) == empty + len(FILE) // 16 + 20_000


def test_hanging_up_on_a_file_is_not_free() -> None:
    """A document that only the provider has seen is taken to fill the window (attacks row 27)."""
    assert likely_input(call_of(documents=1, unseen=True), TARIFF) == TARIFF.context_window
    packed = call_of(documents=1)
    assert likely_input(packed, TARIFF) > 20_000


@given(st.binary(max_size=200), st.integers(0, 99))
def test_likely_input_of_anything(body: bytes, images: int) -> None:
    """The guess is made for any bytes, and is never beyond the context window."""
    guess = likely_input(make_call(body, images=images), TARIFF)
    assert 0 <= guess <= TARIFF.context_window
