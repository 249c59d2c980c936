"""Integer programs for the largest load (Tarnawski et al. 2020, Fig. 6), on units and nets.

``x[unit, device]`` says where a unit is. A net costs each accelerator that has some of its units,
less if it has them all: the largest and the smallest ``x`` of the net tell. That is CommIn and
CommOut of the paper in one, with two rows for each end of a net. Each resource in each pass has its
own row, so that compute and transfers may overlap (appendix C.1). Contiguity, where wanted, has
``z[op, device]``: it falls along every path, is 1 up to the last op on the device, and an op that
follows one of the device without being there has 0 (Lemma 4.1, equations 11 to 13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from enplace.placers.max_load.hypergraph import Hypergraph, loads_us
from enplace.solvers.model import Model, ModelBuilder, Terms
from enplace.values.problem import BoolArray
from enplace.values.profile import FloatArray, IntArray


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
    largest : int array, shape (rule.n_passes,)
    """

    graph: Hypergraph
    passes: Sequence[Pass]
    scale_us: float
    model: Model
    x: IntArray
    most: IntArray
    least: IntArray
    z: Sequence[IntArray]
    largest: IntArray


def max_load_program(graph: Hypergraph, scale_us: float, passes: Sequence[Pass] = ()) -> Program:
    """Write down the program."""
    builder = ModelBuilder()
    nets, rule = graph.nets, graph.rule
    allowed = np.isfinite(graph.unit_us).all(axis=2)
    x = builder.variables(*allowed.shape, upper=allowed, integral=True)
    largest = builder.variables(rule.n_passes, cost=1.0)
    builder.sums(graph.n_units, [(np.arange(graph.n_units)[:, None], 1.0, x)], lower=1.0, upper=1.0)
    pays = graph.paying
    most = builder.variables(nets.n_nets, len(pays), upper=1.0)
    least = builder.variables(nets.n_nets, len(pays), upper=1.0)
    net = np.repeat(np.arange(nets.n_nets), np.diff(nets.ptr))
    of_pin = x[nets.node][:, pays]
    builder.rows([(1.0, most[net]), (-1.0, of_pin)], lower=0.0)
    builder.rows([(1.0, of_pin), (-1.0, least[net])], lower=0.0)
    _keep_low(builder, graph, most, of_pin, net)
    for channel in range(rule.n_passes * rule.n_resources):
        load = _channel(graph, channel, scale_us, x, most, least)
        at, every = channel // rule.n_resources, np.arange(graph.n_devices)
        builder.sums(graph.n_devices, [*load, (every, -1.0, largest[at])], upper=0.0)
    limited = np.flatnonzero(graph.capacity_bytes < graph.unit_bytes.sum())
    if len(limited):
        share = graph.unit_bytes[:, None] / graph.capacity_bytes[limited]
        builder.sums(len(limited), [(np.arange(len(limited)), share, x[:, limited])], upper=1.0)
    z = [contiguity(builder, x[each.unit], each.source, each.target) for each in passes]
    return Program(graph, passes, scale_us, builder.model(), x, most, least, z, largest)


def _channel(
    graph: Hypergraph,
    channel: int,
    scale_us: float,
    x: IntArray,
    most: IntArray,
    least: IntArray,
) -> list[Terms]:
    """What each device has to do in one channel."""
    nets, every, pays = graph.nets, np.arange(graph.n_devices), graph.paying
    price = graph.price[pays]
    at, resource = divmod(channel, graph.rule.n_resources)
    terms: list[Terms] = [
        (pays, nets.touched_us[price, :, channel].T / scale_us, most),
        (pays, -nets.inside_us[price, :, channel].T / scale_us, least),
        (pays, nets.own_us[price, :, channel].T / scale_us, x[:, pays]),
    ]
    if resource == 0:
        work = np.where(np.isfinite(graph.unit_us[:, :, at]), graph.unit_us[:, :, at], 0.0)
        terms.append((every, work / scale_us, x))
    return terms


def _keep_low(
    builder: ModelBuilder, graph: Hypergraph, most: IntArray, of_pin: IntArray, net: IntArray
) -> None:
    """Nets that a set gains by touching: ``most`` is 0 unless it has one of the units.

    There are such where the passes count apart: what is brought in for the forward ops is not for
    the backward ones.
    """
    gains: BoolArray = graph.nets.touched_us.min(axis=(0, 2), initial=0.0) < 0
    number = np.cumsum(gains) - 1
    pins = gains[net]
    n_gpus = most.shape[1]
    row = number[:, None] * n_gpus + np.arange(n_gpus)
    terms: list[Terms] = [(row[gains], 1.0, most[gains]), (row[net[pins]], -1.0, of_pin[pins])]
    builder.sums(int(gains.sum()) * n_gpus, terms, upper=0.0)


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
    nets = graph.nets
    if nets.n_nets:
        of_pin = x[nets.node][:, graph.paying]
        values[program.most] = np.maximum.reduceat(of_pin, nets.ptr[:-1])
        values[program.least] = np.minimum.reduceat(of_pin, nets.ptr[:-1])
    for each, z in zip(program.passes, program.z, strict=True):
        before = x[each.unit]
        for a, b in zip(each.source[::-1].tolist(), each.target[::-1].tolist(), strict=True):
            np.maximum(before[a], before[b], out=before[a])
        values[z] = before
    values[program.largest] = loads_us(graph, device).max(axis=0) / program.scale_us
    return values


def placement_of(program: Program, values: FloatArray) -> IntArray:
    """Device of each unit in a solution; shape (n_units,)."""
    device: IntArray = np.argmax(values[program.x], axis=1)
    return device
