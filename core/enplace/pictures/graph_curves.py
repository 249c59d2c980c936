"""The edges of the graph between its cards: which are drawn, how wide, and along which curve."""

from __future__ import annotations

import numpy as np

from enplace.names.group_facts import GroupEdges
from enplace.pictures.graph_layout import CARD_H, CARD_W, GAP, Arrangement
from enplace.values.arrays import BoolArray
from enplace.values.profile import FloatArray

EDGES_PER_CARD = 2.5
_HUB = 7
_SMALLEST_SHARE = 0.004  # share of the largest edge; smaller edges show only at a selected card
_WIDTHS = (0.8, 3.4)

Card = tuple[float, float, float, float]
"""Left edge, top, width and height."""


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
    same_line = y[edges.source] == y[edges.target]
    return np.asarray(same_line & (gap <= width[edges.source] + 2 * GAP))


def long_edges(arrangement: Arrangement, edges: GroupEdges) -> BoolArray:
    """Find the edges that go beyond the next line, or far along one; they are drawn faintly."""
    dx = np.abs(arrangement.x[edges.target] - arrangement.x[edges.source])
    dy = np.abs(arrangement.y[edges.target] - arrangement.y[edges.source])
    return (dy > 2.4 * CARD_H) | (dx > 4 * CARD_W)


def edge_curves(arrangement: Arrangement, edges: GroupEdges) -> list[FloatArray]:
    """Return the way of each edge, or a calm line if it has none: straight for neighbours.

    Returns
    -------
    list of float array, shape (3 * n_curves + 1, 2)
        The points of joined cubic curves, each with two control points before its end.
    """
    a = arrangement
    cards = list(zip(*(each.tolist() for each in (a.x, a.y, a.width, a.height)), strict=True))
    routes = a.routes or (None,) * len(edges.bytes)
    ends = zip(edges.source.tolist(), edges.target.tolist(), routes, strict=True)
    return [
        np.array(_curve(cards[source], cards[target])) if route is None else route
        for source, target, route in ends
    ]


def _curve(start: Card, end: Card) -> list[tuple[float, float]]:
    down = end[1] > start[1]
    if abs(start[1] - end[1]) < (start if down else end)[3]:
        return _sideways(start, end)
    ax, ay = start[0] + start[2] / 2, start[1] + (start[3] if down else 0.0)
    bx, by = end[0] + end[2] / 2, end[1] + (0.0 if down else end[3])
    bend = (by - ay) / 2
    return [(ax, ay), (ax, ay + bend), (bx, by - bend), (bx, by)]


def _sideways(start: Card, end: Card) -> list[tuple[float, float]]:
    """Connect two cards in one line, passing below any cards between them."""
    right = end[0] > start[0]
    a = (start[0] + (start[2] if right else 0.0), start[1] + start[3] / 2)
    b = (end[0] + (0.0 if right else end[2]), end[1] + end[3] / 2)
    if abs(b[0] - a[0]) <= start[2]:
        return [a, a, b, b]
    (ax, ay), (bx, by) = [(x + width / 2, y + high) for x, y, width, high in (start, end)]
    bow = min(0.45 * CARD_H, 12 + 0.05 * abs(bx - ax))
    return [(ax, ay), (ax, ay + bow), (bx, by + bow), (bx, by)]
