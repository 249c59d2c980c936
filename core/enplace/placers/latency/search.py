"""The least latency by annealing and integer programming (Figs. 3 and 4)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from enplace.machine.host_links import send_us
from enplace.machine.latency import latency_us
from enplace.placers.latency.anneal import anneal
from enplace.placers.latency.evaluate import places_us
from enplace.placers.latency.greedy import greedy_places
from enplace.placers.latency.groups import Groups, build_groups, choose_devices, spread_places
from enplace.placers.latency.levels import anneal_by_levels, most_steps
from enplace.placers.latency.program import read_placement, write_program, write_solution
from enplace.placers.max_load.contiguity import unit_devices
from enplace.placers.max_load.table.contract import find_static_excess
from enplace.placers.max_load.table.dp import Partition, partition_along_order
from enplace.placing.incumbents import BETTER, Best, Incumbent, Report
from enplace.placing.options import PROGRAM_S
from enplace.placing.programs import ImprovingProgram, improve_by_program, repeated_aside
from enplace.placing.stop import Stop
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray

STEPS = 300_000
"""Steps of an annealing that is not by levels."""

ROUND_SHARE = 0.75
"""Share of the time limit that the annealings for one subgraph on each accelerator are to take on a
quiet core; on a busy one, the same annealings take longer. Where several subgraphs are allowed,
what is left is for these: seldom do they gain as much as a longer search with one."""

STEP_US, STEP_PIN_US = 1.0, 0.0025
"""Time of an annealing step, and time more for each op and for each end of an edge."""

EVERY = 3
"""Of so many annealings, all but one are by levels."""

SMALL = 200
"""With fewer choices of a place for an op, the program alone is faster."""

MOST_CHOICES = 50_000
"""With more choices of a subgraph for an op, writing the program takes too long."""

_SEEDS_APART = 1 << 32
"""More than any seed that people choose, so that runs of different seeds differ."""


def place_greedily(problem: Problem) -> IntArray:
    """Find the device of each op by the greedy baseline of section 7; shape (n_ops,)."""
    groups = build_groups(problem)
    place = greedy_places(groups)
    able = groups.allowed[np.arange(groups.n_groups), place]
    # Units that depend on each other both ways but are pinned apart cannot share any device.
    place[~able] = np.argmax(groups.allowed[~able], axis=1)
    return choose_devices(problem, spread_places(groups, place))


def search_latency(
    problem: Problem,
    stop: Stop,
    q: int = 1,
    seed: int = 0,
    solver: str = "HiGHS",
    report: Report = lambda _: None,
) -> Incumbent:
    """Find the placement with the least latency.

    The greedy placement is annealed by levels, and the integer program continues from the result.
    Meanwhile, short annealings follow each other on another core, most from the best placement so
    far. With one subgraph, their number follows from the time limit, not from the clock.

    With several subgraphs, the search with one comes first, with the same annealings, and its
    placement is where the search with several begins. So however busy the machine is, the second
    search makes no less of them than the first one alone.

    Parameters
    ----------
    q : int
        Subgraphs of each accelerator in each pass: 1 for Fig. 3, more for Fig. 4.
    """
    groups = build_groups(problem)
    search = _Search(problem, groups, stop, report, q)
    if q == 1 or groups.op_us.size < SMALL:
        return search.run(seed, solver)
    over = threading.Event()
    first = _Search(problem, groups, stop.when(over.is_set), lambda _: None, 1)
    contiguous = first.run(seed, solver, over.set)
    search.offer(_places_of(problem, groups, contiguous))
    # The program may put a group on several devices, which places do not tell.
    search.offer_devices(contiguous)
    return search.run(seed, solver)


def count_rounds(groups: Groups, limit_s: float) -> int:
    """Return how many annealings for one subgraph a time limit is worth, at least one."""
    step_us = STEP_US + STEP_PIN_US * (groups.n_ops + len(groups.hyperedge_op))
    return max(1, int(ROUND_SHARE * limit_s * 1e6 / (most_steps(groups) * step_us)))


def _pipeline_places(problem: Problem, groups: Groups, stopped: Callable[[], bool]) -> IntArray:
    """Return the places of the best pipeline along one order, a baseline of section 7."""
    return _places_of(problem, groups, partition_along_order(problem, stopped=stopped))


def _places_of(problem: Problem, groups: Groups, found: Partition | Incumbent) -> IntArray:
    """Return the places of the groups of a placement with one subgraph on each accelerator."""
    cluster = problem.cluster
    place_of = np.full(cluster.n_devices, groups.cpu)
    place_of[cluster.gpus] = np.arange(len(cluster.gpus))
    place = np.zeros((groups.n_groups, 2), dtype=np.int64)
    # If a group is on several devices, its last op decides.
    place[groups.group, 0] = place_of[found.device[groups.op]]
    return place


class _Search:
    """The best of a search whose placements are by group."""

    def __init__(
        self, problem: Problem, groups: Groups, stop: Stop, report: Report, q: int
    ) -> None:
        self._problem, self._groups, self._stop, self._q = problem, groups, stop, q
        anywhere = np.argmin(np.where(problem.unit_allowed, 0, 1), axis=1)[problem.unit]
        subgraph = np.zeros(problem.profile.n_ops, dtype=np.int64)
        first = Incumbent(anywhere, np.inf, 0.0, subgraph=subgraph)
        self._best = Best(first, lambda found, _: report(found), BETTER)
        self._of_op: IntArray | None = None
        self.place: IntArray | None = None  # of each group, in the best placement by groups

    def run(self, seed: int, solver: str, end: Callable[[], None] = lambda: None) -> Incumbent:
        """Anneal, and run the integer program; return the best placement.

        Parameters
        ----------
        end : callable
            Called after the last annealing; it may end the program, too.
        """
        problem, groups, stop, q = self._problem, self._groups, self._stop, self._q
        start = np.zeros((groups.n_groups, 2), dtype=np.int64)
        start[:, 0] = greedy_places(groups)
        if not self.has_found:
            self.offer(start)
            self.offer(_pipeline_places(problem, groups, stop))
        if groups.op_us.size < SMALL or not self.has_found:
            return self.solve(solver)
        start = start if self.place is None else self.place
        self.offer(anneal_by_levels(groups, start, q, stop, seed))
        # Of these annealings only, so that each begins where it does on any other machine.
        best = start if self.place is None else self.place
        n_rounds = count_rounds(groups, stop.limit_s or PROGRAM_S) if q == 1 else None

        def again(number: int, stopped: Callable[[], bool]) -> IntArray:
            nonlocal best
            # Runs with several subgraphs alternate with runs with one: where several are allowed,
            # good placements that use only one are hard to find.
            n_slots, apart = q if number % 2 else 1, seed + number * _SEEDS_APART
            if number % EVERY == 0:
                found = anneal(groups, start, n_slots, STEPS, stopped, apart)
            else:
                usable = best if best[:, 1].max() < n_slots else start
                found = anneal_by_levels(groups, usable, n_slots, stopped, apart)
            if places_us(groups, found, q) < places_us(groups, best, q):
                best = found
            if number == n_rounds:
                end()
            return found

        with repeated_aside(again, stop, self.offer, n_rounds) as take_others:
            why = self.solve(solver, take_others).why
        take_others()
        return replace(self._best.found, why=why)

    @property
    def has_found(self) -> bool:
        """Whether there is a placement that fits."""
        return self._best.found.fits

    def offer(self, place: IntArray) -> bool:
        """Keep places of groups, shape (n_groups, 2), if they improve; return whether they do."""
        groups, best_us = self._groups, self._best.found.objective_us
        held = np.bincount(place[:, 0], groups.group_bytes, len(groups.capacity_bytes))
        allowed = groups.allowed[np.arange(groups.n_groups), place[:, 0]].all()
        if not allowed or (held > groups.capacity_bytes).any():
            return False
        if places_us(groups, place, self._q) >= best_us * (1 - 1e-9):
            return False
        of_op = spread_places(groups, place)
        better = self._offer_devices(choose_devices(self._problem, of_op[:, 0]), of_op[:, 1])
        if better:
            self._of_op, self.place = of_op, place
        return better

    def offer_devices(self, found: Incumbent) -> None:
        """Keep the answer of another search if it fits and is better."""
        if found.fits and found.subgraph is not None:
            self._offer_devices(found.device, found.subgraph)

    def _offer_devices(self, device: IntArray, subgraph: IntArray) -> bool:
        """Keep a placement if the independent evaluator finds it better."""
        us = latency_us(self._problem, device, subgraph)
        found = replace(self._best.found, device=device, objective_us=us, subgraph=subgraph)
        return self._best.offer(found)

    def solve(self, solver: str, take_others: Callable[[], None] = lambda: None) -> Incumbent:
        """Continue with the integer program; meanwhile, take the results of other searches."""
        best = self._best.found
        choices = self._groups.op_us.size * self._q
        if choices > MOST_CHOICES:
            why = f"{choices:,} choices are too many for the integer program: only annealing ran"
            return replace(best, why=why)
        if self._stop():
            return best
        answer = improve_by_program(self._best, self._write, self._stop, solver, take_others)
        why = f"{solver}: {answer.why}" if answer.why else ""
        return replace(self._best.found, why=why)

    def _write(self) -> ImprovingProgram:
        """Write the program for the current incumbent."""
        problem, enough_us = self._problem, _serial_us(self._problem)
        if self.has_found:
            enough_us = max(1.001 * self._best.found.objective_us, 1e-3)
        program = write_program(problem, self._q, enough_us)
        start = None
        if self._of_op is not None:
            unit_place = unit_devices(problem, self._of_op[:, 0])
            start = write_solution(program, problem, unit_place, self._of_op[:, 1])

        def offer(values: FloatArray) -> None:
            place, subgraph = read_placement(program, values, problem)
            device = choose_devices(problem, place[problem.unit])
            # Solvers tolerate slightly more than the memory.
            if find_static_excess(problem, device) == 0:
                self._offer_devices(device, subgraph)

        return ImprovingProgram(program.model, start, enough_us, offer)


def _serial_us(problem: Problem) -> float:
    """Bound every latency from above: everything in sequence, every tensor sent everywhere."""
    work = np.where(np.isfinite(problem.time_us), problem.time_us, 0.0).max(axis=1).sum()
    ends = problem.profile.n_tensors + problem.profile.n_edges
    return float(work + send_us(problem).max(initial=0.0) * ends) + 1.0
