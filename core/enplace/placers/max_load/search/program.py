"""Integer programs for the largest load (Tarnawski et al. 2020, Fig. 6), on units and hyperedges.

``x[unit, device]`` is 1 if a unit is on a device. A hyperedge costs each accelerator that has some
of its units, but less if it has them all; this follows from the largest and the smallest ``x`` of
the hyperedge. It combines CommIn and CommOut of the paper, with two rows for each end of a
hyperedge. Each resource in each pass has its own row, so that compute and transfers may overlap
(appendix C.1). For contiguity there is ``z[op, device]``: it falls along every path, is 1 up to the
last op on the device, and 0 for an op that follows one on the device but is elsewhere (Lemma 4.1,
equations 11 to 13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from enplace.linear import Model, ModelBuilder, Terms
from enplace.placers.max_load.contiguity import Pass
from enplace.placers.max_load.search.hypergraph import Hypergraph, loads_us
from enplace.values.problem import BoolArray
from enplace.values.profile import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class MaxLoadProgram:
    """A model, and the meaning of its variables.

    Attributes
    ----------
    graph : Hypergraph
    passes : sequence of Pass
        Empty if placements need not be contiguous.
    scale_us : float
        Unit of time in the model.
    model : Model
    x : int array, shape (n_units, n_devices)
        Numbers of the variables, here and below.
    most, least : int arrays, shape (n_hyperedges, n_accelerators)
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


def write_program(
    graph: Hypergraph, scale_us: float, passes: Sequence[Pass] = ()
) -> MaxLoadProgram:
    """Write the program."""
    builder = ModelBuilder()
    hyperedges, rule, pays = graph.hyperedges, graph.rule, graph.paying
    allowed = np.isfinite(graph.unit_us).all(axis=2)
    x = builder.variables(*allowed.shape, upper=allowed, integral=True)
    largest = builder.variables(rule.n_passes, cost=1.0)
    builder.sums(graph.n_units, [(np.arange(graph.n_units)[:, None], 1.0, x)], lower=1.0, upper=1.0)
    most = builder.variables(hyperedges.n_hyperedges, len(pays), upper=1.0)
    least = builder.variables(hyperedges.n_hyperedges, len(pays), upper=1.0)
    of_pin = x[hyperedges.node][:, pays]
    builder.rows([(1.0, most[hyperedges.of_pin]), (-1.0, of_pin)], lower=0.0)
    builder.rows([(1.0, of_pin), (-1.0, least[hyperedges.of_pin])], lower=0.0)
    _cap_most(builder, graph, most, of_pin)
    for channel in range(rule.n_passes * rule.n_resources):
        load = _channel_terms(graph, channel, scale_us, x, most, least)
        at, every = channel // rule.n_resources, np.arange(graph.n_devices)
        builder.sums(graph.n_devices, [*load, (every, -1.0, largest[at])], upper=0.0)
    _limit_memory(builder, graph, x)
    z = [add_contiguity(builder, x[each.unit], each.source, each.target) for each in passes]
    return MaxLoadProgram(graph, passes, scale_us, builder.model(), x, most, least, z, largest)


def _limit_memory(builder: ModelBuilder, graph: Hypergraph, x: IntArray) -> None:
    """Keep devices within their memory, unless all units fit anyway."""
    limited = np.flatnonzero(graph.capacity_bytes < graph.unit_bytes.sum(axis=0))
    if len(limited):
        share = graph.unit_bytes[:, limited] / graph.capacity_bytes[limited]
        builder.sums(len(limited), [(np.arange(len(limited)), share, x[:, limited])], upper=1.0)


def _channel_terms(
    graph: Hypergraph,
    channel: int,
    scale_us: float,
    x: IntArray,
    most: IntArray,
    least: IntArray,
) -> list[Terms]:
    """Return the work of each device in one channel, as terms of a sum."""
    hyperedges, every, pays = graph.hyperedges, np.arange(graph.n_devices), graph.paying
    price = graph.price[pays]
    at, resource = divmod(channel, graph.rule.n_resources)
    terms: list[Terms] = [
        (pays, hyperedges.touched_us[price, :, channel].T / scale_us, most),
        (pays, -hyperedges.inside_us[price, :, channel].T / scale_us, least),
        (pays, hyperedges.own_us[price, :, channel].T / scale_us, x[:, pays]),
    ]
    if resource == 0:
        work = np.where(np.isfinite(graph.unit_us[:, :, at]), graph.unit_us[:, :, at], 0.0)
        terms.append((every, work / scale_us, x))
    return terms


def _cap_most(builder: ModelBuilder, graph: Hypergraph, most: IntArray, of_pin: IntArray) -> None:
    """Keep ``most`` at 0 if an accelerator has no unit of a hyperedge that pays to touch it.

    That is possible if the passes count separately: a tensor that is received for the forward ops
    need not be received for the backward ops.
    """
    hyperedges = graph.hyperedges
    gains: BoolArray = hyperedges.touched_us.min(axis=(0, 2), initial=0.0) < 0
    number = np.cumsum(gains) - 1
    pins = gains[hyperedges.of_pin]
    n_gpus = most.shape[1]
    row = number[:, None] * n_gpus + np.arange(n_gpus)
    terms: list[Terms] = [
        (row[gains], 1.0, most[gains]),
        (row[hyperedges.of_pin[pins]], -1.0, of_pin[pins]),
    ]
    builder.sums(int(gains.sum()) * n_gpus, terms, upper=0.0)


def add_contiguity(
    builder: ModelBuilder, here: IntArray, source: IntArray, target: IntArray
) -> IntArray:
    """Add variables and rows that keep sets of nodes contiguous (Lemma 4.1).

    Parameters
    ----------
    here : int array, shape (n_nodes, n_sets)
        Variables that are 1 if a node is in a set.
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


def write_solution(program: MaxLoadProgram, device: IntArray) -> FloatArray:
    """Write a placement as a solution of the program.

    Parameters
    ----------
    device : int array, shape (n_units,)
    """
    graph, values = program.graph, np.zeros(program.model.n_variables)
    x = np.zeros((graph.n_units, graph.n_devices))
    x[np.arange(graph.n_units), device] = 1.0
    values[program.x] = x
    hyperedges = graph.hyperedges
    if hyperedges.n_hyperedges:
        of_pin = x[hyperedges.node][:, graph.paying]
        values[program.most] = np.maximum.reduceat(of_pin, hyperedges.ptr[:-1])
        values[program.least] = np.minimum.reduceat(of_pin, hyperedges.ptr[:-1])
    for each, z in zip(program.passes, program.z, strict=True):
        before = x[each.unit]
        for a, b in zip(each.source[::-1].tolist(), each.target[::-1].tolist(), strict=True):
            np.maximum(before[a], before[b], out=before[a])
        values[z] = before
    values[program.largest] = loads_us(graph, device).max(axis=0) / program.scale_us
    return values


def read_placement(program: MaxLoadProgram, values: FloatArray) -> IntArray:
    """Return the device of each unit in a solution; shape (n_units,)."""
    device: IntArray = np.argmax(values[program.x], axis=1)
    return device
