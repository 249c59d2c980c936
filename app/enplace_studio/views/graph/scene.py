"""The picture of one level of the graph: cards, ports and edges in their places."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QPainterPath

from enplace.names.group_facts import GroupEdges
from enplace.pictures.graph_curves import edge_curves, edge_widths, long_edges, quiet_edges
from enplace.pictures.graph_layout import Arrangement
from enplace.values.arrays import BoolArray
from enplace.values.profile import FloatArray, IntArray
from enplace_studio.views.graph.colours import Look
from enplace_studio.views.graph.graph_facts import Facts
from enplace_studio.views.graph.level import GraphLevel


@dataclass(frozen=True, eq=False)
class Scene:
    """All data for painting, by node and by edge.

    Attributes
    ----------
    rects : list of QRectF
        The cards of the groups, then the ports.
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
        """Number of cards; the nodes after them are ports."""
        return self.level.grouping.n_groups

    @property
    def bounds(self) -> QRectF:
        left, top, right, bottom = self.arrangement.bounds
        return QRectF(left, top, right - left, bottom - top)

    def node_at(self, point: QPointF) -> int | None:
        """Return the node at a point."""
        return next((node for node, rect in enumerate(self.rects) if rect.contains(point)), None)

    def nodes_in(self, area: QRectF) -> list[int]:
        """Return the nodes that touch an area."""
        return [node for node, rect in enumerate(self.rects) if rect.intersects(area)]

    def cards_in(self, area: QRectF) -> list[int]:
        """Return the groups whose cards touch an area."""
        return [node for node in self.nodes_in(area) if node < self.n]

    def neighbour(self, node: int, direction: QPointF) -> int | None:
        """Return the nearest node in a direction; those straight ahead count as nearer."""
        here = self.rects[node].center()
        ranked = []
        for other, rect in enumerate(self.rects):
            step = rect.center() - here
            ahead = QPointF.dotProduct(step, direction)
            sideways = abs(step.x() * direction.y() + step.y() * direction.x())
            if ahead > 1 and other != node:
                ranked.append((ahead + 3 * sideways, other))
        return min(ranked)[1] if ranked else None

    def ops(self, nodes: Iterable[int]) -> list[int]:
        """Return all ops of some nodes."""
        return [op for node in nodes for op in self.level.ops(node).tolist()]


def card_rects(arrangement: Arrangement) -> list[QRectF]:
    """Return the place of each node."""
    a = arrangement
    places = zip(*(each.tolist() for each in (a.x, a.y, a.width, a.height)), strict=True)
    return [QRectF(*place) for place in places]


def _path(curve: FloatArray) -> QPainterPath:
    start, *rest = (QPointF(*point) for point in curve.tolist())
    path = QPainterPath(start)
    for part in range(0, len(rest), 3):
        path.cubicTo(*rest[part : part + 3])
    return path


@lru_cache(maxsize=2)  # an edit does not change them
def _paths(arrangement: Arrangement, edges: GroupEdges) -> list[QPainterPath]:
    return [_path(curve) for curve in edge_curves(arrangement, edges)]


def _quiet(level: GraphLevel, arrangement: Arrangement) -> BoolArray:
    """Find the edges to leave out; ops keep all that have a way around the cards."""
    if level.of_ops and arrangement.routes:
        return np.array([route is None for route in arrangement.routes])
    return quiet_edges(arrangement, level.edges)


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
        paths=_paths(arrangement, level.edges),
        edge_width=edge_widths(level.edges),
        crossing=crossing,
        quiet=_quiet(level, arrangement),
        long=long_edges(arrangement, level.edges),
    )


def touching(edges: GroupEdges, nodes: IntArray) -> BoolArray:
    """Find the edges with an end in some nodes."""
    return np.isin(edges.source, nodes) | np.isin(edges.target, nodes)
