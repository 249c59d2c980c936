"""Hyperedges: the transfer costs of any set of ops, as sums that are quick to update.

A tensor is a hyperedge between the node that makes it and the nodes that read it. It costs a set of
nodes S in two ways: S sends it if it has the maker but not all readers, and S receives it if it has
a reader but not the maker. With A, the maker and all readers, that is
``[maker in S] - [A inside S]`` and ``[S touches A] - [maker in S]``. So each channel of the load is
a sum over the nodes of S, plus one over the hyperedges that S touches, minus one over those inside
S. If all transfers count alike, the first sum is 0, and the rest is the cost of the hyperedges that
S cuts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np

from enplace.machine.host_links import sample_us, send_us
from enplace.machine.op_passes import (
    backward_ops,
    base_in_samples,
    given_by_variables,
    holds_of_samples,
    once_per_step,
)
from enplace.machine.pipelines.loads import BACKWARD, FORWARD, IN, OUT
from enplace.machine.pipelines.memory import added_by_stages, counts_whole_nodes, forward_bytes
from enplace.values.arrays import adjacency, csr_offsets
from enplace.values.load_rule import USUAL, LoadRule
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray, Profile, find_roots

_Ends = tuple[int, ...]

KEPT, RECEIVED, ONE = range(3)
"""What a device holds: of each further sample, and if it recomputes; and with one sample alone,
variables included."""

N_HELD = 3


@dataclass(frozen=True, eq=False)
class Hyperedges:
    """The hyperedges between nodes, and their cost in each channel of the load.

    A channel is a resource in a pass: number ``pass * rule.n_resources + resource``.

    Attributes
    ----------
    ptr, node : int arrays
        Nodes of a hyperedge: ``node[ptr[i] : ptr[i + 1]]``.
    touched_us, inside_us : float arrays, shape (n_prices, n_hyperedges, n_channels)
        Cost for a set that has some of the nodes, and the saving if it has all of them.
    own_us : float array, shape (n_prices, n_nodes, n_channels)
        Cost of a node for a set that contains it.
    """

    ptr: IntArray
    node: IntArray
    touched_us: FloatArray
    inside_us: FloatArray
    own_us: FloatArray

    @property
    def n_hyperedges(self) -> int:
        return len(self.ptr) - 1

    @property
    def of_pin(self) -> IntArray:
        """The hyperedge of each entry of ``node``."""
        return np.repeat(np.arange(self.n_hyperedges), np.diff(self.ptr))

    def among(self, kept: IntArray) -> Hyperedges:
        """Return the hyperedges with only some of their nodes, in a sorted array, renumbered."""
        at = np.isin(self.node, kept)
        return replace(
            self,
            ptr=csr_offsets(self.of_pin[at], self.n_hyperedges),
            node=np.searchsorted(kept, self.node[at]),
            own_us=self.own_us[:, kept],
        )

    def by_node(self, n_nodes: int) -> tuple[IntArray, IntArray]:
        """Return the hyperedges of each node: offsets, shape (n_nodes + 1,), and numbers."""
        return adjacency(self.node, self.of_pin, n_nodes)


def find_cut_costs(problem: Problem, label: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
    """Find the hyperedges between labels of ops if all transfers count alike.

    Returns
    -------
    ptr, label : int arrays
    cost_us : float array, shape (n_hyperedges, n_accelerators)
        Cost for an accelerator that has some of the labels but not all.
    """
    cost_us = send_us(problem)[:, problem.cluster.gpus]
    found = build_hyperedges(problem, label, cost_us, USUAL)
    return found.ptr, found.node, np.ascontiguousarray(found.touched_us[:, :, 0].T)


def find_held(problem: Problem, label: IntArray, rule: LoadRule) -> Hyperedges:
    """Find the bytes that a set holds, by channels: :data:`KEPT`, :data:`RECEIVED`, :data:`ONE`.

    As in :mod:`enplace.machine.pipelines.memory`: a tensor of the forward pass stays for the
    backward pass where a backward op reads it and a forward op makes or reads it, wherever it was
    made. With A, the maker and the forward readers, and B, the backward readers, those are
    ``[S touches A] + [S touches B] - [S touches A or B]``. A tensor that is held until a backward
    op counts as read by one where it is made. The content of a variable is there all the time, and
    a sum of gradients where they are made. What lies in the memory of another tensor counts as
    that. What only one pass needs is not counted here: it depends on the order of the ops, and is
    allowed for in :func:`~enplace.placers.max_load.memory.passing.find_passing`. All are 0 if the
    rule counts one sample only, by the sizes of nodes.
    """
    profile, backward = problem.profile, backward_ops(problem)
    sums = _Sums(rule, (1, N_HELD), int(label.max()) + 1)
    if not rule.in_flight:
        return sums.hyperedges()
    np.add.at(sums.own_us[:, 0, ONE], label, profile.persistent_bytes)
    apart = np.ones(N_HELD)
    if counts_whole_nodes(profile):
        np.add.at(sums.own_us[:, 0, KEPT], label, forward_bytes(problem))
        apart = np.arange(N_HELD) == RECEIVED
    once, weights = once_per_step(profile), given_by_variables(profile)
    added = added_by_stages(problem)
    kept = np.zeros(profile.n_tensors, dtype=bool)
    holds = holds_of_samples(profile)
    # What lies in the memory of another tensor counts as read with it.
    root = find_roots(base_in_samples(profile))
    kept[root[profile.hold_tensor[holds[backward[profile.hold_op[holds]]]]]] = True
    ptr, reader = adjacency(root[profile.edge_tensor], profile.edge_op, profile.n_tensors)
    has_own = (profile.tensor_bytes > 0) & (root == np.arange(profile.n_tensors))
    for tensor in np.flatnonzero(has_own).tolist():
        readers = reader[ptr[tensor] : ptr[tensor + 1]]
        op = profile.tensor_op[tensor]
        maker, back = {int(label[op])}, set(label[readers[backward[readers]]].tolist())
        ahead = maker | set(label[readers[~backward[readers]]].tolist())
        back |= maker if kept[tensor] else set()
        terms = [
            (ahead, (1, 1, 1)),
            (back, (1, 0, 1)),
            (ahead | back, (-1, 0, -1)),
            (maker, (0, -1, 0)),
        ]
        if backward[op] or once[tensor]:
            terms = [(maker, (0, 0, int(added[tensor])))]
        if weights[tensor]:
            own = 0 if profile.held_bytes[tensor] else -1
            terms = [(ahead | back, (0, 0, 1)), (maker, (0, 0, own))]
        for ends, times in terms:
            n_bytes = profile.tensor_bytes[tensor] * apart * times
            if ends and n_bytes.any():
                sums.touch(ends, slice(None), n_bytes)
    return sums.hyperedges()


def prices_us(problem: Problem) -> tuple[FloatArray, IntArray]:
    """Find the price of each tensor for an accelerator that sends or receives it.

    Returns
    -------
    float array, shape (n_tensors, n_prices)
        One price if the links of all accelerators are alike, otherwise one for each accelerator.
    int array, shape (n_devices,)
        The price that a device pays; -1 for CPUs, which pay nothing.
    """
    gpus = problem.cluster.gpus
    price = np.full(problem.cluster.n_devices, -1, dtype=np.int64)
    cost_us = sample_us(problem)[:, gpus]
    one = (cost_us == cost_us[:, :1]).all()
    price[gpus] = 0 if one else np.arange(len(gpus))
    return (cost_us[:, :1] if one else cost_us), price


def build_hyperedges(
    problem: Problem, label: IntArray, cost_us: FloatArray, rule: LoadRule
) -> Hyperedges:
    """Build the hyperedges between labels of ops.

    Parameters
    ----------
    label : int array, shape (n_ops,)
        Node of each op.
    cost_us : float array, shape (n_tensors, n_prices)
    """
    backward = backward_ops(problem)
    n_prices, n_nodes = cost_us.shape[1], int(label.max()) + 1
    sums = _Sums(rule, (n_prices, rule.n_passes * rule.n_resources), n_nodes)
    for tensor in np.flatnonzero((cost_us > 0).any(axis=1)).tolist():
        _add_tensor(sums, problem.profile, label, backward, tensor, cost_us[tensor])
    return sums.hyperedges()


@dataclass(eq=False)
class _Sums:
    """Sums of costs: of hyperedges, by their sorted ends, and of single nodes."""

    rule: LoadRule
    shape: tuple[int, int]
    n_nodes: int
    touched_us: dict[_Ends, FloatArray] = field(init=False)
    inside_us: dict[_Ends, FloatArray] = field(init=False)
    own_us: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.touched_us = defaultdict(lambda: np.zeros(self.shape))
        self.inside_us = defaultdict(lambda: np.zeros(self.shape))
        self.own_us = np.zeros((self.n_nodes, *self.shape))

    def channel(self, of: int, part: int) -> int:
        return self.rule.pass_number(of) * self.rule.n_resources + self.rule.resource(part)

    def touch(self, ends: set[int], channel: int | slice, us: FloatArray) -> None:
        """Charge sets that contain some of the ends."""
        if len(ends) == 1:
            self.own_us[next(iter(ends)), :, channel] += us
        else:
            self.touched_us[tuple(sorted(ends))][:, channel] += us

    def hyperedges(self) -> Hyperedges:
        keys = list(dict.fromkeys([*self.touched_us, *self.inside_us]))
        owner = np.repeat(np.arange(len(keys)), np.array([len(key) for key in keys], dtype=int))
        ptr = csr_offsets(owner, len(keys))
        flat = np.array([node for key in keys for node in key], dtype=np.int64)
        touched, inside = (
            np.array([us.get(key, np.zeros(self.shape)) for key in keys]).reshape(-1, *self.shape)
            for us in (self.touched_us, self.inside_us)
        )
        by_price = (
            np.ascontiguousarray(us.transpose(1, 0, 2)) for us in (touched, inside, self.own_us)
        )
        return Hyperedges(ptr, flat, *by_price)


def _add_tensor(
    sums: _Sums, profile: Profile, label: IntArray, backward: BoolArray, tensor: int, us: FloatArray
) -> None:
    """Add the costs of a tensor for its sender and its receivers."""
    readers = profile.edge_op[profile.edge_ptr[tensor] : profile.edge_ptr[tensor + 1]]
    op = profile.tensor_op[tensor]
    maker = int(label[op])
    ends = {maker, *label[readers].tolist()}
    if len(ends) == 1:
        return
    out = sums.channel(int(backward[op]), OUT)
    sums.inside_us[tuple(sorted(ends))][:, out] += us
    into = sums.channel(FORWARD, IN)
    if sums.rule.n_passes == 1:
        sums.touch(ends, into, us)
        if into != out:
            sums.own_us[maker, :, into] -= us
            sums.own_us[maker, :, out] += us
        return
    # Received for the forward ops, if any of the readers are forward ops.
    forward = {maker, *label[readers[~backward[readers]]].tolist()}
    sums.touch(forward, into, us)
    sums.touch(ends, sums.channel(BACKWARD, IN), us)
    sums.touch(forward, sums.channel(BACKWARD, IN), -us)
    sums.own_us[maker, :, into] -= us
    sums.own_us[maker, :, out] += us
