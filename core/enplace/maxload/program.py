"""Integer programs for the largest load (Tarnawski et al. 2020, Fig. 6), on units and nets.

``x[unit, device]`` says where a unit is. A net costs each accelerator that has some but not all of
its units: then the largest and the smallest ``x`` of the net differ by one. That is CommIn and
CommOut of the paper in one, with two rows for each end of a net. Contiguity, where wanted, has
``z[op, device]``: it falls along every path, is 1 up to the last op on the device, and an op that
follows one of the device without being there has 0 (Lemma 4.1, equations 11 to 13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from enplace.maxload.hypergraph import Hypergraph, loads_us
from enplace.profile import FloatArray, IntArray
from enplace.solvers.model import Model, ModelBuilder, Terms


@dataclass(frozen=True, eq=False)
class Pass:
    """The ops of the forward or the backward pass, whose part on each device is contiguous.

    Attributes
    ----------
    unit : int array, shape (n,)
        Unit of each op, in topological order.
    source, target : int arrays, shape (n_edges,)
        Edges between these ops, by their place in ``unit``, sorted by source.
    """

    unit: IntArray
    source: IntArray
    target: IntArray


@dataclass(frozen=True, eq=False)
class Program:
    """A model, and what its variables stand for.

    Attributes
    ----------
    graph : Hypergraph
    passes : sequence of Pass
        Empty if placements need not be contiguous.
    scale_us : float
        Time in the model is counted in this.
    model : Model
    x : int array, shape (n_units, n_devices)
        Numbers of the variables, here and below.
    most, least : int arrays, shape (n_nets, n_accelerators)
    z : int arrays, shapes (n_ops, n_devices), one for each pass
    largest : int
    """

    graph: Hypergraph
    passes: Sequence[Pass]
    scale_us: float
    model: Model
    x: IntArray
    most: IntArray
    least: IntArray
    z: Sequence[IntArray]
    largest: int


def max_load_program(graph: Hypergraph, scale_us: float, passes: Sequence[Pass] = ()) -> Program:
    """Write down the program."""
    builder = ModelBuilder()
    allowed = np.isfinite(graph.unit_us)
    x = builder.variables(*allowed.shape, upper=allowed, integral=True)
    largest = builder.variables(1, cost=1.0)
    builder.sums(graph.n_units, [(np.arange(graph.n_units)[:, None], 1.0, x)], lower=1.0, upper=1.0)
    pays = np.flatnonzero(graph.pays)
    most = builder.variables(graph.n_nets, len(pays), upper=1.0)
    least = builder.variables(graph.n_nets, len(pays), upper=1.0)
    net = np.repeat(np.arange(graph.n_nets), np.diff(graph.net_ptr))
    of_pin = x[graph.net_unit][:, pays]
    builder.rows([(1.0, most[net]), (-1.0, of_pin)], lower=0.0)
    builder.rows([(1.0, of_pin), (-1.0, least[net])], lower=0.0)
    work = np.where(allowed, graph.unit_us, 0.0) / scale_us
    cost = graph.net_us[:, None] / scale_us
    every = np.arange(graph.n_devices)
    load: list[Terms] = [
        (every, work, x),
        (pays, cost, most),
        (pays, -cost, least),
        (every, -1.0, largest),
    ]
    builder.sums(graph.n_devices, load, upper=0.0)
    limited = np.flatnonzero(graph.capacity_bytes < graph.unit_bytes.sum())
    if len(limited):
        share = graph.unit_bytes[:, None] / graph.capacity_bytes[limited]
        builder.sums(len(limited), [(np.arange(len(limited)), share, x[:, limited])], upper=1.0)
    z = [contiguity(builder, x[each.unit], each.source, each.target) for each in passes]
    return Program(graph, passes, scale_us, builder.model(), x, most, least, z, int(largest[0]))


def contiguity(
    builder: ModelBuilder, here: IntArray, source: IntArray, target: IntArray
) -> IntArray:
    """Add variables and rows that keep sets of nodes contiguous (Lemma 4.1).

    Parameters
    ----------
    here : int array, shape (n_nodes, n_sets)
        Variables that are 1 where a node is in a set.
    source, target : int arrays, shape (n_edges,)

    Returns
    -------
    int array, shape (n_nodes, n_sets)
        The variables z.
    """
    z = builder.variables(*here.shape, upper=1.0)
    builder.rows([(1.0, z), (-1.0, here)], lower=0.0)
    builder.rows([(1.0, z[source]), (-1.0, z[target])], lower=0.0)
    after, before = here[target], here[source]
    builder.rows([(1.0, after), (-1.0, before), (-1.0, z[target])], lower=-1.0)
    return z


def values_of(program: Program, device: IntArray) -> FloatArray:
    """The solution that stands for a placement.

    Parameters
    ----------
    device : int array, shape (n_units,)
    """
    graph, values = program.graph, np.zeros(program.model.n_variables)
    x = np.zeros((graph.n_units, graph.n_devices))
    x[np.arange(graph.n_units), device] = 1.0
    values[program.x] = x
    if graph.n_nets:
        of_pin = x[graph.net_unit][:, graph.pays]
        values[program.most] = np.maximum.reduceat(of_pin, graph.net_ptr[:-1])
        values[program.least] = np.minimum.reduceat(of_pin, graph.net_ptr[:-1])
    for each, z in zip(program.passes, program.z, strict=True):
        before = x[each.unit]
        for a, b in zip(each.source[::-1].tolist(), each.target[::-1].tolist(), strict=True):
            np.maximum(before[a], before[b], out=before[a])
        values[z] = before
    values[program.largest] = loads_us(graph, device).max() / program.scale_us
    return values


def placement_of(program: Program, values: FloatArray) -> IntArray:
    """Device of each unit in a solution; shape (n_units,)."""
    device: IntArray = np.argmax(values[program.x], axis=1)
    return device
