"""About how many tokens a text has: for what is booked when the provider never said.

Place in the flow: `estimate.likely_input` counts by it the input of a call whose answer told no
usage. It reads as tokenizers do, a word as a token or two, a number by three digits, so that text
that is dense in tokens (codes, base64, other scripts) is not booked at the price of prose: else it
could be sent for a part of its cost, by hanging up on each answer.
"""

from __future__ import annotations

import re

SAMPLE = 65_536
"""Bytes that are looked at; of a longer text, pieces spread over it."""
_PIECES = 16
_BINARY = re.compile(rb'"[A-Za-z0-9+/_=-]{1024,}+"')
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
# A word ends where its letters change to capitals; capitals alone are mostly codes.
_WORD = re.compile(rb"[A-Z]?[a-z]{1,8}|[A-Z]{1,3}")
# No word of most languages is so long; what is has no tokens of its own.
_LONG = re.compile(rb"[A-Za-z]{16,}")
_LONG_LETTERS_PER_TOKEN = 2
_NUMBER = re.compile(rb"[0-9]{1,3}")
_SIGNS = re.compile(rb"[!-/:-@\[-`{-~]{1,2}|[\n\t ]{2,16}")
_ASCII = bytes(range(128))
_FOREIGN_BYTES_PER_TOKEN = 3
_FOUR_BYTES = b"\xf0"
"""Begins a character of four bytes, such as an emoji: two tokens or so."""


def likely_tokens(text: bytes, binary: int = 0) -> int:
    """Return about how many tokens `text` has, JSON in UTF-8.

    `binary` bytes of it, or less, are base64 of images and documents, which are not read as text.
    Whatever else looks like that is text all the same.
    """
    if binary:
        whole = len(text)
        text = _BINARY.sub(b'""', text)
        more = max(whole - len(text) - binary, 0)
        return likely_tokens(text) + -(-more // _LONG_LETTERS_PER_TOKEN)
    size = len(text)
    if size <= SAMPLE:
        return _count(text)
    step, length = size // _PIECES, SAMPLE // _PIECES
    seen = sum(_count(text[at : at + length]) for at in range(0, step * _PIECES, step))
    return seen * size // SAMPLE


def _count(text: bytes) -> int:
    """Count what tokenizers make tokens of."""
    text = _ESCAPE.sub(b"\n\n", text)
    long = sum(map(len, _LONG.findall(text)))
    if long:
        text = _LONG.sub(b" ", text)
    foreign = len(text.translate(None, _ASCII))
    counted = sum(len(kind.findall(text)) for kind in (_WORD, _NUMBER, _SIGNS))
    return (
        counted
        + -(-long // _LONG_LETTERS_PER_TOKEN)
        + -(-foreign // _FOREIGN_BYTES_PER_TOKEN)
        + text.count(_FOUR_BYTES)
    )
