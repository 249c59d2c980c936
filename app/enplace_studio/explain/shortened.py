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
_GRADIENTS = "∇ "
_KEPT = {_GRADIENTS, "× ", "→ "}
"""Never left out: ∇ alone tells a group from that of the forward pass, × a number of ops, and an
arrow is as short as a gap."""
_BETWEEN = " ,/_"
_COUNTED = re.compile(r"(ops?|groups?|m?s|[KMG]i?B|%|×)\W*$")
"""What belongs to the number before it."""
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
    among = Counter(word for name in names for word in set(_words(abbreviated(name))))
    least = max(SHARED * len(names), 2)  # one name shares nothing
    shared = [word for word, n in among.most_common() if n >= least]
    first = {word: place for name in names for place, word in enumerate(_words(abbreviated(name)))}
    shared.sort(key=lambda word: (-among[word], first[word]))
    cuts = [partial(_without, frozenset(shared[:n])) for n in range(len(shared) + 1)]
    return [str, abbreviated, *cuts]


def abbreviated(name: str) -> str:
    """Abbreviate the usual words in a name."""
    for long, short in _ABBREVIATIONS.items():
        name = name.replace(long, short)
    return name


def brief(text: str, width_of: Callable[[str], float], width: float) -> str:
    """Abbreviate a text only if it does not fit; the result may still be too wide."""
    return text if width_of(text) <= width else abbreviated(text)


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


def by_words(
    name: str, others: Sequence[str], width_of: Callable[[str], float], width: float
) -> str:
    """Leave whole words of a name out, as few as needed, where it stays apart from the others.

    It always begins as the name does; words are left out in the middle where that keeps more of
    them, or keeps it apart, else at its end. Only where no whole words tell it apart, or fit, its
    first word is cut.
    """
    if width_of(name) <= width:
        return name
    words = _units(name)
    alike = {each for each in others if each != name and each.startswith(words[0].rstrip(_BETWEEN))}
    rivals = [_units(each) for each in alike]
    n, best, found = len(words), (False, 0), ""
    for n_shown in range(n - 1, 0, -1):
        for n_head in range(n_shown, 0, -1):
            head, tail = words[:n_head], words[n - n_shown + n_head :]
            shown = _bridged(head, tail)
            is_alone = not any(_is_shown_alike(rival, head, tail) for rival in rivals)
            if (is_alone, n_shown) > best and width_of(shown) <= width:
                best, found = (is_alone, n_shown), shown
    ends = words[-1] if n > 1 else ""
    if best[0] or not (cut := _cut(words[0], ends, width_of, width)):
        return found or _cut(words[0], "", width_of, width) or f"{name[:1]}{GAP}"
    return cut


def by_ends(text: str, width_of: Callable[[str], float], width: float) -> str:
    """Leave whole words out of the middle of a text that does not fit; its last words stay."""
    return by_words(text, [f"{text} too"], width_of, width)


@lru_cache(maxsize=1024)
def _units(name: str) -> tuple[str, ...]:
    """Split a name after its spaces, slashes and underscores; no number is torn from its word."""
    units: list[str] = []
    for word in re.findall(r"[^\s/_]+[\s/_]*|[\s/_]+", name):
        last = units[-1].rstrip() if units else ""
        is_counted = last[-1:].isdigit() and (last[0].isdigit() or _COUNTED.match(word))
        is_tied = word[0].isdigit() or is_counted
        if last and is_tied and not last.endswith(","):
            units[-1] += word
        else:
            units.append(word)
    return tuple(units)


def _is_shown_alike(words: tuple[str, ...], head: tuple[str, ...], tail: tuple[str, ...]) -> bool:
    shown = (*words[: len(head)], *words[len(words) - len(tail) :])
    return _bare(shown) == _bare((*head, *tail))


def _bare(words: Sequence[str]) -> list[str]:
    return [word.rstrip(_BETWEEN) for word in words]


def _bridged(head: Sequence[str], tail: Sequence[str]) -> str:
    """Put an ellipsis between two parts of a name, as far from them as their words are apart."""
    before, after = "".join(head), "".join(tail)
    space = " " if before.endswith(" ") else ""
    return f"{before.rstrip(_BETWEEN)}{space}{GAP}{space if after else ''}{after}"


def _cut(word: str, ends: str, width_of: Callable[[str], float], width: float) -> str:
    """Cut a word so that it fits with the end of its name; empty if only a letter would be left."""
    ways = (f"{word[:n].rstrip(_BETWEEN)}{GAP}{ends}" for n in range(len(word), 1, -1))
    return next((way for way in ways if width_of(way) <= width), "")


def _without(left_out: frozenset[str], name: str) -> str:
    words = _words(abbreviated(name))
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
