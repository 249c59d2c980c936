"""Pesto (Hafeez et al., Middleware 2021): coarsen, then a 0-1 ILP for placement and schedule.

The ILP is that of section 3.2.2, with equation 10 as its proof needs it: M_s is subtracted, not
added (as printed, a pair in the other order could never be feasible). Where the paper leaves room,
this is what we do:

- Which GPU a vertex is on is spelt in binary (section 3.2.2, the extension to more GPUs). For each
  GPU there is a variable that is 1 exactly if the bits spell its number; with two GPUs it is the
  paper's x or 1 - x, and the XOR of equation 5 reads as it does there. Transfers may so have the
  times of their own link.
- What needs a CPU is on the first one, kernel ops (equation 10's last sentence) with them; a CPU
  does one thing at a time here, as in the paper.
- A transfer between two vertices carries all tensors between them, one latency for each.
- Pairs whose order the graph decides need no variable. Memory is the sum of a vertex's variables
  and outputs, against the capacity of each device.
- Free solvers do not get past some 50 vertices in the time that a person waits. With Gurobi or
  CPLEX the program has the paper's 200. With HiGHS it has :data:`FREE_TARGET`, which is too coarse
  to place well; so half of the time goes to the graph of 200 vertices, on which the default method
  looks for what the program would find there, and the better of the two is the plan. So it goes as
  well where Gurobi or CPLEX is installed and finds nothing, mostly for want of a licence.
- Vertices of hundreds of ops are left to TensorFlow's own scheduling (end of section 3.3).

The plan's details hold the results of the ILP, and its note puts them in words; the step time is
the simulator's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from enplace.coarsen import GroupedGraph, expand, group_graph, merge_batches
from enplace.machine import simulate
from enplace.placers.enplace.search import enplace
from enplace.placers.heft import heft
from enplace.placing.candidates import given_start
from enplace.placing.incumbents import is_better, report
from enplace.placing.moves import make_level
from enplace.placing.moves.steps import nearest
from enplace.placing.options import SOLVER, PlaceOptions, Progress
from enplace.placing.registry import WARM_START, placer
from enplace.placing.repair import relieve
from enplace.solvers.milp import Answer, installed, keeps_to, solve_milp
from enplace.solvers.model import Model, ModelBuilder
from enplace.text import ms
from enplace.values.plan import Plan, inverse
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray
from enplace.values.schedule import Schedule

TARGET, FREE_TARGET = 200, 40
"""Vertices of the coarse graph with a commercial solver (the paper's number), and with a free one.
"""

COMMERCIAL = ("Gurobi", "CPLEX")

DEFAULT_S = 60.0
"""Time for the solver where the person sets no limit; the paper took 24 to 51 minutes."""

SEARCH_S = 20.0
"""Most of it that goes to the search on 200 vertices."""

LARGE_VERTEX = 100
"""Ops in a vertex from which on TensorFlow schedules them."""


@placer(
    "pesto",
    title="Pesto, integer program",
    source="Pesto (Hafeez et al. 2021)",
    capabilities=("memory", "heterogeneous", "channels", "anytime", WARM_START),
    options=(SOLVER,),
)
def pesto(problem: Problem, options: PlaceOptions) -> Plan:
    """Coarsen, solve the ILP from the best list schedule, and carry the result over to the ops.

    A plan to go on from is where the ILP begins, as nearly as the vertices allow, and the plan to
    beat.
    """
    limit_s = DEFAULT_S if options.time_limit_s is None else options.time_limit_s
    usual = next((name for name in COMMERCIAL if installed(name)), "HiGHS")
    solver = options.solver_or(usual)
    given = given_start(problem, options, "pesto")
    best, note, details = _solved(problem, given, solver, limit_s, options)
    # Installed is not licensed, and a licence may be too small for 200 vertices.
    nothing = details["ilp_step_time_us"] is None and options.seconds < limit_s
    if nothing and not options.choice(SOLVER) and solver in COMMERCIAL and not options.cancelled():
        failed = note
        best, note, details = _solved(problem, best, "HiGHS", limit_s, options)
        note = f"{failed} {note}"
    return replace(best.plan, note=note, details=details)


def _solved(
    problem: Problem, best: Schedule | None, solver: str, limit_s: float, options: PlaceOptions
) -> tuple[Schedule, str, dict[str, Any]]:
    """The best schedule after a solver, and with a free one the search; a note and details."""
    free = solver not in COMMERCIAL
    vertex = merge_batches(problem, FREE_TARGET if free else TARGET)
    level = make_level(problem, vertex)
    coarse = level.problem
    starts = [heft(coarse, options.quiet)]
    if best is not None:
        starts.append(nearest(level, best.plan))
    first = relieve(simulate(problem, _spread(problem, vertex, starts[0])), options)
    if best is None or is_better(first, best):
        best = first
        report(best, options)
    program = make_program(coarse)
    # The shortest that the program has room for, which counts memory its own way.
    values = min(
        map(program.values, starts),
        key=lambda v: (not keeps_to(program.model, v), v[program.longest]),
    )
    searches = free and problem.profile.n_ops > coarse.profile.n_ops
    left_s = max(0.0, limit_s - options.seconds)
    program_s = max(left_s / 2, left_s - SEARCH_S) if searches else left_s

    def tell(answer: Answer) -> None:
        options.progress(
            Progress(
                options.seconds,
                f"{solver} on {coarse.profile.n_ops} vertices: "
                f"{answer.objective / 1e3:.1f} ms, not below {answer.bound / 1e3:.1f} ms",
                fraction=min(1.0, options.seconds / limit_s),
                engine=solver,
            )
        )

    answer = solve_milp(program.model, values, program_s, options.cancelled, tell, solver=solver)
    note = _note(solver, coarse, answer)
    if answer.values is not None:
        best = _better(problem, best, program.plan(answer.values), vertex, options, solver)
    if searches and not options.stopped:
        until_s = min(limit_s, options.seconds + SEARCH_S)
        best, more = _search(problem, best, replace(options, time_limit_s=until_s))
        note += more
    details = {
        "solver": solver,
        "solver_status": answer.status,
        "vertices": coarse.profile.n_ops,
        "variables": int(program.model.integral.sum()),
        "rows": program.model.n_rows,
        "ilp_step_time_us": answer.objective if math.isfinite(answer.objective) else None,
        "ilp_bound_us": answer.bound if math.isfinite(answer.bound) else None,
    }
    return best, note, details


def _note(solver: str, coarse: Problem, answer: Answer) -> str:
    """What became of the integer program, for a person."""
    note = f"The integer program on {coarse.profile.n_ops} vertices: "
    why = f" ({answer.why})" if answer.why else ""
    if answer.status == "optimal":
        return f"{note}{ms(answer.objective)}, proven optimal by {solver}."
    if answer.values is None:
        in_time = " in its time" if answer.status == "stopped" else ""
        return f"{note}{solver} found nothing{in_time}{why}."
    if not math.isfinite(answer.bound):
        return f"{note}{ms(answer.objective)} by {solver}, without a proof{why}."
    return f"{note}{ms(answer.objective)}, proven not below {ms(answer.bound)} by {solver}{why}."


def _search(problem: Problem, best: Schedule, options: PlaceOptions) -> tuple[Schedule, str]:
    """What the default method finds on the paper's vertices, if it is better; and a note on it."""
    vertex = merge_batches(problem, TARGET)
    level = make_level(problem, vertex)
    coarse = level.problem
    message = f"looking for a plan of {coarse.profile.n_ops} vertices"

    def tell(progress: Progress) -> None:
        options.progress(Progress(options.seconds, message, fraction=progress.fraction))

    plan = enplace(coarse, replace(options, progress=tell, start=nearest(level, best.plan)))
    found_us = simulate(coarse, plan).makespan_us
    better = _better(problem, best, plan, vertex, options, "search on vertices")
    note = f" Its {coarse.profile.n_ops} vertices, searched without a proof: {ms(found_us)}."
    return better, note


def _better(
    problem: Problem,
    best: Schedule,
    plan: Plan,
    vertex: IntArray,
    options: PlaceOptions,
    engine: str,
) -> Schedule:
    """The better of a schedule and what a plan of the vertices comes to."""
    schedule = simulate(problem, _spread(problem, vertex, plan))
    if not is_better(schedule, best):
        return best
    report(schedule, options, engine)
    return schedule


def _spread(problem: Problem, vertex: IntArray, plan: Plan) -> Plan:
    """Carry a plan of the vertices over to the ops."""
    spread = replace(expand(problem, vertex, plan), method="pesto", links="fifo")
    if np.bincount(vertex).max() >= LARGE_VERTEX:
        return replace(spread, policy="fifo")
    return replace(spread, policy="strict")


@dataclass(frozen=True, eq=False)
class Program:
    """The ILP of a coarse problem, and where its variables are.

    Attributes
    ----------
    start, finish : int arrays, shape (n_vertices + n_edges,)
        Variables S and C of equation 2, of the vertices and then of the transfers between them.
    bit : int array, shape (n_vertices, n_bits)
        Variables x of equation 9.
    on : int array, shape (n_vertices, n_devices)
        Whether a vertex is on a device.
    either, choice : int arrays, shapes (n_either,) and (n_either, n_devices)
        Vertices that are not spelt in bits, and their variables.
    pairs, turn : int arrays, shapes (n_pairs, 2) and (n_pairs,)
        Vertices or transfers that may contend, and their variables delta: 1 if the first of the
        pair goes first.
    """

    problem: Problem
    graph: GroupedGraph
    model: Model
    longest: int
    start: IntArray
    finish: IntArray
    bit: IntArray
    on: IntArray
    either: IntArray
    choice: IntArray
    pairs: IntArray
    turn: IntArray

    def plan(self, values: FloatArray) -> Plan:
        """Placement and order that a solution stands for."""
        n = self.graph.n_groups
        device = np.argmax(values[self.on], axis=1).astype(np.int64)
        start = values[self.start[:n]].copy()
        for vertex in self.problem.profile.topological_order.tolist():
            # A solver is content with a start that is a rounding error too early.
            before = self.graph.source[self.graph.target == vertex]
            start[vertex] = max(start[vertex], start[before].max(initial=0.0))
        natural = inverse(self.problem.profile.topological_order)
        order = np.lexsort((natural, start))
        return Plan(device, inverse(order), "pesto", policy="strict", links="fifo")

    def values(self, plan: Plan) -> FloatArray:
        """A solution that stands for a plan: each vertex in its order, each transfer in turn."""
        graph, cluster = self.graph, self.problem.cluster
        n, k = graph.n_groups, cluster.n_devices
        values = np.zeros(self.model.n_variables)
        start, finish = np.zeros(len(self.start)), np.zeros(len(self.start))
        free, busy = np.zeros(k), np.zeros((k, k))
        into = [np.flatnonzero(graph.target == vertex) for vertex in range(n)]
        out = [np.flatnonzero(graph.source == vertex) for vertex in range(n)]
        for vertex in np.argsort(plan.position).tolist():
            d = plan.device[vertex]
            arrived = max((finish[n + edge] for edge in into[vertex].tolist()), default=0.0)
            start[vertex] = max(free[d], arrived)
            finish[vertex] = free[d] = start[vertex] + graph.time_us[vertex, d]
            for edge in out[vertex].tolist():
                to = plan.device[graph.target[edge]]
                start[n + edge] = finish[n + edge] = finish[vertex]
                if to != d:
                    start[n + edge] = max(finish[vertex], busy[d, to])
                    finish[n + edge] = start[n + edge] + _send_us(self.problem, graph)[edge, d, to]
                    busy[d, to] = finish[n + edge]
        values[self.start], values[self.finish] = start, finish
        values[self.longest] = finish.max()
        values[self.on[np.arange(n), plan.device]] = 1.0
        values[self.choice] = values[self.on[self.either]]
        number = np.searchsorted(cluster.gpus, plan.device)
        values[self.bit] = (number[:, None] >> np.arange(self.bit.shape[1])) & 1
        one, other = self.pairs.T
        earlier = (start[one] < start[other]) | (
            (start[one] == start[other]) & (finish[one] <= start[other])
        )
        values[self.turn] = earlier
        return values


def _send_us(problem: Problem, graph: GroupedGraph) -> FloatArray:
    """Time of each transfer over each link; shape (n_edges, n_devices, n_devices)."""
    cluster = problem.cluster
    latency = cluster.b0_us * graph.tensors[:, None, None]
    return latency + cluster.b1_us_per_byte * graph.edge_bytes[:, None, None]


def make_program(problem: Problem, congestion: bool = True) -> Program:
    """Write the ILP of a problem whose ops are the vertices (constraints 1 to 9).

    Parameters
    ----------
    congestion : bool
        Whether a link carries one transfer at a time (constraint 7). The paper's Fig. 5 shows what
        becomes of plans made without it.
    """
    profile, cluster = problem.profile, problem.cluster
    n, k, gpus = profile.n_ops, cluster.n_devices, np.array(cluster.gpus)
    graph = group_graph(problem, np.arange(n))
    send_us = _send_us(problem, graph)
    allowed = problem.unit_allowed[problem.unit]
    time_us = np.where(allowed, problem.time_us, 0.0)
    big = float(time_us.max(axis=1).sum() + send_us.max(axis=(1, 2), initial=0.0).sum()) + 1.0
    build = ModelBuilder()
    longest = int(build.variables(1, cost=1.0)[0])
    start = build.variables(n + len(graph.source), upper=big)
    finish = build.variables(n + len(graph.source), upper=big)
    on = build.variables(n, k, upper=np.where(allowed, 1.0, 0.0))
    n_bits = max(1, math.ceil(math.log2(len(gpus))))
    bit = build.variables(n, n_bits, upper=1.0, integral=True)

    # (9): a vertex is on the GPU whose number its bits spell, or on a CPU if it can only be there.
    build.rows([(1.0, on[:, d]) for d in range(k)], 1.0, 1.0)
    free = np.flatnonzero(allowed[:, gpus].any(axis=1) & ~allowed[:, cluster.cpus].any(axis=1))
    for number, d in enumerate(gpus.tolist()):
        for place in range(n_bits):
            if number >> place & 1:
                build.rows([(1.0, on[free, d]), (-1.0, bit[free, place])], upper=0.0)
            else:
                build.rows([(1.0, on[free, d]), (1.0, bit[free, place])], upper=1.0)
    # What may be on GPUs and CPUs, or on CPUs alone, chooses its device directly.
    either = np.setdiff1d(np.arange(n), free)
    choice = build.variables(len(either), k, upper=1.0, integral=True)
    if len(either):
        build.rows([(1.0, on[either]), (-1.0, choice)], 0.0, 0.0)
    units, first = np.unique(problem.unit, return_index=True)
    tied = np.flatnonzero(first[np.searchsorted(units, problem.unit)] != np.arange(n))
    for d in range(k):
        if len(tied):
            of_first = on[first[np.searchsorted(units, problem.unit[tied])], d]
            build.rows([(1.0, on[tied, d]), (-1.0, of_first)], 0.0, 0.0)

    # (1) to (3): precedence, durations, the end.
    edges = n + np.arange(len(graph.source))
    if len(edges):
        build.rows([(1.0, start[edges]), (-1.0, finish[graph.source])], lower=0.0)
        build.rows([(1.0, start[graph.target]), (-1.0, finish[edges])], lower=0.0)
    terms = [(1.0, finish[:n]), (-1.0, start[:n])]
    build.rows([*terms, *((-time_us[:, d], on[:, d]) for d in range(k))], 0.0, 0.0)
    build.rows([(1.0, np.full(n, longest)), (-1.0, finish[:n])], lower=0.0)

    # (5) and (6): a transfer takes its time if its ends are on two devices, and none if on one.
    if len(edges):
        build.rows([(1.0, finish[edges]), (-1.0, start[edges])], lower=0.0)
        for a, b in _pairs(k):
            took = send_us[:, a, b]
            ends = [(-took, on[graph.source, a]), (-took, on[graph.target, b])]
            build.rows([(1.0, finish[edges]), (-1.0, start[edges]), *ends], lower=-took)

    # (4): vertices on one device, and (7): transfers over one link, one after the other.
    reach = _reach(n, graph)
    one, other = _unordered(reach, np.arange(n), np.arange(n))
    e_one, e_other = _unordered(reach, graph.source, graph.target)
    turn = build.variables(len(one) + len(e_one), upper=1.0, integral=True)
    for d in range(k):
        both = np.flatnonzero(allowed[one, d] & allowed[other, d])
        u, v = one[both], other[both]
        _one_after_the_other(build, start, finish, u, v, turn[both], [on[u, d], on[v, d]], big)
    can = allowed[graph.source][:, :, None] & allowed[graph.target][:, None, :]
    for a, b in _pairs(k) if congestion else []:
        both = np.flatnonzero(can[e_one, a, b] & can[e_other, a, b])
        u, v = e_one[both], e_other[both]
        here = [on[graph.source[edges], a] for edges in (u, v)]
        here += [on[graph.target[edges], b] for edges in (u, v)]
        _one_after_the_other(build, start, finish, n + u, n + v, turn[len(one) + both], here, big)

    # (8): memory.
    for d in range(k):
        rows = np.zeros(n, dtype=np.int64)
        held = graph.memory_bytes / float(cluster.capacity_bytes[d])
        build.sums(1, [(rows, held, on[:, d])], upper=1.0)
    pairs = np.vstack([np.column_stack([one, other]), n + np.column_stack([e_one, e_other])])
    return Program(
        problem=problem,
        graph=graph,
        model=build.model(),
        longest=longest,
        start=start,
        finish=finish,
        bit=bit,
        on=on,
        either=either,
        choice=choice,
        pairs=pairs.astype(np.int64),
        turn=turn,
    )


def _pairs(k: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(k) for b in range(k) if a != b]


def _reach(n: int, graph: GroupedGraph) -> BoolArray:
    """Whether there is a path between two vertices, each to itself included; shape (n, n)."""
    reach = np.eye(n, dtype=bool)
    reach[graph.source, graph.target] = True
    while True:
        further = (reach.astype(np.float32) @ reach.astype(np.float32)) > 0
        if (further == reach).all():
            return reach
        reach = further


def _unordered(reach: BoolArray, first: IntArray, last: IntArray) -> tuple[IntArray, IntArray]:
    """Pairs of which neither must end before the other begins.

    Parameters
    ----------
    first, last : int arrays of one length
        Vertices at which each begins to depend on others, and after which others depend on it.
    """
    after = reach[last[:, None], first[None, :]]
    one, other = np.nonzero(np.triu(~after & ~after.T, 1))
    return one.astype(np.int64), other.astype(np.int64)


def _one_after_the_other(
    build: ModelBuilder,
    start: IntArray,
    finish: IntArray,
    one: IntArray,
    other: IntArray,
    turn: IntArray,
    here: list[IntArray],
    big: float,
) -> None:
    """Equation 10: if all of ``here`` are 1, one ends before the other starts, as ``turn`` says."""
    if not len(one):
        return
    slack = [(-big, variables) for variables in here]
    low = -big * len(here)
    build.rows([(1.0, start[one]), (-1.0, finish[other]), (big, turn), *slack], lower=low)
    build.rows([(1.0, start[other]), (-1.0, finish[one]), (-big, turn), *slack], lower=low - big)
