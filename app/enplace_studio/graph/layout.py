"""Where the cards stand: rows of like parts where there are such, layers along the edges elsewhere.

Plain arithmetic in pixels at scale 1, no Qt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from enplace.groups import Grouping
from enplace.profile import FloatArray, IntArray
from enplace_studio.graph.facts import GroupEdges

CARD_W, CARD_H = 74.0, 42.0
GAP = 10.0
ROW_GAP, TIGHT_ROW_GAP = 38.0, 26.0
TITLE_W = 108.0
WIDE_CARD_W = 132.0
LAYER_GAP = 40.0

_MANY_LINES = 8
_LEAST_COLUMNS = 4
_LONG_LABEL = 9
_CHAIN = 2.2  # cards per layer below which a graph is read like text, line after line
_SWEEPS = 6


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Places of the cards.

    Attributes
    ----------
    x, y, width : float array, shape (n_groups,)
        Top left corner and width; all are :data:`CARD_H` high.
    texts : tuple of str
        What stands on each card.
    titles : tuple of (text, y)
        Row titles at the left edge and the middle of their first line.
    """

    x: FloatArray
    y: FloatArray
    width: FloatArray
    texts: tuple[str, ...]
    titles: tuple[tuple[str, float], ...] = ()

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom of all cards and titles."""
        left = 0.0 if self.titles else float(self.x.min())
        return left, float(self.y.min()), float((self.x + self.width).max()), self.bottom

    @property
    def bottom(self) -> float:
        return float(self.y.max()) + CARD_H


def is_regular(grouping: Grouping) -> bool:
    """Whether most groups belong to rows of at least three."""
    _, sizes = np.unique(np.array(grouping.rows), return_counts=True)
    return bool(sizes[sizes >= 3].sum() >= 0.5 * grouping.n_groups)


def is_chain(grouping: Grouping, edges: GroupEdges) -> bool:
    """Whether groups mostly follow one another."""
    layers = layers_of(grouping.n_groups, edges)
    return grouping.n_groups / (layers.max(initial=0) + 1) < _CHAIN


# ---------------------------------------------------------------- rows


def grid(grouping: Grouping, room: float) -> Arrangement:
    """A line for every row, like labels below each other; single cards share lines.

    Parameters
    ----------
    room : float
        Width to fill; longer rows go on in the next line.
    """
    columns = max(_LEAST_COLUMNS, int((room - TITLE_W + GAP) / (CARD_W + GAP)))
    lines = _lines(grouping)
    needed = max((len(line.columns) for line in lines if line.title), default=1)
    parts = -(-needed // columns)
    return _stack(grouping, lines, -(-needed // parts) if parts > 1 else columns)


def reading(grouping: Grouping, room: float) -> Arrangement:
    """All cards in their order, line after line, as text is read."""
    columns = max(1, int((room + GAP) / (WIDE_CARD_W + GAP)))
    at = np.arange(grouping.n_groups)
    return Arrangement(
        x=(at % columns).astype(np.float64) * (WIDE_CARD_W + GAP),
        y=(at // columns).astype(np.float64) * (CARD_H + TIGHT_ROW_GAP),
        width=np.full(grouping.n_groups, WIDE_CARD_W),
        texts=telling_texts(grouping),
    )


@dataclass(frozen=True)
class _Line:
    """A titled row, or single cards side by side; ``columns`` says which group stands where."""

    title: str
    columns: tuple[int | None, ...]


def _lines(grouping: Grouping) -> list[_Line]:
    """Rows in the order in which they run; neighbouring single cards in one line."""
    rows: dict[str, list[int]] = {}
    for group, row in enumerate(grouping.rows):
        rows.setdefault(row, []).append(group)
    order = sorted(rows.items(), key=lambda row: float(np.mean(row[1])))
    aligned = _columns(grouping, [groups for _, groups in order if len(groups) > 1])
    lines: list[_Line] = []
    for single, some in groupby(order, key=lambda row: len(row[1]) == 1):
        if single:
            lines.append(_Line("", tuple(groups[0] for _, groups in some)))
        else:
            lines += [_Line(title, aligned[groups[0]]) for title, groups in some]
    return lines


def _columns(grouping: Grouping, rows: Sequence[list[int]]) -> dict[int, tuple[int | None, ...]]:
    """For every row, by its first group, the group in each column; equal labels share columns."""
    kinds: dict[str, list[list[int]]] = {}
    for groups in rows:
        stems = [_label_key(grouping.labels[group])[0] for group in groups]
        kinds.setdefault(max(set(stems), key=lambda s: (stems.count(s), s)), []).append(groups)
    found: dict[int, tuple[int | None, ...]] = {}
    for stem, alike in kinds.items():
        labels = {grouping.labels[group] for groups in alike for group in groups}
        ordered = sorted(labels, key=lambda lb: (_label_key(lb)[0] == stem, _label_key(lb)))
        for groups in alike:
            by_label = {grouping.labels[group]: group for group in groups}
            found[groups[0]] = tuple(by_label.get(label) for label in ordered)
    return found


def _label_key(label: str) -> tuple[str, tuple[int, ...]]:
    """Words of a label, and its numbers: ``t 24–27`` sorts after ``t 4–7``."""
    numbers = tuple(map(int, re.findall(r"\d+", label)))
    return re.split(r"\d", label, maxsplit=1)[0].strip(), numbers


def _stack(grouping: Grouping, lines: Sequence[_Line], columns: int) -> Arrangement:
    """Put lines below each other, cut into pieces of so many columns."""
    n = grouping.n_groups
    x, y, width = np.zeros(n), np.zeros(n), np.full(n, CARD_W)
    texts, titles = list(grouping.labels), []
    gap = ROW_GAP if len(lines) <= _MANY_LINES else TIGHT_ROW_GAP
    top = 0.0
    for line in lines:
        if line.title:
            titles.append((line.title, top + CARD_H / 2))
        for piece in _pieces(line, grouping, columns):
            for column, group in piece:
                texts[group] = grouping.labels[group] if line.title else grouping.rows[group]
                x[group] = TITLE_W + column * (CARD_W + GAP)
                y[group] = top
                width[group] = CARD_W if line.title else _width(texts[group])
            top += CARD_H + GAP
        top += gap - GAP
    return Arrangement(x, y, width, tuple(texts), tuple(titles))


def _pieces(line: _Line, grouping: Grouping, columns: int) -> list[list[tuple[int, int]]]:
    """The (column, group) pairs of each piece of a line."""
    pieces: list[list[tuple[int, int]]] = [[]]
    column = 0
    for place, group in enumerate(line.columns):
        if line.title:
            if place and place % columns == 0 and pieces[-1]:
                pieces.append([])
            if group is not None:
                pieces[-1].append((place % columns, group))
        elif group is not None:
            span = round((_width(grouping.rows[group]) + GAP) / (CARD_W + GAP))
            if column and column + span > columns:
                pieces.append([])
                column = 0
            pieces[-1].append((column, group))
            column += span
    return [piece for piece in pieces if piece]


def _width(text: str) -> float:
    """A card for a single text spans two columns where the text is long."""
    return CARD_W if len(text) <= _LONG_LABEL else 2 * CARD_W + GAP


# ---------------------------------------------------------------- layers


def layers_of(n: int, edges: GroupEdges) -> IntArray:
    """Longest path from a source to each node; edges that close a circle of groups do not count."""
    layer = np.zeros(n, dtype=np.int64)
    forward = edges.source < edges.target
    source, target = edges.source[forward], edges.target[forward]
    for node in np.argsort(target, kind="stable").tolist():
        layer[target[node]] = max(layer[target[node]], layer[source[node]] + 1)
    return layer


def layered(grouping: Grouping, edges: GroupEdges) -> Arrangement:
    """Layers from top to bottom by longest path, ordered by barycentre sweeps (Sugiyama 1981)."""
    n = grouping.n_groups
    layer = layers_of(n, edges)
    place = np.zeros(n)
    for members in _members(layer):
        place[members] = np.arange(len(members)) - (len(members) - 1) / 2
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        giver, taker = (edges.source, edges.target) if down else (edges.target, edges.source)
        for members in _members(layer)[:: 1 if down else -1]:
            place[members] = _ordered(members, place, giver, taker)
    return Arrangement(
        x=place * (WIDE_CARD_W + GAP) - (place * (WIDE_CARD_W + GAP)).min(),
        y=layer.astype(np.float64) * (CARD_H + LAYER_GAP),
        width=np.full(n, WIDE_CARD_W),
        texts=telling_texts(grouping),
    )


def _members(layer: IntArray) -> list[IntArray]:
    return [np.flatnonzero(layer == number) for number in range(int(layer.max(initial=0)) + 1)]


def _ordered(members: IntArray, place: FloatArray, giver: IntArray, taker: IntArray) -> FloatArray:
    """New places of a layer: in the order of the mean place of what each is joined to."""
    degree = np.bincount(taker, minlength=len(place))
    pull = np.bincount(taker, weights=place[giver], minlength=len(place))
    wish = np.where(degree > 0, pull / np.maximum(degree, 1), place)[members]
    places = np.empty(len(members))
    places[np.argsort(wish, kind="stable")] = np.arange(len(members)) - (len(members) - 1) / 2
    return places


def from_centres(grouping: Grouping, x: FloatArray, y: FloatArray) -> Arrangement:
    """Cards around given middles, as Graphviz gives them."""
    left, top = x - WIDE_CARD_W / 2, y - CARD_H / 2
    return Arrangement(
        x=left - left.min(),
        y=top - top.min(),
        width=np.full(grouping.n_groups, WIDE_CARD_W),
        texts=telling_texts(grouping),
    )


def telling_texts(grouping: Grouping) -> tuple[str, ...]:
    """Labels, with as much of the row before them as tells them apart."""
    texts = list(grouping.labels)
    for depth in range(1, 4):
        doubles = {text for text in texts if texts.count(text) > 1}
        for group, text in enumerate(texts):
            if text in doubles and grouping.rows[group] != grouping.labels[group]:
                tail = grouping.rows[group].split(" / ")[-depth:]
                texts[group] = " / ".join([*tail, grouping.labels[group]])
    return tuple(texts)
