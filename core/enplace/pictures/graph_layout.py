"""Positions of the cards: rows of similar parts if there are any, else layers along the edges.

Plain arithmetic in pixels at scale 1, no Qt.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

import numpy as np

from enplace.names.group_facts import GroupEdges
from enplace.names.groups import PART, Grouping
from enplace.names.passes import BACKWARD, UPDATE
from enplace.names.ports import Ports
from enplace.names.titles import number_key, shorter_titles, unique_leaves
from enplace.values.arrays import BoolArray
from enplace.values.profile import FloatArray, IntArray

CARD_W, CARD_H = 74.0, 42.0
GAP = 10.0
ROW_GAP, TIGHT_ROW_GAP, LEAST_ROW_GAP = 38.0, 26.0, 14.0
TITLE_W = 108.0
LANE_GAP = 30.0
WIDEST_CARD_W, WIDEST_FOR_TEXT = 128.0, 200.0
WIDE_CARD_W = 132.0
OP_CARD_W, OP_CARD_H = 168.0, 60.0
PORT_W, PORT_H = 190.0, 24.0
LAYER_GAP = 40.0
TIGHTER = 1.15
"""A row may be this much wider than the canvas before it is cut in two."""

_MANY_LINES = 8
_LEAST_COLUMNS = 4
_CHAIN = 1.3  # below this number of edges per card, cards are arranged line after line, like text
_NARROW = 1.8  # ... or cards per layer
_FAN = 12  # with more edges in or out of a box, the picture gets crowded
_LONG_LABEL = 20
_ESTIMATE_SLACK = 6.0
_DERIVED_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Places of the cards.

    Attributes
    ----------
    x, y, width, height : float array, shape (n_nodes,)
        Top left corner and size of the cards, then of the ports.
    texts : tuple of str
        The text on each card and port.
    titles : tuple of (text, x, y)
        Row titles, with their left edge and the centre of the row's first line.
    routes : tuple of float array, shape (3 * n_curves + 1, 2), or None
        The way of each edge around the cards, as joined cubic curves; None for an edge that was
        left out of the layout. Empty if no edge has a way of its own.
    """

    x: FloatArray
    y: FloatArray
    width: FloatArray
    height: FloatArray
    texts: tuple[str, ...]
    titles: tuple[tuple[str, float, float], ...] = ()
    routes: tuple[FloatArray | None, ...] = ()

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom of all cards and titles."""
        left = 0.0 if self.titles else float(self.x.min())
        return left, float(self.y.min()), float((self.x + self.width).max()), self.bottom

    @property
    def bottom(self) -> float:
        return float((self.y + self.height).max())


def stretched(arrangement: Arrangement, most: float) -> Arrangement:
    """Make cards in lines wider, up to ``most`` times, as far as their texts need."""
    widths = arrangement.width.tolist()
    needed = [_text_width(text) / px for text, px in zip(arrangement.texts, widths, strict=True)]
    times = max(min(most, max(needed)), 1.0)
    return replace(
        arrangement,
        x=arrangement.x * times,
        width=(arrangement.width + GAP) * times - GAP,
        titles=tuple((text, x * times, y) for text, x, y in arrangement.titles),
    )


def is_regular(grouping: Grouping) -> bool:
    """Return whether most groups are in rows of two or more and have labels for narrow cards."""
    in_rows = sum(size for size in Counter(grouping.rows).values() if size >= 2)
    long = sum(len(label) > _LONG_LABEL for label in grouping.labels)
    return in_rows >= 0.5 * grouping.n_groups > long


def is_chain(grouping: Grouping, edges: GroupEdges) -> bool:
    """Return whether most groups form a chain."""
    n, depth = grouping.n_groups, int(layers_of(grouping.n_groups, edges).max(initial=0)) + 1
    return len(edges.bytes) < _CHAIN * n or n < _NARROW * depth


def arrange(
    grouping: Grouping, edges: GroupEdges, width: float, row_gap: float = ROW_GAP
) -> Arrangement:
    """Arrange the cards in rows or in order if that suits them, else in layers.

    Rows are at most ``row_gap`` apart.
    """
    if is_regular(grouping):
        return grid(grouping, width, row_gap)
    if is_chain(grouping, edges):
        return reading(grouping, width)
    return layered(make_boxes(grouping), edges)


# ---------------------------------------------------------------- rows


def grid(grouping: Grouping, width: float, row_gap: float = ROW_GAP) -> Arrangement:
    """Arrange every row in a line, equal labels in a column; single cards share lines.

    If there are many short rows, those derived from the model (gradients and updates) go on the
    right, next to the rows they are derived from.

    Parameters
    ----------
    width : float
        Width to fill; longer rows continue on the next line.
    row_gap : float
        Largest gap between rows.
    """
    lines = _all_lines(grouping)
    derived = sum(" of " in row for row in grouping.rows)
    half = _columns_in(width / 2)
    mostly_short = sum(len(line.columns) > half for line in lines if line.title) <= 1
    if len(lines) > _MANY_LINES and mostly_short and derived > _DERIVED_SHARE * grouping.n_groups:
        return _Stack(grouping, _next_to_their_origin(grouping), width, row_gap).arrangement()
    return _Stack(grouping, [([line],) for line in lines], width, row_gap).arrangement()


def reading(grouping: Grouping, width: float) -> Arrangement:
    """Arrange all cards in order, line after line, like text."""
    columns = max(1, int((width + GAP) / (WIDE_CARD_W + GAP)))
    at = np.arange(grouping.n_groups)
    return Arrangement(
        x=(at % columns).astype(np.float64) * (WIDE_CARD_W + GAP),
        y=(at // columns).astype(np.float64) * (CARD_H + TIGHT_ROW_GAP),
        width=np.full(grouping.n_groups, WIDE_CARD_W),
        height=np.full(grouping.n_groups, CARD_H),
        texts=unique_texts(grouping),
    )


_CardLine = list[tuple[int, int, int]]
"""The cards of one line: column, number of columns and group of each."""


@dataclass(frozen=True)
class _Line:
    """A titled row, or single cards side by side; ``columns`` holds the group in each column."""

    title: str
    columns: tuple[int | None, ...]


_Band = tuple[Sequence[_Line], ...]
"""Lines that start at the same height, by lane."""


@lru_cache(maxsize=1)
def _next_to_their_origin(grouping: Grouping) -> Sequence[_Band]:
    """Make two lanes: the model's own rows on the left, rows derived from each on the right."""
    derived = [" of " in row for row in grouping.rows]
    own = _lines(grouping, [g for g, is_derived in enumerate(derived) if not is_derived])
    band_of = {
        grouping.rows[group]: number
        for number, line in enumerate(own)
        for group in line.columns
        if group is not None
    }
    by_band: list[list[int]] = [[] for _ in range(len(own) + 1)]
    for group, row in enumerate(grouping.rows):
        if derived[group]:
            by_band[band_of.get(row.partition(" of ")[2], len(own))].append(group)
    lines = [_singles_last(_lines(grouping, groups)) for groups in by_band]
    mains: list[list[_Line]] = [*([line] for line in own), []]
    return list(zip(mains, lines, strict=True))


