"""Program that lays out a graph with Graphviz: JSON in, the middles of the nodes out.

It imports nothing of Enplace, so that it starts quickly.
"""

import json
import sys
from typing import Any

from pygraphviz import AGraph

POINTS_PER_INCH = 72


def lay_out(task: dict[str, Any]) -> list[list[float]]:
    """Middles of ``n`` boxes of size ``card`` that are ``gap`` apart; y grows upwards."""
    (card_w, card_h), (gap_x, gap_y) = task["card"], task["gap"]
    graph = AGraph(directed=True, strict=True)
    graph.graph_attr.update(nodesep=gap_x / POINTS_PER_INCH, ranksep=gap_y / POINTS_PER_INCH)
    graph.node_attr.update(shape="box", fixedsize="true", label="")
    graph.node_attr.update(width=card_w / POINTS_PER_INCH, height=card_h / POINTS_PER_INCH)
    graph.add_nodes_from(range(task["n"]))
    graph.add_edges_from(task["edges"])
    graph.layout("dot")
    places = (graph.get_node(node).attr["pos"] for node in range(task["n"]))
    return [[float(value) for value in place.split(",")] for place in places]


if __name__ == "__main__":
    json.dump(lay_out(json.load(sys.stdin)), sys.stdout)
