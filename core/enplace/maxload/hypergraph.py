"""Placement units and the tensors between them: all that the load of any placement depends on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from enplace.maxload.contract import nets_of, whole_op_bytes
from enplace.problem import BoolArray, Problem
from enplace.profile import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Hypergraph:
    """Units, what they cost on each device, and the nets that cost every accelerator they cross.

    Attributes
    ----------
    unit_us : float array, shape (n_units, n_devices)
        Compute time of a unit; inf where it may not be.
    unit_bytes : int array, shape (n_units,)
    capacity_bytes : float array, shape (n_devices,)
        inf for CPUs, whose memory the paper does not limit.
    pays : bool array, shape (n_devices,)
        Whether a device pays for tensors that cross its border; CPUs do not.
    net_ptr, net_unit : int arrays
        Units that make or consume a set of tensors: ``net_unit[net_ptr[i] : net_ptr[i + 1]]``.
    net_us : float array, shape (n_nets,)
        What a net costs every accelerator that has some but not all of its units.
    """

    unit_us: FloatArray
    unit_bytes: IntArray
    capacity_bytes: FloatArray
    pays: BoolArray
    net_ptr: IntArray
    net_unit: IntArray
    net_us: FloatArray

    @property
    def n_units(self) -> int:
        return len(self.unit_bytes)

    @property
    def n_nets(self) -> int:
        return len(self.net_us)

    @property
    def n_devices(self) -> int:
        return len(self.pays)


def hypergraph_of(problem: Problem) -> Hypergraph:
    """The hypergraph of a problem; pins and forbidden devices are kept."""
    cluster = problem.cluster
    unit_us = np.zeros(problem.unit_allowed.shape)
    np.add.at(unit_us, problem.unit, problem.time_us)
    unit_us[~problem.unit_allowed] = np.inf
    unit_bytes = np.zeros(problem.n_units, dtype=np.int64)
    np.add.at(unit_bytes, problem.unit, whole_op_bytes(problem))
    pays = np.zeros(cluster.n_devices, dtype=bool)
    pays[cluster.gpus] = True
    capacity = np.where(pays, cluster.capacity_bytes, np.inf)
    net_ptr, net_unit, net_us = nets_of(problem, problem.unit)
    return Hypergraph(unit_us, unit_bytes, capacity, pays, net_ptr, net_unit, net_us)


def loads_us(graph: Hypergraph, device: IntArray) -> FloatArray:
    """Load of each device; shape (n_devices,).

    Parameters
    ----------
    device : int array, shape (n_units,)
    """
    load = np.bincount(
        device,
        weights=graph.unit_us[np.arange(graph.n_units), device],
        minlength=graph.n_devices,
    ).astype(np.float64)
    net = np.repeat(np.arange(graph.n_nets), np.diff(graph.net_ptr))
    count = np.zeros((graph.n_nets, graph.n_devices), dtype=np.int64)
    np.add.at(count, (net, device[graph.net_unit]), 1)
    crossing = (count > 0) & (count < np.diff(graph.net_ptr)[:, None])
    load += np.where(graph.pays, graph.net_us @ crossing, 0.0)
    return load


def held_bytes(graph: Hypergraph, device: IntArray) -> FloatArray:
    """Memory of the units on each device; shape (n_devices,)."""
    held = np.bincount(device, weights=graph.unit_bytes, minlength=graph.n_devices)
    return held.astype(np.float64)