def _singles_last(lines: Sequence[_Line]) -> list[_Line]:
    """Put the titled rows first, then all single cards in one line."""
    singles = tuple(group for line in lines if not line.title for group in line.columns)
    return [line for line in lines if line.title] + ([_Line("", singles)] if singles else [])


def _longest(lines: Sequence[_Line]) -> int:
    """Count the columns of the longest titled row."""
    return max((len(line.columns) for line in lines if line.title), default=1)


def _columns_in(width: float) -> int:
    return max(_LEAST_COLUMNS, int((width - TITLE_W + GAP) / (CARD_W + GAP)))


@lru_cache(maxsize=1)  # the studio tries several widths
def _all_lines(grouping: Grouping) -> Sequence[_Line]:
    return _lines(grouping, range(grouping.n_groups))


def _lines(grouping: Grouping, groups: Sequence[int]) -> list[_Line]:
    """Make a line for each row, in execution order; adjacent single cards share one."""
    rows: dict[str, list[int]] = {}
    for group in groups:
        rows.setdefault(grouping.rows[group], []).append(group)
    order = _in_order(rows)
    aligned = _columns(grouping, [members for _, members in order if len(members) > 1])
    lines: list[_Line] = []
    for single, some in groupby(order, key=lambda row: len(row[1]) == 1):
        if single:
            lines.append(_Line("", tuple(members[0] for _, members in some)))
        else:
            lines += [_Line(title, aligned[members[0]]) for title, members in some]
    return lines


