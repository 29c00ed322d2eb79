"""Quotes of calls with several answers, several texts, and images of another dialect."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from daypass_proxy.estimate import IMAGE_TOKENS, TEMPLATE_TOKENS, Quote, quote
from daypass_proxy.price import PriceTable
from daypass_proxy.providers import Call
from tests.fakes.call import BODY, make_call
from tests.fakes.prices import NOW, overlay

TEXT = len(BODY) + TEMPLATE_TOKENS
SMALL = {
    "model": "small",
    "context_window": 10_000,
    "input": "1",
    "output": "5",
    "thinks_unasked": False,
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> PriceTable:
    """A table of one model."""
    folder: Path = tmp_path_factory.mktemp("prices")
    return PriceTable.load(overlay(folder, SMALL))


def call_of(body: bytes = BODY, **more: Any) -> Call:
    """Return a call of this model; `more` are fields of it."""
    return replace(make_call(body, model="small"), models=("small",), **more)


def of(table: PriceTable, call: Call) -> Quote:
    """Return the quote of a call."""
    return quote(call, table, NOW)


def test_each_answer_is_held(table: PriceTable) -> None:
    """Several answers cost as many limits of output, and begin with as much for each."""
    one, three = (of(table, call_of(choices=n)) for n in (1, 3))
    assert three.output_most == 3 * one.output_most == 300
    assert (three.output_nano, three.base) == (one.output_nano, one.base)
    assert (one.output_least, three.output_least) == (100, 300)


def test_each_text_may_fill_the_window(table: PriceTable) -> None:
    """Texts that are read each by itself are bounded by as many windows, and by their bytes."""
    body = b'{"input":["' + b'x","x' * 4_000 + b'"]}'
    call = call_of(body=body, max_output_tokens=0, thinking_tokens=0)
    one, several = of(table, call), of(table, replace(call, inputs=50))
    assert one.base.tokens == 10_000
    assert several.base.tokens == len(body) + TEMPLATE_TOKENS < 500_000
    assert of(table, replace(call, inputs=2)).base.tokens == 20_000
    assert (several.output_most, several.output_least, several.whole) == (0, 0, False)


def test_an_image_is_held_at_what_the_dialect_says(table: PriceTable) -> None:
    """An image is as many tokens as it may be where it is read, within the window."""
    sizes = [of(table, call_of(images=1, image_tokens=n)).base.tokens for n in (0, 6_000, 50_000)]
    assert sizes == [TEXT + IMAGE_TOKENS, TEXT + 6_000, 10_000]
