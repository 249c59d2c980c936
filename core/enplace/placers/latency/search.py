"""The least latency by annealing and integer programming (Figs. 3 and 4)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from enplace.bounds.latency import least_latency_us
from enplace.coarsen.grouped import op_memory_bytes
from enplace.machine.host_links import send_us
from enplace.machine.latency import latency_us
from enplace.placers.latency.anneal import anneal
from enplace.placers.latency.evaluate import places_us
from enplace.placers.latency.greedy import greedy_places
from enplace.placers.latency.groups import (
    Groups,
    build_groups,
    choose_devices,
    place_of_devices,
    spread_places,
)
from enplace.placers.latency.levels import anneal_by_levels, most_steps
from enplace.placers.latency.program import (
    Memory,
    known_memory,
    read_placement,
    write_program,
    write_solution,
)
from enplace.placers.max_load.contiguity import unit_devices
from enplace.placers.max_load.table.caveats import outputs_decide
from enplace.placers.max_load.table.contract import with_larger_gpus
from enplace.placers.max_load.table.dp import Partition, partition_along_order
from enplace.placing.incumbents import BETTER, Best, Incumbent, Report
from enplace.placing.options import PROGRAM_S
from enplace.placing.programs import ImprovingProgram, improve_by_program, repeated_aside
from enplace.placing.small import find_order
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

COUNTED_SHARE = 0.5
"""Share of the time for a program that counts all outputs at once, where they decide what fits."""

MOST_REFUSED = 100
"""Placements that do not fit after which no further program is written without them."""

_SEEDS_APART = 1 << 32
"""More than any seed that people choose, so that runs of different seeds differ."""


def place_greedily(problem: Problem) -> IntArray:
    """Find the device of each op by the greedy baseline of section 7; shape (n_ops,)."""
    groups = build_groups(problem)
    place = greedy_places(groups)
    able = groups.allowed[np.arange(groups.n_groups), place]
    # Units that depend on each other both ways but are pinned apart cannot share any device.
    place[~able] = np.argmax(groups.allowed[~able], axis=1)
    device = choose_devices(problem, spread_places(groups, place))
    allowed = problem.unit_allowed[problem.unit]
    refused = ~allowed[np.arange(len(device)), device]
    device[refused] = np.argmax(allowed[refused], axis=1)
    return device


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

    A placement fits if a step of it does in some order. Where that takes less memory than all
    outputs at once, annealings count a share of the outputs, and there are two programs. The first
    counts all outputs. The second counts what every plan needs, so its bound holds for all; if its
    answer does not fit, it is solved again without that placement.

    With several subgraphs, the search with one comes first, with the same annealings, and its
    placement is where the search with several begins. So however busy the machine is, the second
    search makes no less of them than the first one alone.

    Parameters
    ----------
    q : int
        Subgraphs of each accelerator in each pass: 1 for Fig. 3, more for Fig. 4.
    """
    groups = build_groups(with_larger_gpus(problem)[0])
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
    place = np.zeros((groups.n_groups, 2), dtype=np.int64)
    # If a group is on several devices, its last op decides.
    place[groups.group, 0] = place_of_devices(problem.cluster)[found.device[groups.op]]
    return place