def _in_order(rows: dict[str, list[int]]) -> list[tuple[str, list[int]]]:
    """Sort rows by execution: gradients follow all rows that have some, and updates come last.

    A few ops of them may run long before, such as a constant.
    """
    middle = {row: sum(groups) / len(groups) for row, groups in rows.items()}
    origins = {row.partition(" of ")[2] for row in rows if " of " in row}
    back = max((middle[row] for row in origins & rows.keys()), default=0.0)

    def key(row: str) -> tuple[bool, float, bool, float]:
        is_back = " of " in row
        return row == UPDATE, max(middle[row], back * is_back), is_back, middle[row]

    return sorted(rows.items(), key=lambda each: key(each[0]))


def _columns(grouping: Grouping, rows: Sequence[list[int]]) -> dict[int, tuple[int | None, ...]]:
    """Find the group in each column of a row, keyed by its first group; labels define columns."""
    found: dict[int, tuple[int | None, ...]] = {}
    for alike in _alike(grouping, rows):
        labels = dict.fromkeys(grouping.labels[group] for groups in alike for group in groups)
        # Unlike scopes are in the order in which they run; those with numbers, by these.
        stems = list(dict.fromkeys(_label_key(label)[0] for label in labels))
        ordered = sorted(labels, key=lambda lb: (stems.index(_label_key(lb)[0]), _label_key(lb)))
        for groups in alike:
            by_label = {grouping.labels[group]: group for group in groups}
            found[groups[0]] = tuple(by_label.get(label) for label in ordered)
    return found


def _alike(grouping: Grouping, rows: Sequence[list[int]]) -> list[list[list[int]]]:
    """Collect rows that have at least two labels in common."""
    found: list[tuple[set[str], list[list[int]]]] = []
    for groups in rows:
        labels = {grouping.labels[group] for group in groups}
        known, alike = next(
            ((known, alike) for known, alike in found if len(known & labels) > 1), (set(), [])
        )
        if not alike:
            found.append((known, alike))
        known |= labels
        alike.append(groups)
    return [alike for _, alike in found]


@lru_cache(maxsize=4096)  # every resize of the studio's graph sorts the same labels many times
def _label_key(label: str) -> tuple[str, tuple[tuple[int, str], ...]]:
    """Return the words and numbers of a label as a sort key: ``t 24–27`` sorts after ``t 4–7``."""
    return re.split(r"\d", label, maxsplit=1)[0].strip(), number_key(label)


