"""The least maximum load by annealing and integer programming (section 5.1.3, Fig. 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from enplace.placers.max_load.contiguity import Pass, find_passes, is_contiguous, unit_devices
from enplace.placers.max_load.memory.fitting import find_fitting
from enplace.placers.max_load.memory.in_flight import count_samples, find_pace_us, samples_matter
from enplace.placers.max_load.search.anneal import anneal, refine
from enplace.placers.max_load.search.hypergraph import (
    Hypergraph,
    build_hypergraph,
    held_bytes,
    time_per_sample_us,
    with_samples,
)
from enplace.placers.max_load.search.levels import anneal_by_levels
from enplace.placers.max_load.search.program import read_placement, write_program, write_solution
from enplace.placers.max_load.table.dp import Partition
from enplace.placing.incumbents import BETTER, PROVEN_GAP, Best, Incumbent, Report
from enplace.placing.programs import ImprovingProgram, improve_by_program, repeated_aside
from enplace.placing.stop import Stop
from enplace.solvers.milp import quickest_solver
from enplace.values.load_rule import PAPER, LoadRule
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray

SMALL = 200
"""With fewer choices of a device for a unit, the program alone is faster."""

DP_SHARE = 0.25
"""Share of the time for the dynamic program; the other searches continue from its partition."""

CONTIGUOUS_SHARE = 0.15
"""Share of the time left for the contiguous program, whose answer is a placement too."""

EVERY = 4
"""Of so many annealings, one begins with the first placement again, one refines the best placement
at low temperatures, and the others go by levels."""

ONE_SAMPLE_SHARE = 0.3
"""Share of the time for the program that counts one sample, if there are more in flight."""

FEW_PLACEMENTS = 5_000
"""If samples in flight matter, so many placements are all simulated: no program counts exactly."""

Accepts = Callable[[IntArray], bool]
"""Says whether a placement of the ops fits."""

_SEEDS_APART = 1 << 32
"""More than any seed that people choose, so that runs of different seeds differ."""


def search_anywhere(
    problem: Problem,
    stop: Stop,
    rule: LoadRule = PAPER,
    seed: int = 0,
    solver: str = "HiGHS",
    report: Report = lambda _: None,
    partition: Partition | None = None,
    op_bytes: IntArray | None = None,
    accepts: Accepts | None = None,
) -> Incumbent:
    """Find the placement with the least maximum load; devices need not be contiguous (section 5.2).

    The DP's contiguous partition is annealed by levels, and integer programs continue from the
    result: first the contiguous one, for a while, then the one without its rows. Meanwhile, short
    annealings follow each other on another core, most from the best placement so far.

    Parameters
    ----------
    partition : Partition, optional
        Where to begin, if that is known.
    op_bytes : int array, shape (n_ops,), optional
        What each op counts towards memory; its variables and outputs by default.
    accepts : callable, optional
        Whether a placement of the ops fits. Then that count only guides the search.
    """
    graph = build_hypergraph(problem, rule, op_bytes)
    if partition is None:
        partition = find_fitting(problem, rule, seed=seed, stopped=stop.within(DP_SHARE))
    search = _Search(problem, graph, stop, report, accepts)
    search.offer(unit_devices(problem, partition.device))
    start = _place_units(problem, graph, partition.device)
    search.offer(start)
    search.offer_all()
    if graph.unit_us.size < SMALL or search.device is None:
        return _with_note(search.solve((), solver), partition)
    start = search.device
    search.offer(anneal_by_levels(search.graph_around(start), start, stop, seed))

    def again(number: int, stopped: Callable[[], bool]) -> IntArray:
        apart = seed + number * _SEEDS_APART
        if number % EVERY == 0:
            return anneal(search.graph_around(start), start, stopped, apart)
        best = start if search.device is None else search.device
        share = np.random.default_rng(apart).random()
        run = refine if number % EVERY == 2 else anneal_by_levels
        return run(search.graph_around(best, share), best, stopped, apart)

    with repeated_aside(again, stop, search.offer) as take_others:
        _offer_contiguous(search, partition, stop.within(CONTIGUOUS_SHARE), take_others)
        return _with_note(search.solve((), solver, take_others), partition)


def search_contiguous(
    problem: Problem,
    stop: Stop,
    rule: LoadRule = PAPER,
    seed: int = 0,
    solver: str = "",
    report: Report = lambda _: None,
    partition: Partition | None = None,
    op_bytes: IntArray | None = None,
    accepts: Accepts | None = None,
) -> Incumbent:
    """Find the least maximum load if each device has contiguous forward and backward ops (Fig. 6).

    Contiguous as in definition 3.1: devices may depend on each other both ways, which the DP does
    not allow. CP-SAT proves in seconds what HiGHS does in minutes. ``partition``, ``op_bytes`` and
    ``accepts`` are those of :func:`search_anywhere`.
    """
    search = _Search(problem, build_hypergraph(problem, rule, op_bytes), stop, report, accepts)
    if partition is None:
        partition = find_fitting(problem, rule, seed=seed, stopped=stop.within(DP_SHARE))
    _begin_contiguous(search, partition)
    return _with_note(search.solve(find_passes(problem), solver or quickest_solver()), partition)


def _begin_contiguous(search: _Search, partition: Partition) -> None:
    """Offer the DP's partition to a contiguous search, and few placements otherwise."""
    device = unit_devices(search.problem, partition.device)
    if is_contiguous(search.problem, device[search.problem.unit]):
        search.offer(device)
    search.offer_all(partial(is_contiguous, search.problem))


