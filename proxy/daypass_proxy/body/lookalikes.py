"""Key names that another reader might take for ones we know: "Model", or full-width letters.

Called by the checks of a dialect for the objects whose keys we decide by (attack row 31). Two names
are alike when NFKC and case folding make one of them. That takes up to 100 µs a key of ligatures,
and a body may hold thousands, so only what can come out as a name is folded (attack row 17).
"""

import re
import unicodedata
from collections.abc import Collection, Mapping

from daypass_core.problem import Code, refuse

LONGEST_NAME = 24
"""Known names are of at most so many ASCII letters, digits and underscores."""
_NAME = re.compile(r"[a-z0-9_]+")


def fold(text: str) -> str:
    """Return what is left of `text` when case and compatibility forms make no difference."""
    return unicodedata.normalize("NFKC", text).casefold()


# A text folds to a name only when each of its characters folds to a part of it: such characters are
# not changed by their neighbours, and what others leave behind (an accent, say) no neighbour takes
# away. None folds to nothing, so a text is never longer than the name it folds to.
# Of the planes above these two none does (a test looks at all of Unicode).
_PARTS = frozenset(c for c in map(chr, range(0x20000)) if _NAME.fullmatch(fold(c)))
# A faster look for the first plane's; the others are taken for parts here.
_FIRST = re.escape("".join(c for c in _PARTS if c < "\U00010000"))
_odd = re.compile(f"[^{_FIRST}\U00010000-\U0010ffff]").search


def _may_be_name(text: str) -> bool:
    """Say whether every character of `text` folds to a part of a name."""
    if _odd(text):
        return False
    return not text or max(text) <= "\uffff" or _PARTS.issuperset(text)


def refuse_lookalikes(value: Mapping[str, object], known: Collection[str], where: str = "") -> None:
    """Refuse a key that is not a known one but folds to it, with blanks around it or without."""
    for key in value:
        if key in known or len(bare := key.strip()) > LONGEST_NAME or not _may_be_name(bare):
            continue
        folded = fold(bare)
        if folded in known:
            field = f"{where}{key}" if len(key) <= 64 else f"{where}{folded}"
            raise refuse(
                Code.INVALID_REQUEST, f"{field!r} looks like {folded!r}; spell it so", field=folded
            )
