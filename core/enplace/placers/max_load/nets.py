"""Nets: what the transfers of any set of ops cost, in sums that are quick to keep up to date.

The tensors between nodes cost a set of nodes S in several ways: S sends a tensor out if it has the
maker but not all readers; it brings it in if it has a reader but not the maker. With A, the maker
and all readers, that is ``[maker in S] - [A inside S]`` and ``[S touches A] - [maker in S]``. So
each channel of the load is a sum over the nodes of S, plus one over the nets that S touches, less
one over the nets inside S. If all transfers count alike, the first sum is 0, and what is left is
the cost of the nets that S cuts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from enplace.machine.loads import BACKWARD, FORWARD, IN, OUT, backward_ops, send_us
from enplace.values.load_rule import USUAL, LoadRule
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Nets:
    """The nets between nodes, and what they cost in each channel of the load.

    A channel is a resource in a pass: number ``pass * rule.n_resources + resource``.

    Attributes
    ----------
    ptr, node : int arrays
        Nodes of a net: ``node[ptr[i] : ptr[i + 1]]``.
    touched_us, inside_us : float arrays, shape (n_prices, n_nets, n_channels)
        What a set that has some of the nodes pays, and what one that has them all saves.
    own_us : float array, shape (n_prices, n_nodes, n_channels)
        What a set pays for having a node.
    """

    ptr: IntArray
    node: IntArray
    touched_us: FloatArray
    inside_us: FloatArray
    own_us: FloatArray

    @property
    def n_nets(self) -> int:
        return len(self.ptr) - 1


def nets_of(problem: Problem, label: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
    """Nets between labels of ops if all transfers count alike.

    Returns
    -------
    ptr, label : int arrays
    cost_us : float array, shape (n_nets, n_accelerators)
    """
    nets = rule_nets(problem, label, send_us(problem)[:, problem.cluster.gpus], USUAL)
    return nets.ptr, nets.node, np.ascontiguousarray(nets.touched_us[:, :, 0].T)


def prices_us(problem: Problem) -> tuple[FloatArray, IntArray]:
    """What tensors cost accelerators that send or receive them, and which of that a device pays.

    Returns
    -------
    float array, shape (n_tensors, n_prices)
        One price if the links of all accelerators are alike, or else one for each.
    int array, shape (n_devices,)
        -1 for CPUs, which pay nothing.
    """
    gpus = problem.cluster.gpus
    price = np.full(problem.cluster.n_devices, -1, dtype=np.int64)
    cost_us = send_us(problem)[:, gpus]
    one = (cost_us == cost_us[:, :1]).all()
    price[gpus] = 0 if one else np.arange(len(gpus))
    return (cost_us[:, :1] if one else cost_us), price


def rule_nets(problem: Problem, label: IntArray, cost_us: FloatArray, rule: LoadRule) -> Nets:
    """Nets between labels of ops.

    Parameters
    ----------
    label : int array, shape (n_ops,)
        Node of each op.
    cost_us : float array, shape (n_tensors, n_prices)
    """
    profile = problem.profile
    shape = cost_us.shape[1], rule.n_passes * rule.n_resources
    touched: dict[tuple[int, ...], FloatArray] = defaultdict(lambda: np.zeros(shape))
    inside: dict[tuple[int, ...], FloatArray] = defaultdict(lambda: np.zeros(shape))
    own = np.zeros((int(label.max()) + 1, *shape))
    backward = backward_ops(problem)

    def channel(of: int, part: int) -> int:
        return rule.pass_number(of) * rule.n_resources + rule.resource(part)

    def touch(ends: set[int], at: int, us: FloatArray) -> None:
        if len(ends) == 1:
            own[next(iter(ends)), :, at] += us
        else:
            touched[tuple(sorted(ends))][:, at] += us

    for tensor in np.flatnonzero((cost_us > 0).any(axis=1)).tolist():
        readers = profile.edge_op[profile.edge_ptr[tensor] : profile.edge_ptr[tensor + 1]]
        op, us = profile.tensor_op[tensor], cost_us[tensor]
        maker = int(label[op])
        ends = {maker, *label[readers].tolist()}
        if len(ends) == 1:
            continue
        out = channel(int(backward[op]), OUT)
        inside[tuple(sorted(ends))][:, out] += us
        if rule.n_passes == 1:
            into = channel(FORWARD, IN)
            touch(ends, into, us)
            if into != out:
                own[maker, :, into] -= us
                own[maker, :, out] += us
            continue
        # Brought in for the forward ops, if there are any among the readers.
        forward = {maker, *label[readers[~backward[readers]]].tolist()}
        touch(forward, channel(FORWARD, IN), us)
        touch(ends, channel(BACKWARD, IN), us)
        touch(forward, channel(BACKWARD, IN), -us)
        own[maker, :, channel(FORWARD, IN)] -= us
        own[maker, :, out] += us
    keys = list(dict.fromkeys([*touched, *inside]))
    sizes = np.array([len(key) for key in keys], dtype=np.int64)
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    flat = np.array([node for key in keys for node in key], dtype=np.int64)

    def rows(costs: dict[tuple[int, ...], FloatArray]) -> FloatArray:
        found = np.array([costs.get(key, np.zeros(shape)) for key in keys]).reshape(-1, *shape)
        return by_price(found)

    def by_price(us: FloatArray) -> FloatArray:
        return np.ascontiguousarray(us.transpose(1, 0, 2))

    return Nets(ptr, flat, rows(touched), rows(inside), by_price(own))
