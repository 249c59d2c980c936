"""Pesto's integer program for placement and schedule (Hafeez et al. 2021, section 3.2.2).

Equation 10 is used as its proof requires: M_s is subtracted, not added (as printed, a pair in the
other order could never be feasible). Where the paper leaves the choice open, this is what we do:

- The GPU of a vertex is written in binary (section 3.2.2, the extension to more GPUs). For each GPU
  there is a variable that is 1 exactly if the bits form its number. With two GPUs it is the paper's
  x or 1 - x, and the XOR of equation 5 is the same as there. This allows each link to have its own
  transfer times.
- Vertices that need a CPU are on the first one, as are kernel ops (equation 10's last sentence).
  As in the paper, a CPU runs one op at a time.
- A transfer between two vertices carries all tensors between them, with one latency for each.
- Pairs whose order follows from the graph need no variable. Memory is the sum of a vertex's
  variables and outputs, compared with the capacity of each device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from enplace.coarsen import GroupedGraph, group_graph
from enplace.linear import Model, ModelBuilder
from enplace.values.arrays import inverse
from enplace.values.plan import Plan
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class PestoProgram:
    """The ILP of a coarse problem, and its variables.

    Attributes
    ----------
    start, finish : int arrays, shape (n_vertices + n_edges,)
        Variables S and C of equation 2, first of the vertices, then of the transfers between them.
    bit : int array, shape (n_vertices, n_bits)
        Variables x of equation 9.
    on : int array, shape (n_vertices, n_devices)
        Whether a vertex is on a device.
    either, choice : int arrays, shapes (n_either,) and (n_either, n_devices)
        Vertices whose device is not written in bits, and their variables.
    pairs, first_goes : int arrays, shapes (n_pairs, 2) and (n_pairs,)
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
    first_goes: IntArray

    def plan(self, values: FloatArray) -> Plan:
        """Read the placement and order of a solution."""
        n = self.graph.n_groups
        device = np.argmax(values[self.on], axis=1).astype(np.int64)
        start = values[self.start[:n]].copy()
        for vertex in self.problem.profile.topological_order.tolist():
            # Because of rounding errors, a solver may return a start that is too early.
            before = self.graph.source[self.graph.target == vertex]
            start[vertex] = max(start[vertex], start[before].max(initial=0.0))
        natural = inverse(self.problem.profile.topological_order)
        order = np.lexsort((natural, start))
        return Plan(device, inverse(order), "pesto", policy="strict", links="fifo")

    def values(self, plan: Plan) -> FloatArray:
        """Write a plan as a solution: vertices in order, transfers first come, first served."""
        graph, cluster = self.graph, self.problem.cluster
        n, k = graph.n_groups, cluster.n_devices
        values = np.zeros(self.model.n_variables)
        start, finish = np.zeros(len(self.start)), np.zeros(len(self.start))
        free, busy = np.zeros(k), np.zeros((k, k))
        send_us = _send_us(self.problem, graph)
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
                    finish[n + edge] = start[n + edge] + send_us[edge, d, to]
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
        values[self.first_goes] = earlier
        return values


def _send_us(problem: Problem, graph: GroupedGraph) -> FloatArray:
    """Compute the time of each transfer over each link; shape (n_edges, n_devices, n_devices)."""
    cluster = problem.cluster
    source, target = np.ogrid[: cluster.n_devices, : cluster.n_devices]
    each = np.s_[:, None, None]
    return cluster.transfer_us(graph.edge_bytes[each], source, target, graph.tensors[each])


