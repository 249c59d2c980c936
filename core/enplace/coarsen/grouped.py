"""The graph of groups: ops are contracted, and tensors between two groups are added up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from enplace.values.cluster import Cluster, LinkCost
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class GroupedGraph:
    """A graph whose nodes are groups of ops; it may have cycles if the groups are arbitrary.

    Attributes
    ----------
    group : int array, shape (n_ops,)
        Group of each op.
    time_us : float array, shape (n_groups, n_devices)
        Compute time of a group, all its ops one after another; inf if none of them may run there.
        Ops that cannot run on a device do not count there, because they will run elsewhere.
    memory_bytes : int array, shape (n_groups,)
        Variables and outputs of a group, the measure of size in Celeritas.
    source, target : int array, shape (n_edges,)
        Ends of each edge, sorted by (source, target), each pair once.
    tensors, edge_bytes : int array, shape (n_edges,)
        How many tensors an edge carries, counted once each, and their bytes.
    """

    group: IntArray
    time_us: FloatArray
    memory_bytes: IntArray
    source: IntArray
    target: IntArray
    tensors: IntArray
    edge_bytes: IntArray

    @property
    def n_groups(self) -> int:
        return len(self.memory_bytes)

    def edge_us(self, link: LinkCost) -> FloatArray:
        """Return the time to send each edge's tensors over one link; shape (n_edges,)."""
        return link.transfer_us(self.edge_bytes, self.tensors)


def group_graph(problem: Problem, group: IntArray) -> GroupedGraph:
    """Contract the ops of each group; ``group`` numbers them from 0 without gaps."""
    profile = problem.profile
    n = int(group.max()) + 1
    time_us, runs = np.zeros((n, problem.cluster.n_devices)), np.isfinite(problem.time_us)
    np.add.at(time_us, group, np.where(runs, problem.time_us, 0.0))
    anywhere = np.zeros(time_us.shape, dtype=bool)
    np.logical_or.at(anywhere, group, runs)
    memory = np.zeros(n, dtype=np.int64)
    np.add.at(memory, group, op_memory_bytes(problem))

    source, target = group[profile.edge_source], group[profile.edge_op]
    # A tensor is sent once to a group, however many of its ops consume it.
    key = (profile.edge_tensor * n + target)[source != target]
    tensor, target = np.divmod(np.unique(key), n)
    pair, edge = np.unique(group[profile.tensor_op[tensor]] * n + target, return_inverse=True)
    size = np.zeros(len(pair), dtype=np.int64)
    np.add.at(size, edge, profile.tensor_bytes[tensor])
    return GroupedGraph(
        group=group,
        time_us=np.where(anywhere, time_us, np.inf),
        memory_bytes=memory,
        source=pair // n,
        target=pair % n,
        tensors=np.bincount(edge, minlength=len(pair)).astype(np.int64),
        edge_bytes=size,
    )


def op_memory_bytes(problem: Problem) -> IntArray:
    """Sum the variables and outputs of each op, the papers' rough estimate; shape (n_ops,).

    It assumes that all are in memory at once, as Tarnawski et al. 2020, Celeritas and Baechi do.
    """
    profile = problem.profile
    total = profile.persistent_bytes.copy()
    np.add.at(total, profile.tensor_op, profile.held_bytes)
    return total


def mean_link(cluster: Cluster) -> LinkCost:
    """Return the average cost of a link over the ordered pairs of GPUs.

    With fewer than two GPUs, the average over all devices; zero on a cluster of one device.
    """
    chosen = np.array(cluster.gpus if len(cluster.gpus) > 1 else range(cluster.n_devices))
    pairs = chosen[:, None] != chosen
    if not pairs.any():
        return LinkCost(0.0, 0.0)
    at = np.ix_(chosen, chosen)
    matrices = cluster.b0_us, cluster.b1_us_per_byte
    return LinkCost(*(float(matrix[at][pairs].mean()) for matrix in matrices))
