"""The most tokens a text can be, whatever tokenizer reads it: its bytes, in the longest writing.

Place in the flow: `estimate` bounds the input of a call by it. A token stands for a byte at least,
but of the text as the tokenizer sees it, and some bring it into Unicode's NFKC form first, which
writes single characters as up to eighteen.
"""

from __future__ import annotations

import re
import unicodedata

_ASCII = bytes(range(128))
# JSON writes a character in six bytes or twelve; of those that NFKC makes longer still, all begin
# so. None grows to more than 18 bytes, but for those of the last kind: 33.
_ESCAPED = re.compile(rb"\\u(0[fF]|2[02aA]|3[23]|[fF][dD])")
_LONG, _LONGEST = 18 - 6, 33 - 6


def most_tokens(text: bytes, enough: int) -> int:
    """Return an upper bound of the tokens of `text`, JSON in UTF-8.

    A text of `enough` bytes or more is not looked at: what is above that makes no difference.
    """
    most = len(text)
    if most >= enough:
        return most
    if not text.isascii():
        rare = text.translate(None, _ASCII).decode("utf-8", "replace")
        # Quotes, dashes and most scripts are in that form already.
        for each in () if unicodedata.is_normalized("NFKC", rare) else set(rare):
            more = len(unicodedata.normalize("NFKC", each).encode()) - len(each.encode())
            if more > 0:
                most += more * rare.count(each)
    for kind in _ESCAPED.findall(text):
        most += _LONGEST if kind[0] in b"fF" else _LONG
    return most
