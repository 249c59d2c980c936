"""Placement units and the tensors between them: all that the load of any placement depends on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from enplace.coarsen.grouped import op_memory_bytes
from enplace.machine.loads import backward_ops
from enplace.placers.max_load.nets import Nets, prices_us, rule_nets
from enplace.values.load_rule import USUAL, LoadRule
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Hypergraph:
    """Units, what they cost on each device, and the nets that cost every accelerator they cross.

    Attributes
    ----------
    unit_us : float array, shape (n_units, n_devices, rule.n_passes)
        Compute time of a unit in each pass; inf where it may not be.
    unit_bytes : int array, shape (n_units,)
    capacity_bytes : float array, shape (n_devices,)
        inf for CPUs, whose memory the paper does not limit.
    price : int array, shape (n_devices,)
        Which price of the nets a device pays for tensors that cross its border; -1 for CPUs, which
        pay none.
    nets : Nets
        Between units.
    rule : LoadRule
    """

    unit_us: FloatArray
    unit_bytes: IntArray
    capacity_bytes: FloatArray
    price: IntArray
    nets: Nets
    rule: LoadRule

    @property
    def n_units(self) -> int:
        return len(self.unit_bytes)

    @property
    def n_devices(self) -> int:
        return len(self.price)

    @property
    def paying(self) -> IntArray:
        """Devices that pay, in order."""
        return np.flatnonzero(self.price >= 0)


def hypergraph_of(problem: Problem, rule: LoadRule = USUAL) -> Hypergraph:
    """The hypergraph of a problem; pins and forbidden devices are kept."""
    cluster = problem.cluster
    unit_us = np.zeros((*problem.unit_allowed.shape, rule.n_passes))
    passes = np.minimum(backward_ops(problem), rule.n_passes - 1)
    every = np.arange(cluster.n_devices)
    np.add.at(unit_us, (problem.unit[:, None], every, passes[:, None]), problem.time_us)
    unit_us[~problem.unit_allowed] = np.inf
    unit_bytes = np.zeros(problem.n_units, dtype=np.int64)
    np.add.at(unit_bytes, problem.unit, op_memory_bytes(problem))
    cost_us, price = prices_us(problem)
    capacity = np.where(price >= 0, cluster.capacity_bytes, np.inf)
    nets = rule_nets(problem, problem.unit, cost_us, rule)
    return Hypergraph(unit_us, unit_bytes, capacity, price, nets, rule)


def channels_us(graph: Hypergraph, device: IntArray) -> FloatArray:
    """What each device has to do in each channel; shape (n_devices, n_channels).

    Parameters
    ----------
    device : int array, shape (n_units,)
    """
    nets, rule = graph.nets, graph.rule
    net = np.repeat(np.arange(nets.n_nets), np.diff(nets.ptr))
    count = np.zeros((nets.n_nets, graph.n_devices), dtype=np.int64)
    np.add.at(count, (net, device[nets.node]), 1)
    level = np.zeros((graph.n_devices, rule.n_passes * rule.n_resources))
    for d in graph.paying:
        price, some, all_ = graph.price[d], count[:, d] > 0, count[:, d] == np.diff(nets.ptr)
        level[d] = some @ nets.touched_us[price] - all_ @ nets.inside_us[price]
        level[d] += nets.own_us[price, device == d].sum(axis=0)
    work = np.zeros((graph.n_devices, rule.n_passes))
    np.add.at(work, device, graph.unit_us[np.arange(graph.n_units), device])
    level[:, :: rule.n_resources] += work
    return level


def loads_us(graph: Hypergraph, device: IntArray) -> FloatArray:
    """Load of each device in each pass that counts apart; shape (n_devices, rule.n_passes)."""
    rule, level = graph.rule, channels_us(graph, device)
    loads: FloatArray = level.reshape(-1, rule.n_passes, rule.n_resources).max(axis=2)
    return loads


def time_per_sample_us(graph: Hypergraph, device: IntArray) -> float:
    """The largest load, or the sum of those of the passes that count apart."""
    return float(loads_us(graph, device).max(axis=0).sum())


def held_bytes(graph: Hypergraph, device: IntArray) -> FloatArray:
    """Memory of the units on each device; shape (n_devices,)."""
    held = np.bincount(device, weights=graph.unit_bytes, minlength=graph.n_devices)
    return held.astype(np.float64)
