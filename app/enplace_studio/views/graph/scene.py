"""The picture of one level of the graph: cards and edges in their places, ready to paint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QPainterPath

from enplace.names.group_facts import GroupEdges
from enplace.names.groups import Grouping
from enplace.values.arrays import BoolArray
from enplace.values.profile import FloatArray, IntArray
from enplace.writers.graph_curves import edge_curves, edge_widths, long_edges, quiet_edges
from enplace.writers.graph_layout import CARD_H, Arrangement
from enplace_studio.views.graph.colours import Look
from enplace_studio.views.graph.facts import Facts


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


def _path(curve: FloatArray) -> QPainterPath:
    start, *rest = (QPointF(*point) for point in curve.tolist())
    path = QPainterPath(start)
    path.cubicTo(*rest)
    return path


def make_scene(
    level: GraphLevel,
    arrangement: Arrangement,
    facts: Facts,
    looks: Callable[[Facts], list[Look]],
    crossing: BoolArray,
) -> Scene:
    """Assemble the parts of a picture."""
    return Scene(
        level=level,
        arrangement=arrangement,
        facts=facts,
        looks=looks(facts),
        rects=card_rects(arrangement),
        paths=[_path(curve) for curve in edge_curves(arrangement, level.edges)],
        edge_width=edge_widths(level.edges),
        crossing=crossing,
        quiet=quiet_edges(arrangement, level.edges),
        long=long_edges(arrangement, level.edges),
    )


def touching(edges: GroupEdges, groups: IntArray) -> BoolArray:
    """Find the edges with an end in some groups."""
    return np.isin(edges.source, groups) | np.isin(edges.target, groups)
