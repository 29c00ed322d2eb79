"""Keys that look like known ones: which are refused, and how little it takes to say of the rest."""

import sys
import unicodedata
from collections.abc import Collection

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from daypass_core.problem import Refusal
from daypass_proxy.body import lookalikes
from daypass_proxy.body.lookalikes import LONGEST_NAME, fold, refuse_lookalikes
from daypass_proxy.providers import anthropic_fields as fields

NAMES = {"model", "max_tokens", "tools", "ss", "afif", "name_9", "a" * LONGEST_NAME}
# By what they fold to: letters in every dress, ligatures of names' letters, what only looks close.
DRESSES: dict[str, list[str]] = {}
for _code in range(0x20000):
    if not 0xD800 <= _code < 0xE000:
        DRESSES.setdefault(fold(chr(_code)), []).append(chr(_code))
MARKS = "\u0301\u0315\u0345\u0338\u0307\u20e3\u200d\ufe0f\u3099"
BLANKS = [c for c in map(chr, range(0x10000)) if c.isspace()]
ODD = [
    *(*MARKS, *BLANKS, *"ßẞſﬀﬃﷺ㎖㏒⑴ªºİ¨_9", *"\u0131\u212a\u00b4\u037a\u115f\u3164\u00ad\0"),
    *("\U0001d15e", "\U0001d5ba", "\U0001f130", "\U0010ffff"),
]


def seen_slowly(key: str, known: Collection[str]) -> bool:
    """Whether a key is refused: what is meant, without any shortcut but the one for length."""
    bare = key.strip()
    return key not in known and len(bare) <= 64 and fold(bare).strip() in known


@st.composite
def dressed(draw: st.DrawFn) -> str:
    """A known name, its letters dressed up, with something odd here and there."""
    name, key, at = draw(st.sampled_from(sorted(NAMES))), "", 0
    while at < len(name):
        step = draw(st.sampled_from([1, 1, 1, 2, 3]))
        forms = DRESSES.get(name[at : at + step])
        if forms is None:
            step, forms = 1, DRESSES[name[at]]
        key += draw(st.sampled_from(forms))
        at += step
    for odd in draw(st.lists(st.sampled_from(ODD), max_size=2)):
        place = draw(st.integers(0, len(key)))
        key = key[:place] + odd + key[place:]
    blanks = st.text(st.sampled_from(BLANKS), max_size=3)
    return draw(blanks) + key + draw(blanks)


@settings(max_examples=600, deadline=None)
@given(st.one_of(dressed(), st.text(st.sampled_from(ODD), max_size=70), st.text(max_size=70)))
@example("a" * (LONGEST_NAME - 1) + "\uff41")
@example("a" * LONGEST_NAME + "\uff41")
@example("\ufb01" * 40)
@example("ß")
@example(" " * 200_000 + "Model")
def test_refused_is_what_folds_to_a_name(key: str) -> None:
    """Row 31: the shortcuts change no verdict, whatever the key is made of."""
    if seen_slowly(key, NAMES):
        with pytest.raises(Refusal) as caught:
            refuse_lookalikes({key: 1}, NAMES)
        assert caught.value.problem.field == fold(key.strip()).strip()
    else:
        refuse_lookalikes({key: 1}, NAMES)


def test_every_character_alone_and_beside_others() -> None:
    """Row 31: of all Unicode, the characters that fold to a name are the ones that are folded."""
    for code in range(sys.maxunicode + 1):
        if 0xD800 <= code < 0xE000:
            continue
        folded = fold(chr(code))
        named = lookalikes._NAME.fullmatch(folded) is not None
        assert lookalikes._may_be_name(chr(code)) is named, hex(code)
        # None folds to nothing or to blanks only, so length bounds and strip() mean the same.
        assert folded
        assert chr(code).isspace() or folded.strip()
        # What is no part of a name leaves something that is none, whatever stands beside it.
        if not named and code < 0x20000:
            beside = fold(f"a{chr(code)}s")
            assert not lookalikes._NAME.fullmatch(beside), hex(code)


def test_known_names_are_of_the_kind() -> None:
    """The tables hold for names of ASCII letters, digits and underscores that are not too long."""
    for name in fields.KNOWN | fields.TOOL_KEYS | fields.FALLBACK_KEYS:
        assert lookalikes._NAME.fullmatch(name)
        assert len(name) <= LONGEST_NAME


@pytest.mark.parametrize("key", ["Model", "MODEL", "\uff4dodel", " model", "max_tokens\u00a0"])
def test_lookalike_keys(key: str) -> None:
    """A key that folds to a known one but is not it is refused, naming the known one (row 31)."""
    with pytest.raises(Refusal) as caught:
        refuse_lookalikes({key: 1}, {"model", "max_tokens"})
    assert caught.value.problem.field in ("model", "max_tokens")
    refuse_lookalikes({"model": 1, "other": 2}, {"model"})


@pytest.mark.parametrize(
    "key",
    [
        *("\ufdfa" * 60, "\ufdfa" * 5, "model" + "\u0301\u0315" * 9, "\U0001d15e" * 20),
        *("\uff4d" * 19 + "\ufdfa", "\ufb03" * 200_000, "\ud55c" * 20),
    ],
)
def test_row_17_what_cannot_be_a_name_is_not_folded(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 17: of keys made to be dear not one letter is normalised."""
    letters = 0

    def normalize(form: str, text: str) -> str:
        nonlocal letters
        letters += len(text)
        return normal("NFKC", text)

    normal = unicodedata.normalize
    monkeypatch.setattr(unicodedata, "normalize", normalize)
    refuse_lookalikes({key: 1, f"{key}2": 1}, fields.KNOWN)
    assert letters == 0
    refuse_lookalikes({"\uff4d" * LONGEST_NAME: 1}, fields.KNOWN)
    assert letters == LONGEST_NAME
