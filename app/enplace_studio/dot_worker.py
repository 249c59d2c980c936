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


def serve(connection: Connection) -> Message:
    """Lay out the received graph, whose ``edges`` have shape (n_edges, 2)."""
    job = connection.receive()
    return Message(DONE, {}, {"middles": lay_out(edges=job.arrays["edges"], **job.details)})


def lay_out(
    n: int, edges: np.ndarray, card: tuple[float, float], gap: tuple[float, float]
) -> NDArray[np.float64]:
    """Return the centres of ``n`` boxes of one size, shape (n, 2); y grows upwards."""
    (card_w, card_h), (gap_x, gap_y) = card, gap
    graph = AGraph(directed=True, strict=True)
    graph.graph_attr.update(nodesep=gap_x / POINTS_PER_INCH, ranksep=gap_y / POINTS_PER_INCH)
    graph.node_attr.update(shape="box", fixedsize="true", label="")
    graph.node_attr.update(width=card_w / POINTS_PER_INCH, height=card_h / POINTS_PER_INCH)
    graph.add_nodes_from(range(n))
    graph.add_edges_from(edges.tolist())
    graph.layout("dot")
    places = (graph.get_node(node).attr["pos"] for node in range(n))
    return np.array([[float(value) for value in place.split(",")] for place in places])