class _Writer:
    """The program while it is written; each method adds the rows of some equations."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.n, self.k = problem.profile.n_ops, problem.cluster.n_devices
        self.graph = group_graph(problem, np.arange(self.n))
        self.send_us = _send_us(problem, self.graph)
        self.allowed = problem.unit_allowed[problem.unit]
        self.time_us = np.where(self.allowed, problem.time_us, 0.0)
        longest_us = (
            self.time_us.max(axis=1).sum() + self.send_us.max(axis=(1, 2), initial=0.0).sum()
        )
        self.big = float(longest_us) + 1.0
        n_edges, n_gpus = len(self.graph.source), len(problem.cluster.gpus)
        self.build = build = ModelBuilder()
        self.longest = int(build.variables(1, cost=1.0)[0])
        self.start = build.variables(self.n + n_edges, upper=self.big)
        self.finish = build.variables(self.n + n_edges, upper=self.big)
        self.on = build.variables(self.n, self.k, upper=np.where(self.allowed, 1.0, 0.0))
        n_bits = max(1, math.ceil(math.log2(n_gpus)))
        self.bit = build.variables(self.n, n_bits, upper=1.0, integral=True)

    def add_devices(self) -> tuple[IntArray, IntArray]:
        """Put a vertex on the GPU whose number its bits form, or on a CPU if it needs one (9).

        Vertices that may be on GPUs and CPUs, or on CPUs alone, choose their device directly.
        Return these vertices and their variables.
        """
        build, on, bit, gpus = self.build, self.on, self.bit, self.problem.cluster.gpus
        build.rows([(1.0, on[:, d]) for d in range(self.k)], 1.0, 1.0)
        may_gpu = self.allowed[:, gpus].any(axis=1)
        spelt = np.flatnonzero(may_gpu & ~self.allowed[:, self.problem.cluster.cpus].any(axis=1))
        for number, d in enumerate(gpus):
            for place in range(bit.shape[1]):
                if number >> place & 1:
                    build.rows([(1.0, on[spelt, d]), (-1.0, bit[spelt, place])], upper=0.0)
                else:
                    build.rows([(1.0, on[spelt, d]), (1.0, bit[spelt, place])], upper=1.0)
        either = np.setdiff1d(np.arange(self.n), spelt)
        choice = build.variables(len(either), self.k, upper=1.0, integral=True)
        if len(either):
            build.rows([(1.0, on[either]), (-1.0, choice)], 0.0, 0.0)
        return either, choice

    def add_colocation(self) -> None:
        """Put the vertices of a placement unit on the device of the first."""
        units, first = np.unique(self.problem.unit, return_index=True)
        first_of = first[np.searchsorted(units, self.problem.unit)]
        tied = np.flatnonzero(first_of != np.arange(self.n))
        for d in range(self.k):
            if len(tied):
                of_first = self.on[first_of[tied], d]
                self.build.rows([(1.0, self.on[tied, d]), (-1.0, of_first)], 0.0, 0.0)

    def add_times(self) -> None:
        """Add precedence, durations and the end of the step (1 to 3)."""
        build, start, finish, graph, n = self.build, self.start, self.finish, self.graph, self.n
        edges = n + np.arange(len(graph.source))
        if len(edges):
            build.rows([(1.0, start[edges]), (-1.0, finish[graph.source])], lower=0.0)
            build.rows([(1.0, start[graph.target]), (-1.0, finish[edges])], lower=0.0)
        terms = [(1.0, finish[:n]), (-1.0, start[:n])]
        work = [(-self.time_us[:, d], self.on[:, d]) for d in range(self.k)]
        build.rows([*terms, *work], 0.0, 0.0)
        build.rows([(1.0, np.full(n, self.longest)), (-1.0, finish[:n])], lower=0.0)

    def add_transfers(self) -> None:
        """Make a transfer take its time between two devices, and none on one (5, 6)."""
        build, start, finish, graph = self.build, self.start, self.finish, self.graph
        edges = self.n + np.arange(len(graph.source))
        if not len(edges):
            return
        build.rows([(1.0, finish[edges]), (-1.0, start[edges])], lower=0.0)
        for a, b in _pairs(self.k):
            took = self.send_us[:, a, b]
            ends = [(-took, self.on[graph.source, a]), (-took, self.on[graph.target, b])]
            build.rows([(1.0, finish[edges]), (-1.0, start[edges]), *ends], lower=-took)

    def add_contention(self, congestion: bool) -> tuple[IntArray, IntArray]:
        """Run vertices on a device (4) and transfers over a link (7) one after another.

        Return the pairs that may contend, and their variables.
        """
        graph, n, reach = self.graph, self.n, _reach(self.n, self.graph)
        one, other = _unordered(reach, np.arange(n), np.arange(n))
        e_one, e_other = _unordered(reach, graph.source, graph.target)
        first_goes = self.build.variables(len(one) + len(e_one), upper=1.0, integral=True)
        for d in range(self.k):
            both = np.flatnonzero(self.allowed[one, d] & self.allowed[other, d])
            u, v = one[both], other[both]
            self._separate(u, v, first_goes[both], [self.on[u, d], self.on[v, d]])
        can = self.allowed[graph.source][:, :, None] & self.allowed[graph.target][:, None, :]
        for a, b in _pairs(self.k) if congestion else []:
            both = np.flatnonzero(can[e_one, a, b] & can[e_other, a, b])
            u, v = e_one[both], e_other[both]
            here = [self.on[graph.source[edges], a] for edges in (u, v)]
            here += [self.on[graph.target[edges], b] for edges in (u, v)]
            self._separate(n + u, n + v, first_goes[len(one) + both], here)
        pairs = np.vstack([np.column_stack([one, other]), n + np.column_stack([e_one, e_other])])
        return pairs.astype(np.int64), first_goes

    def _separate(
        self, one: IntArray, other: IntArray, first_goes: IntArray, here: list[IntArray]
    ) -> None:
        """Keep a pair from overlapping if all of ``here`` are 1; ``first_goes`` orders it (10)."""
        if not len(one):
            return
        build, start, finish, big = self.build, self.start, self.finish, self.big
        slack = [(-big, variables) for variables in here]
        low = -big * len(here)
        build.rows([(1.0, start[one]), (-1.0, finish[other]), (big, first_goes), *slack], lower=low)
        build.rows(
            [(1.0, start[other]), (-1.0, finish[one]), (-big, first_goes), *slack], lower=low - big
        )

    def add_memory(self) -> None:
        """Keep the vertices of a device within its memory (8)."""
        for d in range(self.k):
            rows = np.zeros(self.n, dtype=np.int64)
            held = self.graph.memory_bytes / float(self.problem.cluster.capacity_bytes[d])
            self.build.sums(1, [(rows, held, self.on[:, d])], upper=1.0)


def write_program(problem: Problem, congestion: bool = True) -> PestoProgram:
    """Write the ILP of a problem whose ops are the vertices (constraints 1 to 9).

    Parameters
    ----------
    congestion : bool
        Whether a link carries one transfer at a time (constraint 7). The paper's Fig. 5 shows how
        much worse plans made without it are.
    """
    writer = _Writer(problem)
    either, choice = writer.add_devices()
    writer.add_colocation()
    writer.add_times()
    writer.add_transfers()
    pairs, first_goes = writer.add_contention(congestion)
    writer.add_memory()
    return PestoProgram(
        problem=problem,
        graph=writer.graph,
        model=writer.build.model(),
        longest=writer.longest,
        start=writer.start,
        finish=writer.finish,
        bit=writer.bit,
        on=writer.on,
        either=either,
        choice=choice,
        pairs=pairs,
        first_goes=first_goes,
    )


def most_rows(problem: Problem) -> int:
    """Return how many rows the program of a problem has at most, without writing it.

    Nearly all keep two vertices or two transfers from overlapping (constraints 4 and 7): their
    number grows with the square of the edges, so a dense graph needs a coarser one.
    """
    n, k = problem.profile.n_ops, problem.cluster.n_devices
    n_edges = len(group_graph(problem, np.arange(n)).source)
    return n * (n - 1) * k + n_edges * (n_edges - 1) * k * (k - 1)


def _pairs(k: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(k) for b in range(k) if a != b]


def _reach(n: int, graph: GroupedGraph) -> BoolArray:
    """Whether there is a path from one vertex to another or to itself; shape (n, n)."""
    reach = np.eye(n, dtype=bool)
    reach[graph.source, graph.target] = True
    while True:
        further = (reach.astype(np.float32) @ reach.astype(np.float32)) > 0
        if (further == reach).all():
            return reach
        reach = further


def _unordered(reach: BoolArray, first: IntArray, last: IntArray) -> tuple[IntArray, IntArray]:
    """Find the pairs of which neither must end before the other begins.

    Parameters
    ----------
    first, last : int arrays of one length
        Vertices at which each begins to depend on others, and after which others depend on it.
    """
    after = reach[last[:, None], first[None, :]]
    one, other = np.nonzero(np.triu(~after & ~after.T, 1))
    return one.astype(np.int64), other.astype(np.int64)
