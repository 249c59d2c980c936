"""Placement units and the tensors between them, on which the load of a placement depends."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from enplace.coarsen.grouped import op_memory_bytes
from enplace.machine.op_passes import backward_ops, work_per_sample_us
from enplace.machine.pipelines.memory import forward_bytes
from enplace.placers.max_load.table.hyperedges import Hyperedges, build_hyperedges, prices_us
from enplace.values.load_rule import USUAL, LoadRule
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Hypergraph:
    """Units, their cost on each device, and the hyperedges, whose cut costs the accelerators time.

    Attributes
    ----------
    unit_us : float array, shape (n_units, n_devices, rule.n_passes)
        Compute time of a unit in each pass; inf where it is not allowed.
    unit_bytes : int array, shape (n_units, n_devices)
        Memory of a unit, with as many samples as a device has in flight.
    capacity_bytes : float array, shape (n_devices,)
    price : int array, shape (n_devices,)
        Index of the price that a device pays for tensors that cross its border; -1 for CPUs, which
        pay nothing.
    hyperedges : Hyperedges
        Hyperedges between units.
    rule : LoadRule
    """

    unit_us: FloatArray
    unit_bytes: IntArray
    capacity_bytes: FloatArray
    price: IntArray
    hyperedges: Hyperedges
    rule: LoadRule

    @property
    def n_units(self) -> int:
        return len(self.unit_bytes)

    @property
    def n_devices(self) -> int:
        return len(self.price)

    @property
    def paying(self) -> IntArray:
        """The devices that pay, in order."""
        return np.flatnonzero(self.price >= 0)


def build_hypergraph(
    problem: Problem, rule: LoadRule = USUAL, op_bytes: IntArray | None = None
) -> Hypergraph:
    """Build the hypergraph of a problem, with its pins and forbidden devices.

    Parameters
    ----------
    op_bytes : int array, shape (n_ops,), optional
        What each op counts towards memory; its variables and outputs by default.
    """
    op_bytes = op_memory_bytes(problem) if op_bytes is None else op_bytes
    cluster = problem.cluster
    unit_us = np.zeros((*problem.unit_allowed.shape, rule.n_passes))
    passes = np.minimum(backward_ops(problem), rule.n_passes - 1)
    every = np.arange(cluster.n_devices)
    work_us = work_per_sample_us(problem, rule.microbatches)
    np.add.at(unit_us, (problem.unit[:, None], every, passes[:, None]), work_us)
    unit_us[~problem.unit_allowed] = np.inf
    unit_bytes = _bytes_of_units(problem, op_bytes, np.ones_like(every))
    cost_us, price = prices_us(problem)
    capacity = cluster.capacity_bytes.astype(np.float64)
    hyperedges = build_hyperedges(problem, problem.unit, cost_us, rule)
    return Hypergraph(unit_us, unit_bytes, capacity, price, hyperedges, rule)


def with_samples(problem: Problem, graph: Hypergraph, samples: IntArray) -> Hypergraph:
    """Count the memory of a number of samples in flight on each device; ``samples`` has n_devices.

    Each further sample adds what forward ops keep for the backward pass.
    """
    further_bytes = _bytes_of_units(problem, forward_bytes(problem), samples - 1)
    return replace(graph, unit_bytes=graph.unit_bytes + further_bytes)


def _bytes_of_units(problem: Problem, op_bytes: IntArray, times: IntArray) -> IntArray:
    """Sum the bytes of each unit's ops, and multiply them for each device."""
    unit_bytes = np.zeros(problem.n_units, dtype=np.int64)
    np.add.at(unit_bytes, problem.unit, op_bytes)
    return unit_bytes[:, None] * times


def count_present(graph: Hypergraph, device: IntArray) -> IntArray:
    """Count the units of each hyperedge on each device; shape (n_hyperedges, n_devices).

    Parameters
    ----------
    device : int array, shape (n_units,)
    """
    hyperedges = graph.hyperedges
    count = np.zeros((hyperedges.n_hyperedges, graph.n_devices), dtype=np.int64)
    np.add.at(count, (hyperedges.of_pin, device[hyperedges.node]), 1)
    return count


def channels_us(graph: Hypergraph, device: IntArray) -> FloatArray:
    """Compute the work of each device in each channel; shape (n_devices, n_channels)."""
    hyperedges, rule = graph.hyperedges, graph.rule
    count, size = count_present(graph, device), np.diff(hyperedges.ptr)
    channel = np.zeros((graph.n_devices, rule.n_passes * rule.n_resources))
    for d in graph.paying:
        price, some, all_ = graph.price[d], count[:, d] > 0, count[:, d] == size
        channel[d] = some @ hyperedges.touched_us[price] - all_ @ hyperedges.inside_us[price]
        channel[d] += hyperedges.own_us[price, device == d].sum(axis=0)
    work = np.zeros((graph.n_devices, rule.n_passes))
    np.add.at(work, device, graph.unit_us[np.arange(graph.n_units), device])
    channel[:, :: rule.n_resources] += work
    return channel


def loads_us(graph: Hypergraph, device: IntArray) -> FloatArray:
    """Compute the load of each device in each separate pass; shape (n_devices, rule.n_passes)."""
    rule, channel = graph.rule, channels_us(graph, device)
    loads: FloatArray = channel.reshape(-1, rule.n_passes, rule.n_resources).max(axis=2)
    return loads


def time_per_sample_us(graph: Hypergraph, device: IntArray) -> float:
    """Sum the largest loads of the passes that count separately."""
    return float(loads_us(graph, device).max(axis=0).sum())


def held_bytes(graph: Hypergraph, device: IntArray) -> FloatArray:
    """Sum the memory of the units on each device; shape (n_devices,)."""
    unit_bytes = graph.unit_bytes[np.arange(graph.n_units), device]
    held = np.bincount(device, weights=unit_bytes, minlength=graph.n_devices)
    return held.astype(np.float64)
