"""Names in a list, shortened by what they share, so that what differs stays legible."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

GAP = "…"
SHARED = 0.6
"""Words that this share of the names has, or more, say little."""
MOST = 0.75
"""The share of the names that must fit."""
_GRADIENTS, _NABLA = "grad. ", "∇ "
_KEPT = {_NABLA, "× ", "→ "}
"""Never left out: ∇ alone tells a group from that of the forward pass, × a number of ops, and an
arrow is as short as a gap."""
_ABBREVIATIONS = {"gradients of ": _GRADIENTS, " / ": "/"}


def shorten_among(
    name: str, names: Sequence[str], width_of: Callable[[str], float], width: float
) -> str:
    """Shorten a name to a width by leaving out words that most of the names share.

    The names of a list are shortened alike, as far as most of them need. The last word stays, and
    so does every word that only a few of the names have. The result may still be too wide.
    """
    ways = _ways(tuple(names))
    for way in ways:
        n_fit = sum(width_of(way(each)) <= width for each in names)
        if n_fit >= MOST * len(names) and width_of(way(name)) <= width:
            return way(name)
    return ways[-1](name)


@lru_cache(maxsize=8)
def _ways(names: tuple[str, ...]) -> list[Callable[[str], str]]:
    """List the ways to shorten, from none to leaving out all words that are shared."""
    among = Counter(word for name in names for word in set(_words(_shortest(name))))
    least = max(SHARED * len(names), 2)  # one name shares nothing
    shared = [word for word, n in among.most_common() if n >= least]
    first = {word: place for name in names for place, word in enumerate(_words(_shortest(name)))}
    shared.sort(key=lambda word: (-among[word], first[word]))
    cuts = [partial(_without, frozenset(shared[:n])) for n in range(len(shared) + 1)]
    return [str, abbreviated, *cuts]


def abbreviated(name: str) -> str:
    """Abbreviate the usual words in a name."""
    for long, short in _ABBREVIATIONS.items():
        name = name.replace(long, short)
    return name


def _shortest(name: str) -> str:
    return abbreviated(name).replace(_GRADIENTS, _NABLA)


def brief(text: str, width_of: Callable[[str], float], width: float) -> str:
    """Abbreviate a text only as far as it must be to fit; the result may still be too wide."""
    ways = (text, abbreviated(text), _shortest(text))
    return next((way for way in ways if width_of(way) <= width), ways[-1])


def wrapped(text: str, width_of: Callable[[str], float], width: float) -> list[str]:
    """Break a text into lines that fit; a word that is too wide has a line of its own.

    A number stays with the word before it.
    """
    lines: list[str] = []
    for word in re.split(r" (?!\d)", text):
        longer = f"{lines[-1]} {word}" if lines else ""
        if longer and width_of(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _without(left_out: frozenset[str], name: str) -> str:
    words = _words(_shortest(name))
    gone = left_out - _KEPT
    return _joined(words, {at for at, word in enumerate(words[:-1]) if word in gone})


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
