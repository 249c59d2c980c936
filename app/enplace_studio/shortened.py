"""Names in a list, shortened by what they share, so that what differs stays legible."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

GAP = "…"
SHARED = 0.6
"""Words that this share of the names has, or more, say little."""
_ABBREVIATIONS = {"gradients of ": "grad. ", " / ": "/"}


def shorten_among(
    name: str, names: Sequence[str], width_of: Callable[[str], float], width: float
) -> str:
    """Shorten a name to a width by leaving out words that most of the names share.

    The last word stays, and so does every word that only a few of the names have. The result may
    still be too wide.
    """
    if width_of(name) <= width:
        return name
    for long, short in _ABBREVIATIONS.items():
        name = name.replace(long, short)
        names = [each.replace(long, short) for each in names]
    words = _words(name)
    among = Counter(word for each in names for word in set(_words(each)))
    shared = [at for at, word in enumerate(words[:-1]) if among[word] >= SHARED * len(names)]
    left_out: set[int] = set()
    for at in sorted(shared, key=lambda at: -among[words[at]]):
        if width_of(_joined(words, left_out)) <= width:
            break
        left_out.add(at)
    return _joined(words, left_out)


def _words(name: str) -> list[str]:
    """Split a name at its spaces and slashes; a word and the number after it are one."""
    return re.findall(r"(?:[^\W\d]+ (?=\d))?[^\s/]+[\s/]*", name)


def _joined(words: Sequence[str], left_out: set[int]) -> str:
    """Join the words; those left out, however many follow each other, become an ellipsis."""
    text = ""
    for at, word in enumerate(words):
        if at not in left_out:
            text += word
        elif at - 1 not in left_out:
            text = text.rstrip() + GAP if text else GAP
    return text.strip()
