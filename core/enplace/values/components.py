"""The connected components of a graph."""

from __future__ import annotations

import numpy as np

from enplace.values.arrays import IntArray


def components(n: int, source: IntArray, target: IntArray) -> IntArray:
    """Number the component of each of ``n`` nodes, by its first node; edges have no direction.

    Each round hands the least number that a component has met to its root, and leads each node to
    its root, so a chain takes few rounds. scipy has the same function, but importing it takes
    longer than placing a small model.
    """
    root = np.arange(n)
    while True:
        a, b = root[source], root[target]
        apart = a != b
        if not apart.any():
            break
        source, target, a, b = source[apart], target[apart], a[apart], b[apart]
        np.minimum.at(root, np.maximum(a, b), np.minimum(a, b))
        while (further := root[root]).tobytes() != root.tobytes():
            root = further
    number: IntArray = np.unique(root, return_inverse=True)[1]
    return number


def strong_components(n: int, source: IntArray, target: IntArray) -> IntArray:
    """Number the strongly connected component of each of ``n`` nodes."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(source)), (source, target)), shape=(n, n))
    number: IntArray = connected_components(graph, connection="strong")[1].astype(np.int64)
    return number