class _Search:
    """The best of a search whose placements are by group."""

    def __init__(
        self, problem: Problem, groups: Groups, stop: Stop, report: Report, q: int
    ) -> None:
        self._problem, self._groups, self._stop, self._q = problem, groups, stop, q
        anywhere = np.argmin(np.where(problem.unit_allowed, 0, 1), axis=1)[problem.unit]
        subgraph = np.zeros(problem.profile.n_ops, dtype=np.int64)
        bound_us = least_latency_us(problem)
        first = Incumbent(anywhere, np.inf, bound_us, subgraph=subgraph, excess_bytes=np.inf)
        self._best = Best(first, lambda found, _: report(found), BETTER)
        self._of_op: IntArray | None = None
        self.place: IntArray | None = None  # of each group, in the best placement by groups
        self._outputs_decide = outputs_decide(problem)
        self._known = known_memory(problem)
        # Placements of the units that do not fit, and whether that is certain of any order.
        self._refused: dict[bytes, tuple[IntArray, bool]] = {}

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
            self.offer(_pipeline_places(with_larger_gpus(problem)[0], groups, stop))
        if groups.op_us.size < SMALL or (self.place is None and not self.has_found):
            return self.solve(solver)
        start = start if self.place is None else self.place
        self.offer(anneal_by_levels(self._around(start), start, q, stop, seed))
        # Of these annealings only, so that each begins where it does on any other machine.
        best = start if self.place is None else self.place
        n_rounds = count_rounds(groups, stop.limit_s or PROGRAM_S) if q == 1 else None

        def again(number: int, stopped: Callable[[], bool]) -> IntArray:
            nonlocal best
            # Runs with several subgraphs alternate with runs with one: where several are allowed,
            # good placements that use only one are hard to find.
            n_slots, apart = q if number % 2 else 1, seed + number * _SEEDS_APART
            if number % EVERY == 0:
                found = anneal(self._around(start), start, n_slots, STEPS, stopped, apart)
            else:
                usable = best if best[:, 1].max() < n_slots else start
                around = self._around(usable, np.random.default_rng(apart).random())
                found = anneal_by_levels(around, usable, n_slots, stopped, apart)
            if self._outputs_decide:  # what is found need not fit
                best = start if self.place is None else self.place
            elif places_us(groups, found, q) < places_us(groups, best, q):
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
        if not allowed or ((held > groups.capacity_bytes).any() and not self._outputs_decide):
            return False
        if self.has_found and places_us(groups, place, self._q) >= best_us * (1 - BETTER):
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
        """Keep a placement that the independent evaluator finds better, and the simulator too."""
        best, us = self._best.found, latency_us(self._problem, device, subgraph)
        if np.isinf(us) or (best.fits and us >= best.objective_us * (1 - BETTER)):
            return False
        made, is_certain = find_order(self._problem, device)
        if not made.fits:
            place, is_alone = self._place_of_units(device), len(self._problem.cluster.cpus) < 2
            self._refused[place.tobytes()] = place, is_certain and is_alone
        found = replace(
            best,
            device=device,
            objective_us=us,
            subgraph=subgraph,
            excess_bytes=float(made.excess_bytes),
        )
        return self._best.offer(found)

    def _place_of_units(self, device: IntArray) -> IntArray:
        of_unit = unit_devices(self._problem, device)
        return place_of_devices(self._problem.cluster)[of_unit]

    def _around(self, place: IntArray, share: float = 1.0) -> Groups:
        """Return the groups for annealing from given places.

        If the outputs decide what fits, they have room for these places, and only a share of the
        outputs counts.
        """
        groups = self._groups
        if not self._outputs_decide:
            return groups
        weights = np.zeros(groups.n_groups)
        np.add.at(weights, groups.group, self._problem.profile.persistent_bytes[groups.op])
        mixed = (weights + share * (groups.group_bytes - weights)).astype(np.int64)
        held = np.bincount(place[:, 0], mixed, len(groups.capacity_bytes))
        room = np.maximum(groups.capacity_bytes, held)
        return replace(groups, group_bytes=mixed, capacity_bytes=room)

    def solve(self, solver: str, take_others: Callable[[], None] = lambda: None) -> Incumbent:
        """Continue with the integer program; meanwhile, take the results of other searches."""
        best = self._best.found
        choices = self._groups.op_us.size * self._q
        if choices > MOST_CHOICES:
            why = f"{choices:,} choices are too many for the integer program: only annealing ran"
            return replace(best, why=why)
        if self._outputs_decide:
            self._solve_one(self._counted(), self._stop.within(COUNTED_SHARE), solver, take_others)
        why = self._solve_one(self._known, self._stop, solver, take_others)
        return replace(self._best.found, why=f"{solver}: {why}" if why else "")

    def _solve_one(
        self, memory: Memory, stop: Stop, solver: str, take_others: Callable[[], None]
    ) -> str:
        """Solve a program, again without the placements that do not fit; return what failed.

        Those that may fit in an order that was not tried are left out last, when nothing more can
        be proven.
        """
        why, leaves_all = "", memory is not self._known
        while not (stop() or self._best.found.proven):
            left_out = self._left_out(leaves_all)
            limited = memory._replace(refused=left_out)
            bounds_all = memory is self._known and not leaves_all
            answer = improve_by_program(
                self._best, partial(self._write, limited, bounds_all), stop, solver, take_others
            )
            why = answer.why
            if answer.status != "optimal" or len(self._refused) > MOST_REFUSED:
                break
            if len(self._left_out(leaves_all)) == len(left_out):
                if leaves_all:
                    break
                leaves_all = True
        return why

    def _left_out(self, leaves_all: bool) -> tuple[IntArray, ...]:
        """Return the placements that do not fit, or only those that certainly do not."""
        return tuple(place for place, surely in self._refused.values() if surely or leaves_all)

    def _counted(self) -> Memory:
        """Count all variables and outputs at once, with room for the best placement that fits."""
        problem, capacity = self._problem, self._groups.capacity_bytes
        counted, no_more = op_memory_bytes(problem), np.zeros_like(self._known.working_bytes)
        if self.has_found:
            place = self._place_of_units(self._best.found.device)[problem.unit]
            capacity = np.maximum(capacity, np.bincount(place, counted, len(capacity)))
        return Memory(counted, no_more, capacity)

    def _write(self, memory: Memory, bounds_all: bool) -> ImprovingProgram:
        """Write the program for the current incumbent."""
        problem, enough_us = self._problem, _serial_us(self._problem)
        if self.has_found:
            enough_us = max(1.001 * self._best.found.objective_us, 1e-3)
        program = write_program(problem, self._q, enough_us, memory)
        start = None
        if self._of_op is not None and self.has_found:
            unit_place = unit_devices(problem, self._of_op[:, 0])
            start = write_solution(program, problem, unit_place, self._of_op[:, 1])

        def offer(values: FloatArray) -> None:
            place, subgraph = read_placement(program, values, problem)
            self._offer_devices(choose_devices(problem, place[problem.unit]), subgraph)

        return ImprovingProgram(program.model, start, enough_us, offer, bounds_all)


def _serial_us(problem: Problem) -> float:
    """Bound every latency from above: everything in sequence, every tensor sent everywhere."""
    work = np.where(np.isfinite(problem.time_us), problem.time_us, 0.0).max(axis=1).sum()
    ends = problem.profile.n_tensors + problem.profile.n_edges
    return float(work + send_us(problem).max(initial=0.0) * ends) + 1.0
