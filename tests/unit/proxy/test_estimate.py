"""Estimates: the ceiling is never below what a call can cost, the guess is never absurd."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daypass_proxy.estimate import IMAGE_TOKENS, TEMPLATE_TOKENS, ceiling, likely_input
from daypass_proxy.ledger import MAX_NANO, Usage
from daypass_proxy.price import Price
from tests.fakes.call import BODY, MODEL, PRICE, RATES, make_call

PICTURE = base64.b64encode(bytes(range(256)) * 400).decode()
FILE = base64.b64encode(b"%PDF" * 50_000).decode()


def body_with(kind: str, data: str, *, text: str = "what is this?") -> bytes:
    """A body with one image or document block and some text."""
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": kind, "source": source}, {"type": "text", "text": text}]
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}]}).encode()


def test_text_by_bytes() -> None:
    """A text call is held at a token a byte, the template, and all output it may have."""
    expected = PRICE.ceiling(len(BODY) + TEMPLATE_TOKENS, 100)
    assert ceiling(make_call(), PRICE) == expected


@given(st.integers(0, 90), st.integers(0, 100))
def test_ceiling_covers_the_bill(input_tokens: int, output_tokens: int) -> None:
    """No split of the possible tokens over the kinds of input costs more than the ceiling."""
    most = ceiling(make_call(), PRICE)
    for usage in (
        Usage(input_tokens, output_tokens),
        Usage(0, output_tokens, input_tokens, input_tokens, 0),
        Usage(0, output_tokens, input_tokens, 0, 0),
        Usage(0, output_tokens, None, None, input_tokens),
    ):
        assert PRICE.cost(usage) <= most


def test_images_have_a_maximum() -> None:
    """An image by URL is held at the most an image can be."""
    with_image = ceiling(make_call(images=2), PRICE)
    assert with_image == PRICE.ceiling(len(BODY) + TEMPLATE_TOKENS + 2 * IMAGE_TOKENS, 100)


@pytest.mark.parametrize("call", [make_call(documents=1), make_call(b"x" * 5_000_000)])
def test_no_more_than_the_context_window(call: object) -> None:
    """A document may fill the context window; nothing can be more than that."""
    assert ceiling(call, PRICE) == PRICE.ceiling(PRICE.context_window, 100)  # type: ignore[arg-type]


@pytest.mark.parametrize("wanted", [None, 10**12])
def test_output_within_the_window(wanted: int | None) -> None:
    """Without a limit, or with an absurd one, the output is held at the context window."""
    expected = PRICE.ceiling(len(BODY) + TEMPLATE_TOKENS, PRICE.context_window)
    assert ceiling(make_call(max_output_tokens=wanted), PRICE) == expected


def test_hold_fits_a_row() -> None:
    """A ceiling beyond what a row can hold is the most a row can hold."""
    huge = Price(MODEL, 10**9, RATES.__class__(*([RATES.output * 10**9] * 5)))
    assert ceiling(make_call(max_output_tokens=10**9), huge) == MAX_NANO


def test_likely_input_of_text() -> None:
    """B05: without any figure a call is taken to have had a token in four bytes of its body."""
    assert likely_input(make_call(b"x" * 4001), PRICE) == 1001


@pytest.mark.parametrize(("kind", "data"), [("image", PICTURE), ("document", FILE)])
def test_likely_input_without_binary(kind: str, data: str) -> None:
    """B05: base64 is no text: a picture counts as a picture, a document by its pages."""
    body = body_with(kind, data)
    images, documents = int(kind == "image"), int(kind == "document")
    guess = likely_input(make_call(body, images=images, documents=documents), PRICE)
    text = -(-(len(body) - len(data)) // 4)
    assert guess == text + images * IMAGE_TOKENS + documents * len(data) // 16


def test_likely_input_counts_text_called_data() -> None:
    """As many base64 strings are left out as there are blocks; other text counts in full."""
    body = body_with("image", PICTURE) + b'{"data": "' + b"a" * 40_000 + b'"}'
    assert likely_input(make_call(body, images=1), PRICE) > 10_000
    assert likely_input(make_call(body), PRICE) == -(-len(body) // 4)


@given(st.binary(max_size=200), st.integers(0, 3))
def test_likely_input_of_anything(body: bytes, images: int) -> None:
    """The guess is made for any bytes, and is never beyond the context window."""
    assert 0 <= likely_input(make_call(body, images=images), PRICE) <= PRICE.context_window
