"""The handler that lays out a graph with Graphviz.

It is outside the graph pane's folder, whose code imports Qt, so that it starts quickly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pygraphviz import AGraph

from enplace.processes.main import Connection
from enplace.processes.wire import DONE, Message

POINTS_PER_INCH = 72
_EFFORT = "2"
"""Rounds of dot's two simplex searches per node; without a bound, 243 ops took it 40 s."""

_RANKS = {-1: "source", 1: "sink"}


def serve(connection: Connection) -> Message:
    """Lay out the received graph.

    Its arrays are ``edges``, shape (n_edges, 2); ``sizes``, shape (n, 2); and ``side``, shape (n,):
    −1 for boxes above all others, 1 for boxes below them.
    """
    job = connection.receive()
    middles, routes = lay_out(gap=job.details["gap"], **job.arrays)
    ends = np.cumsum([len(route) for route in routes], dtype=np.int64)
    points = np.concatenate([np.zeros((0, 2)), *routes])
    return Message(DONE, {}, {"middles": middles, "points": points, "ends": ends})


def lay_out(
    edges: NDArray[np.int64],
    sizes: NDArray[np.float64],
    side: NDArray[np.int64],
    gap: tuple[float, float],
) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """Return the centres of the boxes, shape (n, 2), and the curves of each edge; y grows upwards.

    The points of an edge are a start, then two control points and an end for each cubic curve.
    """
    graph = AGraph(directed=True, strict=True)
    graph.graph_attr.update(nodesep=gap[0] / POINTS_PER_INCH, ranksep=gap[1] / POINTS_PER_INCH)
    graph.graph_attr.update(nslimit=_EFFORT, nslimit1=_EFFORT, mclimit="0.5", outputorder="nodes")
    graph.node_attr.update(shape="box", fixedsize="true", label="")
    graph.edge_attr.update(dir="none")
    for box, (width, height) in enumerate((sizes / POINTS_PER_INCH).tolist()):
        graph.add_node(box, width=width, height=height)
    graph.add_edges_from(edges.tolist())
    for one, rank in _RANKS.items():
        if (side == one).any():
            graph.add_subgraph(np.flatnonzero(side == one).tolist(), rank=rank)
    graph.layout("dot")
    middles = [_points(graph.get_node(box).attr["pos"])[0] for box in range(len(sizes))]
    routes = [_points(graph.get_edge(*ends).attr["pos"]) for ends in edges.tolist()]
    return np.array(middles), routes


def _points(pos: str) -> NDArray[np.float64]:
    """Read what Graphviz writes: points with a comma between x and y."""
    return np.array([[float(value) for value in point.split(",")] for point in pos.split()])
