"""Coarsening: which ops belong together, and the smaller graph that results."""

from enplace.coarsen.followers import find_leaders
from enplace.coarsen.fusion import cpd_topo, fuse
from enplace.coarsen.grouped import GroupedGraph, group_graph, mean_link
from enplace.coarsen.ties import tie_heavy_edges

__all__ = [
    "GroupedGraph",
    "cpd_topo",
    "find_leaders",
    "fuse",
    "group_graph",
    "mean_link",
    "tie_heavy_edges",
]
