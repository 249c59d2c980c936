"""Rows of links in which one row stands for many links: ``GPU:*`` to ``GPU:*``. No Qt.

A row is ``(from, to, latency, bandwidth, channels)``, all texts. In a pattern, ``all`` or a name
with ``*`` stands for every device that it matches, and ``{from}`` and ``{to}`` in the channels for
the two devices. Of several rows for a pair the last counts. On screen, words stand for patterns.
Channels are joined by :data:`JOIN`, which nobody has to type.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

ALL = "all"

EACH_ITS_OWN = "{from}->{to}"
"""The channel of a pattern that gives each link one of its own."""

EVERY = "every "
CHANNELS = {
    EACH_ITS_OWN: "its own",
    "{from} out": "one out of each device",
    "{to} in": "one into each device",
    "port {from}": "port of the sender",
    "port {to}": "port of the receiver",
}
"""What stands on screen for the channels of a pattern."""

JOIN = "; "

LinkRow = tuple[str, ...]


def in_words(row: Sequence[str]) -> LinkRow:
    """Return what is shown of a row."""
    source, target, *cost, channels = row
    shown = [CHANNELS.get(each, each) for each in split_channels(channels)]
    return (end_in_words(source), end_in_words(target), *cost, JOIN.join(shown))


def split_channels(channels: str) -> list[str]:
    """Return the channels of a row, one by one."""
    return [name.strip() for name in channels.split(JOIN.strip()) if name.strip()]


def end_in_words(pattern: str) -> str:
    """Return what is shown of an end: ``every GPU``."""
    if pattern == ALL:
        return f"{EVERY}device"
    kind, colon, number = pattern.rpartition(":")
    return f"{EVERY}{kind}" if (colon, number) == (":", "*") else pattern


def from_words(row: Sequence[str]) -> LinkRow:
    """Return the row that is shown so."""
    source, target, *cost, channels = row
    patterns = {words: pattern for pattern, words in CHANNELS.items()}
    meant = [patterns.get(each, each) for each in split_channels(channels)]
    return (_end_of(source), _end_of(target), *cost, JOIN.join(meant))


def _end_of(words: str) -> str:
    if words == end_in_words(ALL):
        return ALL
    return f"{words.removeprefix(EVERY)}:*" if words.startswith(EVERY) else words


def choices_of_ends(names: Sequence[str]) -> list[str]:
    """List what an end may be: every device, those of a kind, or one."""
    kinds = [_kind(name) for name in names if ":" in name]
    return [end_in_words(each) for each in dict.fromkeys([ALL, *kinds, *names])]


def expand(rows: Sequence[Sequence[str]], names: Sequence[str]) -> list[LinkRow]:
    """Return a row for each pair that the rows describe, in the order of the devices.

    Rows without a pattern stay as they are, even if their devices do not exist.
    """
    found: dict[tuple[str, str], LinkRow] = {}
    for source, target, *cost, channels in rows:
        for a in _matching(source, names):
            for b in _matching(target, names):
                if a != b or a == source == target:  # the latter is an error to report
                    shown = channels.replace("{from}", a).replace("{to}", b)
                    found[a, b] = (a, b, *cost, shown)
    place = {name: at for at, name in enumerate(names)}
    last = len(names)
    order = sorted(found, key=lambda ends: [place.get(end, last) for end in ends])
    return [found[ends] for ends in order]


def _matching(pattern: str, names: Sequence[str]) -> list[str]:
    if pattern != ALL and "*" not in pattern:
        return [pattern]
    expression = "" if pattern == ALL else re.escape(pattern).replace(r"\*", ".*")
    return [name for name in names if pattern == ALL or re.fullmatch(expression, name)]


def compress(rows: Sequence[LinkRow], names: Sequence[str]) -> list[LinkRow]:
    """Return fewer rows for the same pairs: patterns first, then the rows that differ from them.

    A pattern joins the devices whose names differ only after the last colon.
    """
    alike = {_general(row) for row in rows}
    is_one = len(alike) == 1 and len(rows) > 1
    patterns = [(ALL, ALL, *alike.pop())] if is_one else _by_kind(rows)
    said = set(expand(patterns, names))
    exact = [*patterns, *(row for row in rows if row not in said)]
    return exact if len(exact) < len(rows) else list(rows)


def _by_kind(rows: Sequence[LinkRow]) -> list[LinkRow]:
    """Return the most frequent row of each pair of kinds as a pattern."""
    kinds: dict[tuple[str, str], Counter[LinkRow]] = {}
    for row in rows:
        ends = (_kind(row[0]), _kind(row[1]))
        kinds.setdefault(ends, Counter())[_general(row)] += 1
    patterns = []
    for ends, general in kinds.items():
        most, times = general.most_common(1)[0]
        if times > 1:
            patterns.append((*ends, *most))
    return patterns


def _kind(name: str) -> str:
    """Return the pattern of the names that differ from this one only after the last colon."""
    start, colon, _ = name.rpartition(":")
    return f"{start}{colon}*"


def _general(row: LinkRow) -> LinkRow:
    """Return the cost and channels of a row, with its devices left open in the channels."""
    source, target, *cost, channels = row
    holders = sorted([(source, "{from}"), (target, "{to}")], key=lambda each: -len(each[0]))
    for name, holder in holders:
        channels = channels.replace(name, holder)
    return (*cost, channels)