def _offer_contiguous(
    search: _Search, partition: Partition, stop: Stop, take_others: Callable[[], None]
) -> None:
    """Offer the answer of the contiguous search to another, unless it cannot be better."""
    bound_us = 0.0

    def note(found: Incumbent) -> None:
        nonlocal bound_us
        bound_us = found.bound_us

    useful = stop.when(lambda: bound_us >= search.found.objective_us)
    contiguous = _Search(search.problem, search.graph, useful, note, search.accepts)
    _begin_contiguous(contiguous, partition)
    contiguous.solve(find_passes(search.problem), quickest_solver(), take_others)
    if contiguous.device is not None:
        search.offer(contiguous.device)


def _with_note(found: Incumbent, partition: Partition) -> Incumbent:
    """Add a note on how the first partition was found, unless it was the exact one."""
    if found.why or found.proven or not partition.note:
        return found
    return replace(found, why=f"began with a partition: {partition.note}")


class _Search:
    """The best of a search whose placements are by unit of a hypergraph."""

    def __init__(
        self,
        problem: Problem,
        graph: Hypergraph,
        stop: Stop,
        report: Report,
        accepts: Accepts | None = None,
    ) -> None:
        self.problem, self.graph, self._stop, self.accepts = problem, graph, stop, accepts
        self._counts_samples = samples_matter(problem, graph.rule)
        fastest = np.argmin(graph.unit_us.sum(axis=2), axis=1)
        first = Incumbent(fastest[problem.unit], np.inf, _least_us(graph))
        self._best = Best(first, lambda found, _: report(found), BETTER)
        self.device: IntArray | None = None  # of each unit, in the best placement that fits

    @property
    def found(self) -> Incumbent:
        """The best placement so far."""
        return self._best.found

    def time_us(self, device: IntArray, most_us: float = np.inf) -> float:
        """Return the time per sample of a placement of the units, slowed down to fit.

        Returns inf if a unit may not be on its device, if memory does not suffice at any pace, or
        if the time is not below a limit.
        """
        graph, problem = self.graph, self.problem
        if not np.isfinite(graph.unit_us[np.arange(len(device)), device]).all():
            return np.inf
        load_us = time_per_sample_us(graph, device)
        if self.accepts is None:
            fits = bool((held_bytes(graph, device) <= graph.capacity_bytes).all())
        else:
            fits = load_us < most_us and self.accepts(device[problem.unit])
        if not fits:
            return np.inf
        if not self._counts_samples or load_us >= most_us:
            return load_us
        return max(
            load_us, find_pace_us(problem, device[problem.unit], graph.rule, most_us=most_us)
        )

    def offer(self, device: IntArray) -> None:
        """Keep a placement of the units if it is better."""
        us = self.time_us(device, self.found.objective_us)
        if np.isfinite(us):
            placed = device[self.problem.unit]
            if self._best.offer(replace(self._best.found, device=placed, objective_us=us)):
                self.device = device

    def offer_all(self, accepts: Callable[[IntArray], bool] = lambda _: True) -> None:
        """If samples matter, offer all placements that are accepted, unless they are many."""
        n_units, n_devices = self.graph.n_units, self.graph.n_devices
        if self._counts_samples and n_devices**n_units <= FEW_PLACEMENTS:
            for placed in product(range(n_devices), repeat=n_units):
                device, best_us = np.array(placed), self.found.objective_us
                if self._stop():
                    break
                is_faster = time_per_sample_us(self.graph, device) < best_us
                if is_faster and accepts(device[self.problem.unit]):
                    self.offer(device)

    def graph_around(self, device: IntArray, share: float = 1.0) -> Hypergraph:
        """Return the graph in which to search around a placement that fits.

        It counts the samples in flight of that placement, and has room for it. By the paper's sum,
        a placement may need more than when it is simulated. So if that decides, only a share of the
        outputs counts.
        """
        problem, graph = self.problem, self.graph
        if self.accepts is not None and share < 1:
            held = problem.unit_persistent_bytes[:, None]
            mixed = held + share * np.maximum(graph.unit_bytes - held, 0)
            graph = replace(graph, unit_bytes=mixed.astype(np.int64))
        if self._counts_samples:
            rule, place_us = graph.rule, self.time_us(device)
            samples = count_samples(problem, device[problem.unit], rule, place_us)
            graph = with_samples(problem, graph, samples)
        elif self.accepts is None:
            return graph
        room = np.maximum(graph.capacity_bytes, held_bytes(graph, device))
        return replace(graph, capacity_bytes=room)

    def solve(
        self,
        passes: Sequence[Pass],
        solver: str,
        take_others: Callable[[], None] = lambda: None,
    ) -> Incumbent:
        """Continue with integer programs; meanwhile, take the results of other searches.

        The first counts one sample; its bound holds for all placements, but what it finds need not
        fit. If samples matter, each further program counts those of the best placement so far, as
        long as that finds better ones.
        """
        stop = self._stop.within(ONE_SAMPLE_SHARE) if self._counts_samples else self._stop
        found = self._solve_one(self.graph, passes, solver, take_others, stop)
        while self._counts_samples and self.device is not None:
            if found.proven or self._stop():
                break
            before_us, limited = found.objective_us, self.graph_around(self.device)
            found = self._solve_one(limited, passes, solver, take_others, self._stop)
            if found.objective_us >= before_us:
                break
        return found

    def _solve_one(
        self,
        graph: Hypergraph,
        passes: Sequence[Pass],
        solver: str,
        take_others: Callable[[], None],
        stop: Stop,
    ) -> Incumbent:
        """Solve one program."""
        best = self._best.found
        if best.proven or stop():
            return best
        own: IntArray | None = None

        def write() -> ImprovingProgram:
            scale_us = _scale_us(graph, self._best.found)
            roomy = graph
            if self.device is not None:  # it fits, whatever the count says
                held = held_bytes(graph, self.device)
                roomy = replace(graph, capacity_bytes=np.maximum(graph.capacity_bytes, held))
            program = write_program(roomy, scale_us, passes)
            start = None if self.device is None else write_solution(program, self.device)

            def offer(values: FloatArray) -> None:
                nonlocal own
                own = read_placement(program, values)
                self.offer(own)

            return ImprovingProgram(program.model, start, scale_us, offer, graph is self.graph)

        answer = improve_by_program(self._best, write, stop, solver, take_others)
        best = self._best.found
        why = f"{solver}: {answer.why}" if answer.why else ""
        most_us = best.objective_us * (1 + PROVEN_GAP)
        if answer.status == "optimal" and own is not None and self.time_us(own, most_us) < most_us:
            # Of equals, take the program's own: it does not depend on annealing's progress.
            return replace(best, device=own[self.problem.unit], why=why)
        return replace(best, why=why)


