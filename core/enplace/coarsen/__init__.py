"""Coarsening: find ops that belong together, and make the smaller graph."""

from enplace.coarsen.batches import merge_batches
from enplace.coarsen.chains import merge_chains
from enplace.coarsen.contract import contract, expand
from enplace.coarsen.followers import find_leaders
from enplace.coarsen.fusion import cpd_topo, fuse
from enplace.coarsen.grouped import GroupedGraph, group_graph, mean_link
from enplace.coarsen.heavy_edges import tie_heavy_edges

__all__ = [
    "GroupedGraph",
    "contract",
    "cpd_topo",
    "expand",
    "find_leaders",
    "fuse",
    "group_graph",
    "mean_link",
    "merge_batches",
    "merge_chains",
    "tie_heavy_edges",
]
