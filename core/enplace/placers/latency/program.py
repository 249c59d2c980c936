"""Integer programs for the latency (Tarnawski et al. 2020, Figs. 3 and 4), on ops.

An accelerator has ``q`` subgraphs in each pass, forward before backward. ``here[op, subgraph]``
is 1 if an op is in a subgraph, ``where[unit, place]`` if a unit is on an accelerator or the CPUs.
The paper's products are made linear with a latency that is known to be sufficient (Lemma 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from enplace.linear import Model, ModelBuilder, Terms
from enplace.machine.host_links import send_us
from enplace.machine.op_passes import backward_ops
from enplace.placers.latency.groups import cpu_us, place_bytes
from enplace.placers.max_load.search.program import add_contiguity
from enplace.placers.max_load.table.hyperedges import find_cut_costs
from enplace.placing.packing import working_bytes
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray


class Memory(NamedTuple):
    """What a program knows of memory; a place is an accelerator, or the last one: all CPUs.

    Attributes
    ----------
    op_bytes : int array, shape (n_ops,)
        What each op takes on its place all the time.
    working_bytes : float array, shape (n_units, n_places)
        What a unit takes there in addition, for some time.
    capacity_bytes : float array, shape (n_places,)
    refused : tuple of int arrays, shape (n_units,)
        Placements that are left out, because they do not fit.
    """

    op_bytes: IntArray
    working_bytes: FloatArray
    capacity_bytes: FloatArray
    refused: tuple[IntArray, ...] = ()


def known_memory(problem: Problem) -> Memory:
    """Return what every plan needs: its variables, and what one of its ops works with.

    A plan may need more: whether it fits depends on the order of its ops, too.
    """
    cluster, working = problem.cluster, working_bytes(problem)
    of_cpus = working[:, cluster.cpus].min(axis=1, initial=np.inf)
    of_cpus[np.isinf(of_cpus)] = 0.0
    each = np.column_stack([working[:, cluster.gpus], of_cpus])
    return Memory(problem.profile.persistent_bytes, each, place_bytes(problem))


@dataclass(frozen=True, eq=False)
class LatencyProgram:
    """A model, and the meaning of its variables.

    Attributes
    ----------
    model : Model
    scale_us : float
        Unit of time in the model.
    where : int array, shape (n_units, n_gpus + 1)
        Numbers of the variables, here and below; the last column is for the CPUs.
    here : int array, shape (n_ops, n_gpus, n_passes, q)
        Negative for the pass that an op does not belong to.
    """

    model: Model
    scale_us: float
    where: IntArray
    here: IntArray


@dataclass(frozen=True, eq=False)
class _Parts:
    """The variables and times of the program that several groups of rows use.

    Attributes
    ----------
    inside : int array, shape (n_ops, n_subgraphs)
        Variables that are 1 if an op is in a subgraph.
    on_cpu : int array, shape (n_ops,)
    gpu : int array, shape (n_subgraphs,)
        Accelerator of each subgraph.
    work : float array, shape (n_ops, n_subgraphs)
        Time of an op there, in the model's unit of time.
    cpu_work : float array, shape (n_ops,)
    total : int array, shape (1,)
        The latency.
    """

    inside: IntArray
    on_cpu: IntArray
    gpu: IntArray
    work: FloatArray
    cpu_work: FloatArray
    total: IntArray

    @property
    def every(self) -> IntArray:
        """All subgraphs."""
        return np.arange(len(self.gpu))


def write_program(problem: Problem, q: int, enough_us: float, memory: Memory) -> LatencyProgram:
    """Write the program.

    Parameters
    ----------
    q : int
        Subgraphs of each accelerator in each pass.
    enough_us : float
        A latency that the best placement does not exceed.
    """
    builder = ModelBuilder()
    where = _add_where(builder, problem, memory)
    here = _add_here(builder, problem, where, q)
    n_ops, _, n_passes, _ = here.shape
    # An op of the other pass is in no subgraph; one shared variable, fixed at 0, represents this.
    never = builder.variables(1, upper=0.0)
    inside = np.where(here < 0, never[0], here).reshape(n_ops, -1)
    work, cpu_work = _work(problem, enough_us)
    start = builder.variables(inside.shape[1], upper=1.0)
    finish = builder.variables(inside.shape[1], upper=1.0)
    done = builder.variables(n_ops, upper=1.0)
    total = builder.variables(1, upper=1.0, cost=1.0)
    gpu = np.arange(inside.shape[1]) // (n_passes * q)
    parts = _Parts(inside, where[problem.unit, -1], gpu, work[:, gpu], cpu_work, total)
    builder.rows([(1.0, total), (-1.0, done)], lower=0.0)
    builder.rows([(1.0, total), (-1.0, finish)], lower=0.0)
    _add_times(builder, problem, parts, start, finish, done, enough_us)
    # (14): the subgraphs of an accelerator run one after another.
    follows = parts.every[parts.every % (n_passes * q) != 0]
    builder.rows([(1.0, start[follows]), (-1.0, finish[follows - 1])], lower=0.0)
    sent = send_us(problem)[:, problem.cluster.gpus][:, gpu] / enough_us
    _bound_by_longest_path(builder, problem, parts, sent)
    _add_contiguity_of_passes(builder, problem, here)
    return LatencyProgram(builder.model(), enough_us, where, here)


def _add_times(
    builder: ModelBuilder,
    problem: Problem,
    parts: _Parts,
    start: IntArray,
    finish: IntArray,
    done: IntArray,
    scale_us: float,
) -> None:
    """Add the rows for when subgraphs start and finish, and when ops end (6 to 10)."""
    # (7): in, compute, out.
    terms: list[Terms] = [
        (parts.every, 1.0, finish),
        (parts.every, -1.0, start),
        (parts.every, -parts.work, parts.inside),
        *_transfer_terms(builder, problem, parts, scale_us),
    ]
    builder.sums(len(parts.gpu), terms, lower=0.0, upper=0.0)
    a, b = _edges(problem)
    # (6): an op outside the subgraph has ended if one inside depends on it.
    before: list[tuple[float, IntArray]] = [(1.0, parts.inside[a]), (-1.0, parts.inside[b])]
    builder.rows([(1.0, start), (-1.0, done[a][:, None]), *before], lower=-1.0)
    # (8) and (9).
    on_cpu, cpu_work = parts.on_cpu, parts.cpu_work
    builder.rows([(1.0, done), (-cpu_work, on_cpu)], lower=0.0)
    builder.rows([(1.0, done[b]), (-1.0, done[a]), (-cpu_work[b], on_cpu[b])], lower=0.0)
    # (10).
    builder.rows([(1.0, done[:, None]), (-1.0, finish), (-1.0, parts.inside)], lower=-1.0)


def _add_contiguity_of_passes(builder: ModelBuilder, problem: Problem, here: IntArray) -> None:
    """Keep the subgraphs of each pass contiguous."""
    backward = backward_ops(problem).astype(np.int64)
    n_ops, n_gpus, n_passes, q = here.shape
    a, b = _edges(problem)
    for each in range(n_passes):
        ops = np.flatnonzero(backward == each) if n_passes > 1 else np.arange(n_ops)
        place = np.full(n_ops, -1)
        place[ops] = np.arange(len(ops))
        both = (place[a] >= 0) & (place[b] >= 0)
        mine = here[ops][:, :, each].reshape(len(ops), n_gpus * q)
        add_contiguity(builder, mine, place[a[both]], place[b[both]])


def _add_where(builder: ModelBuilder, problem: Problem, memory: Memory) -> IntArray:
    """Add the variables for the place of each unit: one place each (1), within memory (3)."""
    cluster = problem.cluster
    allowed = np.zeros((problem.n_units, len(cluster.gpus) + 1), dtype=bool)
    allowed[:, :-1] = problem.unit_allowed[:, cluster.gpus]
    allowed[:, -1] = problem.unit_allowed[:, cluster.cpus].any(axis=1)
    where = builder.variables(*allowed.shape, upper=allowed, integral=True)
    each = np.arange(problem.n_units)[:, None]
    builder.sums(problem.n_units, [(each, 1.0, where)], lower=1.0, upper=1.0)
    _limit_memory(builder, problem, memory, where, allowed)
    for place in memory.refused:
        chosen, row = where[np.arange(problem.n_units), place], np.zeros(1, dtype=np.int64)
        builder.sums(1, [(row, 1.0, chosen)], upper=problem.n_units - 1)
    return where


def _limit_memory(
    builder: ModelBuilder, problem: Problem, memory: Memory, where: IntArray, allowed: BoolArray
) -> None:
    """Add the rows for the memory of each place that may be full."""
    need = np.zeros(problem.n_units)
    np.add.at(need, problem.unit, memory.op_bytes)
    capacity, working = memory.capacity_bytes, memory.working_bytes * allowed
    limited = np.flatnonzero((capacity < need.sum() + working.max(axis=0)) & allowed.any(axis=0))
    if not len(limited):
        return
    share, capacity = need[:, None] / capacity[limited], capacity[limited]
    held, rows = builder.variables(len(limited), upper=1.0), np.arange(len(limited))
    terms: list[Terms] = [(rows, share, where[:, limited]), (rows, -1.0, held)]
    builder.sums(len(limited), terms, upper=0.0)
    unit, at = np.nonzero(working[:, limited])
    besides = working[unit, limited[at]] / capacity[at]
    builder.rows([(1.0, held[at]), (besides, where[unit, limited[at]])], upper=1.0)


def _add_here(builder: ModelBuilder, problem: Problem, where: IntArray, q: int) -> IntArray:
    """Add the variables for the subgraph of each op."""
    n_gpus, n_ops = where.shape[1] - 1, problem.profile.n_ops
    backward = backward_ops(problem).astype(np.int64)
    n_passes = 1 if backward.min() == backward.max() else 2
    here = np.full((n_ops, n_gpus, n_passes, q), -1, dtype=np.int64)
    of_pass = backward if n_passes > 1 else np.zeros(n_ops, dtype=np.int64)
    at = where[problem.unit, :n_gpus]
    if q == 1:
        here[np.arange(n_ops), :, of_pass, 0] = at
        return here
    choice = builder.variables(n_ops, n_gpus, q, upper=1.0, integral=True)
    here[np.arange(n_ops), :, of_pass] = choice
    row = np.arange(n_ops * n_gpus).reshape(n_ops, n_gpus)
    terms: list[Terms] = [(row[:, :, None], 1.0, choice), (row, -1.0, at)]
    builder.sums(row.size, terms, lower=0.0, upper=0.0)
    return here


def _work(problem: Problem, scale_us: float) -> tuple[FloatArray, FloatArray]:
    """Return times on accelerators and on a CPU; 0 where an op cannot run, and so cannot be."""
    time_us = np.column_stack([problem.time_us[:, problem.cluster.gpus], cpu_us(problem)])
    work = np.where(np.isfinite(time_us), time_us, 0.0) / scale_us
    return work[:, :-1], work[:, -1]


def _transfer_terms(
    builder: ModelBuilder, problem: Problem, parts: _Parts, scale_us: float
) -> list[Terms]:
    """Return the time of transfers in and out: CommIn and CommOut (4, 5) of each hyperedge."""
    ptr, ops, cost_us = find_cut_costs(problem, np.arange(problem.profile.n_ops))
    n_hyperedges, inside = len(cost_us), parts.inside
    most = builder.variables(n_hyperedges, inside.shape[1], upper=1.0)
    least = builder.variables(n_hyperedges, inside.shape[1], upper=1.0)
    hyperedge = np.repeat(np.arange(n_hyperedges), np.diff(ptr))
    builder.rows([(1.0, most[hyperedge]), (-1.0, inside[ops])], lower=0.0)
    builder.rows([(1.0, inside[ops]), (-1.0, least[hyperedge])], lower=0.0)
    cost = cost_us[:, parts.gpu] / scale_us
    return [(parts.every, -cost, most), (parts.every, cost, least)]


def _bound_by_longest_path(
    builder: ModelBuilder, problem: Problem, parts: _Parts, sent: FloatArray
) -> None:
    """Make the latency at least the time of one path's ops and of the transfers along it.

    This follows from the other rows, but no solver sees it before all choices are made.

    Parameters
    ----------
    sent : float array, shape (n_tensors, n_subgraphs)
    """
    path, tensor = _longest_path(problem)
    crossing = builder.variables(len(tensor), len(parts.gpu), upper=1.0)
    a, b = parts.inside[path[:-1]], parts.inside[path[1:]]
    builder.rows([(1.0, crossing), (-1.0, a), (1.0, b)], lower=0.0)
    builder.rows([(1.0, crossing), (1.0, a), (-1.0, b)], lower=0.0)
    row = np.zeros(1, dtype=np.int64)
    terms: list[Terms] = [
        (row, 1.0, parts.total),
        (row, -parts.work[path], parts.inside[path]),
        (row, -parts.cpu_work[path], parts.on_cpu[path]),
        (row, -sent[tensor], crossing),
    ]
    builder.sums(1, terms, lower=0.0)


def _longest_path(problem: Problem) -> tuple[IntArray, IntArray]:
    """Find the path with the most work, each op on its fastest device, and its tensors."""
    profile = problem.profile
    fastest = problem.time_us.min(axis=1)
    ahead, came = fastest.copy(), np.full(profile.n_ops, -1, dtype=np.int64)
    for op in profile.topological_order.tolist():
        for edge in profile.edges_into(op).tolist():
            longer = ahead[profile.edge_source[edge]] + fastest[op]
            if came[op] < 0 or longer > ahead[op]:
                ahead[op], came[op] = longer, edge
    op = int(np.argmax(ahead))
    path, edges = [op], []
    while came[op] >= 0:
        edges.append(int(came[op]))
        op = int(profile.edge_source[came[op]])
        path.append(op)
    return np.array(path[::-1]), profile.edge_tensor[np.array(edges[::-1], dtype=np.int64)]


def _edges(problem: Problem) -> tuple[IntArray, IntArray]:
    profile = problem.profile
    edges = np.unique(np.stack([profile.edge_source, profile.edge_op], axis=1), axis=0)
    return edges[:, 0], edges[:, 1]


def write_solution(
    program: LatencyProgram, problem: Problem, place: IntArray, slot: IntArray
) -> FloatArray:
    """Write a placement as the program's choices; the solver finds the times.

    Parameters
    ----------
    place : int array, shape (n_units,)
        Accelerator of each unit, or the last number for the CPUs.
    slot : int array, shape (n_ops,)
        The subgraph of each op within its pass.
    """
    values = np.full(program.model.n_variables, np.nan)
    values[program.where] = np.arange(program.where.shape[1]) == place[:, None]
    n_gpus, q = program.here.shape[1], program.here.shape[3]
    if q > 1:
        on = place[problem.unit][:, None, None] == np.arange(n_gpus)[:, None]
        chosen = on & (slot[:, None, None] == np.arange(q))
        for each in range(program.here.shape[2]):
            here = program.here[:, :, each]
            values[here[here >= 0]] = chosen[here >= 0]
    return values


def read_placement(
    program: LatencyProgram, values: FloatArray, problem: Problem
) -> tuple[IntArray, IntArray]:
    """Read the place of each unit, and the number of each op's subgraph on its accelerator."""
    place = np.argmax(values[program.where], axis=1)
    n_ops, n_gpus = program.here.shape[:2]
    chosen = np.where(program.here >= 0, values[program.here], 0.0).reshape(n_ops, n_gpus, -1)
    at = np.minimum(place[problem.unit], n_gpus - 1)
    return place, np.argmax(chosen[np.arange(n_ops), at], axis=1)
