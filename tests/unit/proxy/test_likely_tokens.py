"""The guess at the tokens of a text is near what a tokenizer makes of it, dense text included."""

from __future__ import annotations

import base64
import json
import random

import pytest
from anthropic_tokenizer import count_tokens

from daypass_proxy.likely_tokens import SAMPLE, likely_tokens

DICE = random.Random(7)
CODE = 'def add(first: int, second: int) -> int:\n    """Add."""\n    return first + second\n'
TEXTS = {
    "prose": "A proxy checks the token, injects the key and relays the stream of the answer. " * 90,
    "code": CODE * 80,
    "numbers": json.dumps([DICE.randrange(10**6) for _ in range(900)]),
    "base64": base64.b64encode(DICE.randbytes(9_000)).decode(),
    "hex": DICE.randbytes(6_000).hex(),
    "signs": "".join(chr(DICE.randrange(33, 127)) for _ in range(6_000)),
    "letters": "".join(DICE.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(6_000)),
    "chinese": "代理在沙盒里运行密钥不应该进入沙盒。" * 120,
    "russian": "Ключ никогда не попадает внутрь песочницы, только токен. " * 120,
    "emoji": "😀🚀✨🔥" * 700,
}


@pytest.mark.parametrize("kind", TEXTS)
def test_near_a_real_tokenizer(kind: str) -> None:
    """B05: no text is booked far below its tokens, so none can be sent for a part of its cost."""
    text = TEXTS[kind]
    real, guess = count_tokens(text), likely_tokens(json.dumps(text, ensure_ascii=False).encode())
    assert 0.7 * real <= guess <= 1.5 * real


def test_of_a_long_text_pieces_are_looked_at() -> None:
    """A megabyte costs no more than its sample, and is guessed as dense as all of it is."""
    text = (TEXTS["prose"] + TEXTS["hex"]).encode() * 60
    assert len(text) > 10 * SAMPLE
    whole = likely_tokens(text[: len(text) // 60]) * 60
    assert 0.8 * whole <= likely_tokens(text) <= 1.2 * whole


def test_only_so_much_as_images_have_is_no_text() -> None:
    """A long code in the text is paid for though there is an image beside it."""
    code, image = '"' + "A" * 5_000 + '"', '"' + "B" * 3_000 + '"'
    body = f"[{code},{image}]".encode()
    assert likely_tokens(body, 3_000) >= 2_500
    assert likely_tokens(body, 8_000) < 50
