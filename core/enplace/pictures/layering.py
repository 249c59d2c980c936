"""Lays out a graph in layers, after Sugiyama 1981 and Gansner et al. 1993.

The layers of the boxes are a linear program: edges are short in sum. Sweeps by barycentres and
swaps of neighbours then order each layer with few crossings. Another linear program finds the
positions: edges are upright. At last, edges are pulled taut around the boxes in their way.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from enplace.linear import ModelBuilder, give_to_highs
from enplace.values.components import components
from enplace.values.profile import FloatArray, IntArray

Layers = list[list[int]]

_FLAT = 0.01
"""Weight of the height of the picture beside the heights of all edges."""

_SWEEPS, _PATIENCE = 24, 3
"""Most sweeps, and those without a better order before they end."""

_SWAP_ROUNDS = 8
_PULLS, _MOST_PULL = 60, 400.0
"""Rounds in which long edges are pulled taut; how far that moves a bend with no box near it."""


def lay_out(
    edges: IntArray, sizes: FloatArray, side: IntArray, gap: tuple[float, float]
) -> tuple[FloatArray, list[FloatArray]]:
    """Return the centres of the boxes, shape (n, 2), and the curves of each edge; y grows down.

    The points of an edge are a start, then two control points and an end for each cubic curve.

    Parameters
    ----------
    edges : int array, shape (n_edges, 2)
        They point downwards, but for those against the order of the boxes.
    sizes : float array, shape (n, 2)
    side : int array, shape (n,)
        −1 for boxes above all others, 1 for boxes below them.
    gap : tuple of float
        Least distance of boxes in a layer, and of layers.
    """
    n = len(sizes)
    order = np.lexsort((np.arange(n), side)).argsort()
    upwards = order[edges[:, 0]] > order[edges[:, 1]]
    downwards = np.where(upwards[:, None], edges[:, ::-1], edges)
    rank = find_ranks(downwards, side)
    paths = Paths(downwards, rank)
    layers = order_layers(paths)
    width = np.concatenate([sizes[:, 0], np.zeros(paths.n_bends)])
    x = find_positions(paths, layers, width, gap[0])
    high = np.zeros(len(layers))
    np.maximum.at(high, rank, sizes[:, 1])
    y = (np.cumsum(high + gap[1]) - gap[1] - high / 2)[paths.rank]
    half = np.concatenate([sizes[:, 1], high[paths.rank[n:]]]) / 2
    routes = _pull_taut(paths, x, y, half, _find_room(layers, x, width, gap[0]))
    routes = [route[::-1] if up else route for route, up in zip(routes, upwards, strict=True)]
    return np.column_stack([x, y])[:n], routes


def find_ranks(edges: IntArray, side: IntArray) -> IntArray:
    """Find the layer of each box so that the edges, all downwards, are short in sum."""
    n = len(side)
    top, bottom = n, n + 1  # the layers of all boxes at the top, and of all at the bottom
    at = np.where(side < 0, top, np.where(side > 0, bottom, np.arange(n)))
    cards = np.flatnonzero(side == 0)
    high = np.concatenate([at[edges[:, 0]], np.full(len(cards), top), cards, [top]])
    low = np.concatenate([at[edges[:, 1]], cards, np.full(len(cards), bottom), [bottom]])
    least = np.concatenate([
        np.ones(len(edges)),
        np.full(len(cards), (side < 0).any()),
        np.full(len(cards), (side > 0).any()),
        [0],
    ])  # fmt: skip
    weight = np.concatenate([np.ones(len(edges)), np.zeros(2 * len(cards)), [_FLAT]])
    cost = np.bincount(low, weight, n + 2) - np.bincount(high, weight, n + 2)
    program = ModelBuilder()
    level = program.variables(n + 2, cost=cost)
    program.rows([(1, level[low]), (-1, level[high])], lower=least)
    found = _solve(program)
    rank: IntArray = np.round(found - found[top]).astype(np.int64)[at]
    lone = np.bincount(edges.ravel(), minlength=n) == 0
    _spread(rank, np.flatnonzero(lone & (side == 0)), np.flatnonzero(side))
    return rank


def _spread(rank: IntArray, lone: IntArray, ports: IntArray) -> None:
    """Put boxes without edges where there is most room."""
    crowd = np.bincount(np.delete(rank, lone), minlength=rank.max(initial=0) + 1)
    crowd[rank[ports]] += len(rank)
    for box in lone:
        rank[box] = crowd.argmin()
        crowd[rank[box]] += 1


def _solve(program: ModelBuilder) -> FloatArray:
    solver = give_to_highs(program.model())
    solver.run()
    return np.array(solver.getSolution().col_value)


class Paths:
    """The edges, with a bend in every layer that they cross.

    Attributes
    ----------
    rank : int array
        The layer of every node: boxes, then bends.
    nodes : list of list of int
        The nodes of every edge, downwards.
    parts : int array, shape (n_parts, 2)
        Upper and lower end of each part of an edge.
    """

    def __init__(self, edges: IntArray, rank: IntArray) -> None:
        self.n_boxes = len(rank)
        self.nodes: list[list[int]] = []
        bends: list[int] = []
        for source, target in edges.tolist():
            crossed = range(rank[source] + 1, rank[target])
            first = len(rank) + len(bends)
            self.nodes.append([source, *range(first, first + len(crossed)), target])
            bends.extend(crossed)
        self.n_bends = len(bends)
        self.rank = np.concatenate([rank, np.array(bends, dtype=np.int64)])
        parts = [part for nodes in self.nodes for part in pairwise(nodes)]
        self.parts = np.array(parts, dtype=np.int64).reshape(-1, 2)


def order_layers(paths: Paths) -> Layers:
    """Order the nodes of each layer with few crossings; connected ones stay together."""
    high, low = paths.parts.T
    component = components(len(paths.rank), high, low)
    layers: Layers = [[] for _ in range(int(paths.rank.max(initial=0)) + 1)]
    for number in range(int(component.max(initial=-1)) + 1):
        nodes = np.flatnonzero(component == number)
        found = _Order(nodes, paths.rank, paths.parts[component[high] == number]).layers
        for layer, more in zip(layers, found, strict=False):
            layer.extend(more)
    return layers


class _Order:
    """Searches an order of connected nodes with few crossings."""

    def __init__(self, nodes: IntArray, rank: IntArray, parts: IntArray) -> None:
        self._up: dict[int, list[int]] = {node: [] for node in nodes.tolist()}
        self._down: dict[int, list[int]] = {node: [] for node in nodes.tolist()}
        for high, low in parts.tolist():
            self._up[low].append(high)
            self._down[high].append(low)
        self._place: dict[int, int] = {}
        by_rank = nodes[np.argsort(rank[nodes], kind="stable")].tolist()
        starts = [
            self._walk(by_rank, rank, self._down),
            self._walk(by_rank[::-1], rank, self._up),
        ]
        self.layers = min((self._improve(start) for start in starts), key=self._crossings)

    def _walk(self, nodes: list[int], rank: IntArray, onwards: dict[int, list[int]]) -> Layers:
        """Order nodes as a search finds them, depth first."""
        layers: Layers = [[] for _ in range(int(rank[nodes].max()) + 1)]
        waiting, seen = nodes[::-1], set()
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                layers[rank[node]].append(node)
                waiting.extend(reversed(onwards[node]))
        return layers

    def _improve(self, layers: Layers) -> Layers:
        best, fewest, in_vain = layers, self._crossings(layers), 0
        for sweep in range(_SWEEPS):
            if not fewest or in_vain > _PATIENCE:
                break
            layers = [list(layer) for layer in layers]
            for layer in layers[:: -1 if sweep % 2 else 1]:
                self._sort(layer, self._down if sweep % 2 else self._up)
            crossings, in_vain = self._crossings(layers), in_vain + 1
            if crossings < fewest:
                best, fewest, in_vain = layers, crossings, 0
        self._note(best)
        for _ in range(_SWAP_ROUNDS):
            if not sum(self._swap(layer) for layer in best):
                break
        return best

    def _note(self, layers: Layers) -> None:
        for layer in layers:
            self._place.update(zip(layer, range(len(layer)), strict=True))

    def _sort(self, layer: list[int], near: dict[int, list[int]]) -> None:
        """Sort a layer by the mean place of neighbours; nodes without any keep their places."""
        place = self._place
        wanted = {
            node: sum(place[other] for other in near[node]) / len(near[node])
            for node in layer
            if near[node]
        }
        movable = iter(sorted(wanted, key=wanted.__getitem__))
        layer[:] = [next(movable) if node in wanted else node for node in layer]
        self._note([layer])

    def _swap(self, layer: list[int]) -> int:
        """Swap neighbours where this saves crossings; return how many it saves."""
        saved = 0
        for at, right in enumerate(layer[1:]):
            left = layer[at]
            if (gain := self._gain(left, right)) > 0:
                layer[at : at + 2] = right, left
                self._place[left], self._place[right] = at + 1, at
                saved += gain
        return saved

    def _gain(self, left: int, right: int) -> int:
        """Count the crossings that a swap of two neighbours saves."""
        gain = 0
        for near in (self._up, self._down):
            theirs = [self._place[other] for other in near[right]]
            for here in (self._place[other] for other in near[left]):
                gain += sum((there < here) - (there > here) for there in theirs)
        return gain

    def _crossings(self, layers: Layers) -> int:
        self._note(layers)
        total = 0
        for layer in layers:
            ends = [sorted(self._place[low] for low in self._down[node]) for node in layer]
            places = np.array([place for some in ends for place in some], dtype=np.int64)
            total += int(np.triu(places[:, None] > places).sum())
        return total


def find_positions(paths: Paths, layers: Layers, width: FloatArray, gap: float) -> FloatArray:
    """Find x of every node so that the parts of edges are upright, as far as there is room."""
    n, m = len(width), len(paths.parts)
    neighbours = [pair for layer in layers for pair in pairwise(layer)]
    left, right = np.array(neighbours, dtype=np.int64).reshape(-1, 2).T
    program = ModelBuilder()
    x, slant = program.variables(n), program.variables(m, cost=1.0)
    for sign in (1, -1):
        ends = (sign, x[paths.parts[:, 0]]), (-sign, x[paths.parts[:, 1]])
        program.rows([*ends, (-1, slant)], upper=0.0)
    program.rows([(1, x[right]), (-1, x[left])], lower=(width[left] + width[right]) / 2 + gap)
    return _solve(program)[:n]


def _find_room(
    layers: Layers, x: FloatArray, width: FloatArray, gap: float
) -> tuple[FloatArray, FloatArray]:
    """Find how far each bend may go left and right, beside boxes and the bends before these."""
    room = (x - _MOST_PULL, x + _MOST_PULL)
    for layer in layers:
        for most, sign, nodes in ((room[0], 1, layer), (room[1], -1, layer[::-1])):
            edge = None
            for node in nodes:
                if width[node]:
                    edge = x[node] + sign * width[node] / 2
                elif edge is not None:
                    most[node] = edge = edge + sign * gap
    return room


def _pull_taut(
    paths: Paths,
    x: FloatArray,
    y: FloatArray,
    half: FloatArray,
    room: tuple[FloatArray, FloatArray],
) -> list[FloatArray]:
    """Return the curves of the edges, as straight as the boxes in their way allow.

    A bend is two points, at the top and the bottom of its layer.
    """
    nodes: list[int] = []
    ends = [0]
    for path in paths.nodes:
        nodes += [path[0], *np.repeat(path[1:-1], 2).tolist(), path[-1]]
        ends.append(len(nodes))
    at = np.array(nodes, dtype=np.int64)
    px, py = x[at], y[at] + np.where(np.arange(len(at)) % 2, -1, 1) * half[at]
    bends = np.flatnonzero(at >= paths.n_boxes)
    for turn in range(2 * _PULLS):
        some = bends[turn % 2 :: 2]
        share = (py[some] - py[some - 1]) / (py[some + 1] - py[some - 1])
        wanted = px[some - 1] + share * (px[some + 1] - px[some - 1])
        px[some] = np.clip(wanted, room[0][at[some]], room[1][at[some]])
    return [_curves(px[start:end], py[start:end]) for start, end in pairwise(ends)]


def _curves(x: FloatArray, y: FloatArray) -> FloatArray:
    """Join points by cubic curves that stay between their ends, as the points keep off the boxes.

    The slopes are those of Fritsch and Butland 1984.
    """
    step = np.diff(y)
    slope = np.diff(x) / step
    before, after = slope[:-1], slope[1:]
    tangent = np.concatenate([slope[:1], np.zeros(len(before)), slope[-1:]])
    bent = before * after > 0
    weights = (step[:-1] + 2 * step[1:])[bent], (2 * step[:-1] + step[1:])[bent]
    mean = sum(weights) / (weights[0] / before[bent] + weights[1] / after[bent])
    tangent[1:-1][bent] = mean
    points = np.empty((3 * len(step) + 1, 2))
    points[::3] = np.column_stack([x, y])
    points[1::3] = np.column_stack([x[:-1] + tangent[:-1] * step / 3, y[:-1] + step / 3])
    points[2::3] = np.column_stack([x[1:] - tangent[1:] * step / 3, y[1:] - step / 3])
    return points