class _Stack:
    """Stacks bands of lines; each line is cut to fit its lane."""

    def __init__(
        self, grouping: Grouping, bands: Sequence[_Band], width: float, row_gap: float
    ) -> None:
        n, n_lanes = grouping.n_groups, len(bands[0])
        self.grouping, self.full_width = grouping, width
        self.x, self.y, self.width = np.zeros(n), np.zeros(n), np.zeros(n)
        self.titles: list[tuple[str, float, float]] = []
        self.ways = shorter_titles((*grouping.names, *grouping.rows))
        self.gap = min(row_gap, ROW_GAP if len(bands) <= _MANY_LINES else TIGHT_ROW_GAP)
        lane_width = (width - LANE_GAP * (n_lanes - 1)) / n_lanes
        needed = _longest([line for band in bands for lane in band for line in lane])
        most = _columns_in(lane_width)
        if n_lanes == 1 and needed <= _columns_in(lane_width * TIGHTER):
            most = max(most, needed)
        balanced = -(-needed // -(-needed // most))
        self.columns = balanced if n_lanes == 1 else min(needed, most)
        share = (lane_width - TITLE_W + GAP) / max(self.columns, _LEAST_COLUMNS) - GAP
        widest = max(map(_text_width, grouping.labels))
        self.card_w = min(max(share, CARD_W), max(min(widest, WIDEST_FOR_TEXT), WIDEST_CARD_W))
        self.texts, self.words = _row_texts(grouping, self.card_w)
        lane_w = TITLE_W + max(self.columns, _LEAST_COLUMNS) * (self.card_w + GAP) + LANE_GAP
        top = 0.0
        for band in bands:
            top = max(self._stack(lane, i * lane_w, top) for i, lane in enumerate(band))

    def arrangement(self) -> Arrangement:
        height = np.full(len(self.x), CARD_H)
        texts, titles = tuple(self.texts), tuple(self.titles)
        return Arrangement(self.x, self.y, self.width, height, texts, titles)

    def _stack(self, lines: Sequence[_Line], left: float, top: float) -> float:
        """Place the lines of one lane of a band; return the height at which they end."""
        for line in lines:
            if line.title:
                words = [_short_title(self.ways[line.title]), *self.words.get(line.title, ())]
                self.titles.append((" / ".join(words), left, top + CARD_H / 2))
            for cards in self._titled(line) if line.title else self._singles(line, left):
                for column, span, group in cards:
                    self.x[group] = left + TITLE_W + column * (self.card_w + GAP)
                    self.y[group] = top
                    self.width[group] = span * (self.card_w + GAP) - GAP
                top += CARD_H + GAP
            top += self.gap - GAP
        return top

    def _titled(self, line: _Line) -> list[_CardLine]:
        placed = [(place, group) for place, group in enumerate(line.columns) if group is not None]
        lines = groupby(placed, key=lambda one: one[0] // self.columns)
        return [[(place % self.columns, 1, group) for place, group in some] for _, some in lines]

    def _singles(self, line: _Line, left: float) -> list[_CardLine]:
        """Place cards that span one, two or three columns, depending on their texts."""
        card_lines: list[_CardLine] = [[]]
        column, most = 0, max(self.columns, _LEAST_COLUMNS)
        if left:
            most = max(most, int((self.full_width - left - TITLE_W + GAP) / (self.card_w + GAP)))
        for group in (each for each in line.columns if each is not None):
            self.texts[group] = text = self.grouping.rows[group]
            span = min(3, math.ceil((_text_width(text) + GAP) / (self.card_w + GAP)))
            if column and column + span > most:
                card_lines.append([])
                column = 0
            card_lines[-1].append((column, span, group))
            column += span
        return card_lines


def _row_texts(grouping: Grouping, card_w: float) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Return the labels; only their numbers in narrow rows whose title can take the words.

    Returns
    -------
    texts : list of str
    words : dict of str to tuple of str
        Words that the title of a row takes over from its cards.
    """
    texts = list(grouping.labels)
    words: dict[str, tuple[str, ...]] = {}
    rows: dict[str, list[int]] = {}
    for group, row in enumerate(grouping.rows):
        rows.setdefault(row, []).append(group)
    for row, groups in rows.items():
        labels = [grouping.labels[group] for group in groups]
        if max(map(_text_width, labels)) <= card_w + _ESTIMATE_SLACK:
            continue
        stem = row.rpartition(" of ")[2]
        shared = {_label_key(label)[0] for label in labels}
        if len(groups) > 1 and len(shared) == 1 and any(shared) and not labels[0].startswith(stem):
            (stem,) = shared
            words[row] = () if " of " in row else (stem,)
        for group, label in zip(groups, labels, strict=True):
            if label.startswith(stem):
                texts[group] = label.removeprefix(stem).lstrip(" .") or label
    return texts, words


def _text_width(text: str) -> float:
    """Estimate the width of a card that shows the full text."""
    return 8.4 * len(text) + 16


def _short_title(ways: Sequence[str]) -> str:
    """Return the end of a long path, from its first numbered component; gradients stay such.

    Parameters
    ----------
    ways
        The ways to write the path, the full one first; there is none that may mean another path.
    """
    parts = ways[0].split(" / ")
    numbered = [at for at, part in enumerate(parts) if part[-1].isdigit()]
    n_kept = len(parts) - (numbered[0] if numbered else max(0, len(parts) - 2))
    short = [way for way in ways if way.count(" / ") >= n_kept - 1][-1]
    before = f"{BACKWARD} of "
    is_long = short.startswith(before) and n_kept < len(parts)
    return f"∇ {short.removeprefix(before)}" if is_long else short


# ---------------------------------------------------------------- layers


def layers_of(n: int, edges: GroupEdges) -> IntArray:
    """Find the longest path from a source to each node, without edges that close a cycle."""
    layer = np.zeros(n, dtype=np.int64)
    forward = edges.source < edges.target
    source, target = edges.source[forward], edges.target[forward]
    for node in np.argsort(target, kind="stable").tolist():
        layer[target[node]] = max(layer[target[node]], layer[source[node]] + 1)
    return layer


@dataclass(frozen=True, eq=False)
class Boxes:
    """What is laid out in layers: cards, then ports; all arrays have shape (n_nodes,).

    Attributes
    ----------
    width, height : float array
    side : int array
        −1 for ports above all cards, 1 for ports below them, 0 for cards.
    texts : tuple of str
    """

    width: FloatArray
    height: FloatArray
    side: IntArray
    texts: tuple[str, ...]


def make_boxes(grouping: Grouping, ports: Ports | None = None, of_ops: bool = False) -> Boxes:
    """Make a box for every group, or for every op if the groups are single ops, and port."""
    n, some = grouping.n_groups, ports.ports if ports is not None else ()
    width, height = (OP_CARD_W, OP_CARD_H) if of_ops else (WIDE_CARD_W, CARD_H)
    texts = unique_leaves(grouping.names) if of_ops else unique_texts(grouping)
    return Boxes(
        width=np.array([width] * n + [PORT_W] * len(some)),
        height=np.array([height] * n + [PORT_H] * len(some)),
        side=np.array([0] * n + [-1 if port.is_input else 1 for port in some]),
        texts=(*texts, *(port.short for port in some)),
    )


def layered(boxes: Boxes, edges: GroupEdges) -> Arrangement:
    """Arrange boxes in layers, with ways for the edges; with 400 boxes, this takes 0.2 s."""
    from enplace.pictures.layering import lay_out  # its solver takes a while to import

    kept = nearest_edges(edges)
    middles, routes = lay_out(
        np.column_stack([edges.source[kept], edges.target[kept]]),
        np.column_stack([boxes.width, boxes.height]),
        boxes.side,
        (GAP, LAYER_GAP),
    )
    corners = middles - np.column_stack([boxes.width, boxes.height]) / 2
    corner = corners.min(axis=0)
    found = iter(routes)
    return Arrangement(
        x=corners[:, 0] - corner[0],
        y=corners[:, 1] - corner[1],
        width=boxes.width,
        height=boxes.height,
        texts=boxes.texts,
        routes=tuple(next(found) - corner if is_kept else None for is_kept in kept.tolist()),
    )


def nearest_edges(edges: GroupEdges) -> BoolArray:
    """Find the edges to lay out: of a box with a large fan, only those to the nearest boxes."""
    kept = np.ones(len(edges.bytes), dtype=bool)
    far = np.abs(edges.target - edges.source)
    for end in (edges.source, edges.target):
        order = np.lexsort((far, end))
        place = np.arange(len(order)) - np.searchsorted(end[order], end[order])
        kept[order[place >= _FAN]] = False
    return kept


def unique_texts(grouping: Grouping) -> tuple[str, ...]:
    """Make labels unique by prefixing as much of the row's name as needed."""
    texts = list(grouping.labels)
    for depth in range(1, 4):
        doubles = {t for t, n in Counter(texts).items() if n > 1 or PART.match(t)}
        for group, text in enumerate(texts):
            if text in doubles and grouping.rows[group] != grouping.labels[group]:
                tail = grouping.rows[group].split(" / ")[-depth:]
                texts[group] = " / ".join([*tail, grouping.labels[group]])
    return tuple(texts)