def _scale_us(graph: Hypergraph, found: Incumbent) -> float:
    """Return the approximate size of a load, which keeps the model's numbers in a good range."""
    if np.isfinite(found.objective_us) and found.objective_us > 0:
        return found.objective_us
    return float(np.where(np.isfinite(graph.unit_us), graph.unit_us, 0.0).sum()) or 1.0


def _least_us(graph: Hypergraph) -> float:
    """Bound the load from below: the largest unit, or an equal share of all work at its fastest."""
    every_us = graph.unit_us.sum(axis=2)
    least_us = every_us.min(axis=1)
    gpus_only = np.isinf(every_us[:, graph.price < 0]).all(axis=1)
    shares = least_us.sum() / graph.n_devices, least_us[gpus_only].sum() / len(graph.paying)
    return float(max(least_us.max(), *shares))


def _place_units(problem: Problem, graph: Hypergraph, partition: IntArray) -> IntArray:
    """Take each unit's device from the DP, moved where allowed; if too full, place by memory alone.

    By memory alone, the largest unit goes to the device with the most free memory, and so on.
    """
    device = unit_devices(problem, partition)
    refused = ~problem.unit_allowed[np.arange(graph.n_units), device]
    device[refused] = np.argmin(graph.unit_us[refused].sum(axis=2), axis=1)
    if (held_bytes(graph, device) <= graph.capacity_bytes).all():
        return device
    free_bytes = graph.capacity_bytes.copy()
    for unit in np.argsort(-graph.unit_bytes.max(axis=1), kind="stable"):
        device[unit] = np.argmax(np.where(problem.unit_allowed[unit], free_bytes, -np.inf))
        free_bytes[device[unit]] -= graph.unit_bytes[unit, device[unit]]
    return device
