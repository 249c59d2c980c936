"""The picture of one level of the graph: cards and edges in their places, ready to paint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QPainterPath

from enplace.names.groups import Grouping
from enplace.values.profile import FloatArray, IntArray
from enplace_studio.views.graph.colours import Look
from enplace_studio.views.graph.facts import BoolArray, Facts, GroupEdges
from enplace_studio.views.graph.layout import CARD_H, CARD_W, GAP, Arrangement

EDGES_PER_CARD = 2.5
_HUB = 7
_SMALLEST_SHARE = 0.004  # share of the largest edge; smaller edges show only at a selected card
_WIDTHS = (0.8, 3.4)


@dataclass(frozen=True, eq=False)
class GraphLevel:
    """A set of ops opened into groups: the whole model, or one of its groups."""

    title: str
    grouping: Grouping
    edges: GroupEdges


@dataclass(frozen=True, eq=False)
class Scene:
    """All data for painting, by group and by edge.

    Attributes
    ----------
    rects : list of QRectF
    paths : list of QPainterPath, one for each edge
    edge_width : float array, shape (n_edges,)
    crossing : bool array, shape (n_edges,)
    quiet, long : bool array, shape (n_edges,)
        Edges shown only if one of their ends is selected or hovered; edges that pass other
        cards and are painted faintly.
    """

    level: GraphLevel
    arrangement: Arrangement
    facts: Facts
    looks: list[Look]
    rects: list[QRectF]
    paths: list[QPainterPath]
    edge_width: FloatArray
    crossing: BoolArray
    quiet: BoolArray
    long: BoolArray

    @property
    def n(self) -> int:
        return len(self.rects)

    @property
    def bounds(self) -> QRectF:
        left, top, right, bottom = self.arrangement.bounds
        return QRectF(left, top, right - left, bottom - top)

    def card_at(self, point: QPointF) -> int | None:
        """Return the group whose card is at a point."""
        return next((g for g, rect in enumerate(self.rects) if rect.contains(point)), None)

    def cards_in(self, area: QRectF) -> list[int]:
        """Return the groups whose cards touch an area."""
        return [g for g, rect in enumerate(self.rects) if rect.intersects(area)]

    def neighbour(self, group: int, direction: QPointF) -> int | None:
        """Return the nearest card in a direction; cards straight ahead count as nearer."""
        here = self.rects[group].center()
        ranked = []
        for other, rect in enumerate(self.rects):
            step = rect.center() - here
            ahead = QPointF.dotProduct(step, direction)
            sideways = abs(step.x() * direction.y() + step.y() * direction.x())
            if ahead > 1 and other != group:
                ranked.append((ahead + 3 * sideways, other))
        return min(ranked)[1] if ranked else None

    def ops(self, groups: Iterable[int]) -> list[int]:
        """Return all ops of some groups."""
        return [op for group in groups for op in self.level.grouping.ops(group).tolist()]


def card_rects(arrangement: Arrangement) -> list[QRectF]:
    """Return the card of each group."""
    places = (arrangement.x.tolist(), arrangement.y.tolist(), arrangement.width.tolist())
    return [QRectF(x, y, width, CARD_H) for x, y, width in zip(*places, strict=True)]


def edge_widths(edges: GroupEdges) -> FloatArray:
    """Compute widths in pixels, which grow with the logarithm of the bytes."""
    size = np.log2(1.0 + edges.bytes)
    spread = size.max(initial=0.0) - (low := size.min(initial=np.inf))
    part = (size - low) / spread if spread > 0 else np.full(len(size), 0.3)
    return _WIDTHS[0] + (_WIDTHS[1] - _WIDTHS[0]) * part**2


def quiet_edges(arrangement: Arrangement, edges: GroupEdges) -> BoolArray:
    """Find the edges to leave out for a calm picture: small ones and those of hubs."""
    n = len(arrangement.x)
    fan = np.bincount(edges.source, minlength=n), np.bincount(edges.target, minlength=n)
    hub = (fan[0][edges.source] > _HUB) | (fan[1][edges.target] > _HUB)
    small = edges.bytes < _SMALLEST_SHARE * edges.bytes.max(initial=0)
    neighbours = _are_neighbours(arrangement, edges)
    shown = np.flatnonzero(~(hub | small) & ~neighbours)
    largest = shown[np.argsort(-edges.bytes[shown], kind="stable")][: int(EDGES_PER_CARD * n)]
    quiet = ~neighbours
    quiet[largest] = False
    return quiet


def _are_neighbours(arrangement: Arrangement, edges: GroupEdges) -> BoolArray:
    """Find the edges to the next card in the same line."""
    x, y, width = arrangement.x, arrangement.y, arrangement.width
    gap = np.abs(x[edges.target] - x[edges.source])
    return (y[edges.source] == y[edges.target]) & (gap <= width[edges.source] + 2 * GAP)


def _are_long(arrangement: Arrangement, edges: GroupEdges) -> BoolArray:
    """Find the edges that go beyond the next line, or far along one."""
    dx = np.abs(arrangement.x[edges.target] - arrangement.x[edges.source])
    dy = np.abs(arrangement.y[edges.target] - arrangement.y[edges.source])
    return (dy > 2.4 * CARD_H) | (dx > 4 * CARD_W)


def edge_path(start: QRectF, end: QRectF) -> QPainterPath:
    """Draw a calm line between two cards: straight for neighbours, else curved."""
    if abs(start.top() - end.top()) < CARD_H:
        return _sideways(start, end)
    down = end.top() > start.top()
    a = QPointF(start.center().x(), start.bottom() if down else start.top())
    b = QPointF(end.center().x(), end.top() if down else end.bottom())
    bend = QPointF(0, (b.y() - a.y()) / 2)
    return _curve(a, a + bend, b - bend, b)


def _sideways(start: QRectF, end: QRectF) -> QPainterPath:
    """Connect two cards in one line, passing below any cards between them."""
    right = end.left() > start.left()
    a = QPointF(start.right() if right else start.left(), start.center().y())
    b = QPointF(end.left() if right else end.right(), end.center().y())
    if abs(b.x() - a.x()) <= start.width():
        return _curve(a, a, b, b)
    a, b = QPointF(start.center().x(), start.bottom()), QPointF(end.center().x(), end.bottom())
    bow = QPointF(0, min(0.45 * CARD_H, 12 + 0.05 * abs(b.x() - a.x())))
    return _curve(a, a + bow, b + bow, b)


def _curve(a: QPointF, b: QPointF, c: QPointF, d: QPointF) -> QPainterPath:
    path = QPainterPath(a)
    path.cubicTo(b, c, d)
    return path


def make_scene(
    level: GraphLevel,
    arrangement: Arrangement,
    facts: Facts,
    looks: Callable[[Facts], list[Look]],
    crossing: BoolArray,
) -> Scene:
    """Assemble the parts of a picture."""
    rects = card_rects(arrangement)
    ends = zip(level.edges.source.tolist(), level.edges.target.tolist(), strict=True)
    return Scene(
        level=level,
        arrangement=arrangement,
        facts=facts,
        looks=looks(facts),
        rects=rects,
        paths=[edge_path(rects[a], rects[b]) for a, b in ends],
        edge_width=edge_widths(level.edges),
        crossing=crossing,
        quiet=quiet_edges(arrangement, level.edges),
        long=_are_long(arrangement, level.edges),
    )


def touching(edges: GroupEdges, groups: IntArray) -> BoolArray:
    """Find the edges with an end in some groups."""
    return np.isin(edges.source, groups) | np.isin(edges.target, groups)
