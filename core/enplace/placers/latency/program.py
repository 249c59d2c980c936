"""Integer programs for the latency (Tarnawski et al. 2020, Figs. 3 and 4), on ops.

An accelerator has ``q`` pieces in each pass, forward before backward; ``here[op, piece]`` says
whether an op is in one, ``where[unit, place]`` on which accelerator, or CPU, a unit is. What the
paper multiplies is made linear with a latency that is known to be enough (Lemma 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from enplace.coarsen.grouped import op_memory_bytes
from enplace.machine.loads import backward_ops, send_us
from enplace.placers.latency.groups import cpu_us
from enplace.placers.max_load.nets import nets_of
from enplace.placers.max_load.program import contiguity
from enplace.solvers.model import Model, ModelBuilder, Terms
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Program:
    """A model, and what its variables stand for.

    Attributes
    ----------
    model : Model
    scale_us : float
        Time in the model is counted in this.
    where : int array, shape (n_units, n_gpus + 1)
        Numbers of the variables, here and below; the last column stands for the CPUs.
    here : int array, shape (n_ops, n_gpus, n_passes, q)
        Negative for the pass that an op is not of.
    """

    model: Model
    scale_us: float
    where: IntArray
    here: IntArray


def latency_program(problem: Problem, q: int, enough_us: float) -> Program:
    """Write down the program.

    Parameters
    ----------
    q : int
        Pieces of each accelerator in each pass.
    enough_us : float
        A latency that the best placement does not exceed.
    """
    builder = ModelBuilder()
    where = _where(builder, problem)
    here = _here(builder, problem, where, q)
    backward = backward_ops(problem).astype(np.int64)
    n_gpus, n_passes = here.shape[1:3]
    profile, n_pieces = problem.profile, n_gpus * n_passes * q
    # An op of the other pass is in no piece: one variable for all, which is 0.
    never = builder.variables(1, upper=0.0)
    inside = np.where(here < 0, never[0], here).reshape(profile.n_ops, n_pieces)
    work, cpu_work = _work(problem, enough_us)
    start = builder.variables(n_pieces, upper=1.0)
    finish = builder.variables(n_pieces, upper=1.0)
    done = builder.variables(profile.n_ops, upper=1.0)
    total = builder.variables(1, upper=1.0, cost=1.0)
    builder.rows([(1.0, total), (-1.0, done)], lower=0.0)
    builder.rows([(1.0, total), (-1.0, finish)], lower=0.0)
    # (7): in, compute, out.
    every = np.arange(n_pieces)
    gpu_of_piece = every // (n_passes * q)
    worked = work[:, gpu_of_piece]
    terms: list[Terms] = [
        (every, 1.0, finish),
        (every, -1.0, start),
        (every, -worked, inside),
        *_sent(builder, problem, inside, gpu_of_piece, enough_us),
    ]
    builder.sums(n_pieces, terms, lower=0.0, upper=0.0)
    a, b = _edges(problem)
    # (6): an op outside the piece that one inside depends on is done.
    before: list[tuple[float, IntArray]] = [(1.0, inside[a]), (-1.0, inside[b])]
    builder.rows([(1.0, start), (-1.0, done[a][:, None]), *before], lower=-1.0)
    # (8) and (9).
    on_cpu = where[problem.unit, -1]
    builder.rows([(1.0, done), (-cpu_work, on_cpu)], lower=0.0)
    builder.rows([(1.0, done[b]), (-1.0, done[a]), (-cpu_work[b], on_cpu[b])], lower=0.0)
    # (10).
    builder.rows([(1.0, done[:, None]), (-1.0, finish), (-1.0, inside)], lower=-1.0)
    # (14): the pieces of an accelerator take turns.
    follows = every[every % (n_passes * q) != 0]
    builder.rows([(1.0, start[follows]), (-1.0, finish[follows - 1])], lower=0.0)
    sent = send_us(problem)[:, problem.cluster.gpus][:, gpu_of_piece] / enough_us
    _along_longest_path(builder, problem, total, inside, worked, sent, on_cpu, cpu_work)
    for each in range(n_passes):
        ops = np.flatnonzero(backward == each) if n_passes > 1 else np.arange(profile.n_ops)
        place = np.full(profile.n_ops, -1)
        place[ops] = np.arange(len(ops))
        both = (place[a] >= 0) & (place[b] >= 0)
        mine = here[ops][:, :, each].reshape(len(ops), n_gpus * q)
        contiguity(builder, mine, place[a[both]], place[b[both]])
    return Program(builder.model(), enough_us, where, here)


def _where(builder: ModelBuilder, problem: Problem) -> IntArray:
    """Variables that say where units are, each at one place (1), as memory allows (3)."""
    cluster = problem.cluster
    allowed = np.zeros((problem.n_units, len(cluster.gpus) + 1), dtype=bool)
    allowed[:, :-1] = problem.unit_allowed[:, cluster.gpus]
    allowed[:, -1] = problem.unit_allowed[:, cluster.cpus].any(axis=1)
    where = builder.variables(*allowed.shape, upper=allowed, integral=True)
    each = np.arange(problem.n_units)[:, None]
    builder.sums(problem.n_units, [(each, 1.0, where)], lower=1.0, upper=1.0)
    need = np.zeros(problem.n_units)
    np.add.at(need, problem.unit, op_memory_bytes(problem))
    capacity = cluster.capacity_bytes[cluster.gpus]
    limited = np.flatnonzero(capacity < need.sum())
    if len(limited):
        share = need[:, None] / capacity[limited]
        rows = np.arange(len(limited))
        builder.sums(len(limited), [(rows, share, where[:, limited])], upper=1.0)
    return where


def _here(builder: ModelBuilder, problem: Problem, where: IntArray, q: int) -> IntArray:
    """Variables that say in which piece ops are."""
    n_gpus, n_ops = where.shape[1] - 1, problem.profile.n_ops
    backward = backward_ops(problem).astype(np.int64)
    n_passes = 1 if backward.min() == backward.max() else 2
    here = np.full((n_ops, n_gpus, n_passes, q), -1, dtype=np.int64)
    of_pass = backward if n_passes > 1 else np.zeros(n_ops, dtype=np.int64)
    at = where[problem.unit, :n_gpus]
    if q == 1:
        here[np.arange(n_ops), :, of_pass, 0] = at
        return here
    piece = builder.variables(n_ops, n_gpus, q, upper=1.0, integral=True)
    here[np.arange(n_ops), :, of_pass] = piece
    row = np.arange(n_ops * n_gpus).reshape(n_ops, n_gpus)
    terms: list[Terms] = [(row[:, :, None], 1.0, piece), (row, -1.0, at)]
    builder.sums(row.size, terms, lower=0.0, upper=0.0)
    return here


def _work(problem: Problem, scale_us: float) -> tuple[FloatArray, FloatArray]:
    """Times on the accelerators and on a CPU; 0 where an op may not be anyway."""
    time_us = np.column_stack([problem.time_us[:, problem.cluster.gpus], cpu_us(problem)])
    work = np.where(np.isfinite(time_us), time_us, 0.0) / scale_us
    return work[:, :-1], work[:, -1]


def _sent(
    builder: ModelBuilder,
    problem: Problem,
    inside: IntArray,
    gpu_of_piece: IntArray,
    scale_us: float,
) -> list[Terms]:
    """What pieces bring in and send out: CommIn and CommOut (4, 5) of each net in one."""
    ptr, ops, cost_us = nets_of(problem, np.arange(problem.profile.n_ops))
    n_nets, n_pieces = len(cost_us), inside.shape[1]
    most = builder.variables(n_nets, n_pieces, upper=1.0)
    least = builder.variables(n_nets, n_pieces, upper=1.0)
    net = np.repeat(np.arange(n_nets), np.diff(ptr))
    builder.rows([(1.0, most[net]), (-1.0, inside[ops])], lower=0.0)
    builder.rows([(1.0, inside[ops]), (-1.0, least[net])], lower=0.0)
    cost, every = cost_us[:, gpu_of_piece] / scale_us, np.arange(n_pieces)
    return [(every, -cost, most), (every, cost, least)]


def _along_longest_path(
    builder: ModelBuilder,
    problem: Problem,
    total: IntArray,
    inside: IntArray,
    work: FloatArray,
    sent: FloatArray,
    on_cpu: IntArray,
    cpu_work: FloatArray,
) -> None:
    """Nothing along a path happens at once: its ops and what it sends are less than the latency.

    That follows from the rest, but no solver sees it before all choices are made.

    Parameters
    ----------
    work : float array, shape (n_ops, n_pieces)
    sent : float array, shape (n_tensors, n_pieces)
    """
    path, tensor = _longest_path(problem)
    crossing = builder.variables(len(tensor), inside.shape[1], upper=1.0)
    a, b = inside[path[:-1]], inside[path[1:]]
    builder.rows([(1.0, crossing), (-1.0, a), (1.0, b)], lower=0.0)
    builder.rows([(1.0, crossing), (1.0, a), (-1.0, b)], lower=0.0)
    row = np.zeros(1, dtype=np.int64)
    terms: list[Terms] = [
        (row, 1.0, total),
        (row, -work[path], inside[path]),
        (row, -cpu_work[path], on_cpu[path]),
        (row, -sent[tensor], crossing),
    ]
    builder.sums(1, terms, lower=0.0)


def _longest_path(problem: Problem) -> tuple[IntArray, IntArray]:
    """Ops of the path with the most work, each where it is fastest, and tensors between them."""
    profile = problem.profile
    fastest = problem.time_us.min(axis=1)
    ahead, came = fastest.copy(), np.full(profile.n_ops, -1, dtype=np.int64)
    before = np.argsort(profile.edge_op, kind="stable")
    ptr = np.searchsorted(profile.edge_op[before], np.arange(profile.n_ops + 1))
    for op in profile.topological_order.tolist():
        for edge in before[ptr[op] : ptr[op + 1]].tolist():
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


def values_of(program: Program, problem: Problem, place: IntArray, slot: IntArray) -> FloatArray:
    """The choices of a placement; the solver works out the times.

    Parameters
    ----------
    place : int array, shape (n_units,)
        Accelerator of each unit, or the last for the CPUs.
    slot : int array, shape (n_ops,)
        Which piece of its pass an op is in.
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


def placement_of(
    program: Program, values: FloatArray, problem: Problem
) -> tuple[IntArray, IntArray]:
    """Place of each unit and number of each op's piece on its accelerator, in order."""
    place = np.argmax(values[program.where], axis=1)
    n_ops, n_gpus = program.here.shape[:2]
    chosen = np.where(program.here >= 0, values[program.here], 0.0).reshape(n_ops, n_gpus, -1)
    at = np.minimum(place[problem.unit], n_gpus - 1)
    piece = np.argmax(chosen[np.arange(n_ops), at], axis=1)
    return place, piece
