"""The least maximum load by annealing and integer programming (section 5.1.3, Fig. 6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from enplace.machine.loads import backward_ops, optimiser_ops
from enplace.placers.max_load.anneal import anneal
from enplace.placers.max_load.dp import Split, split_exactly
from enplace.placers.max_load.hypergraph import (
    Hypergraph,
    held_bytes,
    hypergraph_of,
    time_per_sample_us,
)
from enplace.placers.max_load.program import (
    Pass,
    Program,
    max_load_program,
    placement_of,
    values_of,
)
from enplace.solvers.background import Beside, Limits
from enplace.solvers.milp import CP_SAT, FAR_OFF, ROUNDING, Answer, solve_milp
from enplace.values.load_rule import USUAL, LoadRule
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import IntArray

SMALL = 200
"""With fewer choices of a device for a unit, the program alone is done sooner."""

DP_SHARE = 0.25
"""Share of the time that the dynamic program may take, whose split the others go on from."""

_SEEDS_APART = 1 << 32
"""Further than seeds that people give, so that runs of different seeds differ."""

PROVEN_GAP = 1e-5
"""Relative difference to the bound that counts as none: solvers round."""


@dataclass(frozen=True, eq=False)
class Found:
    """A placement and what is known about it.

    Attributes
    ----------
    device : int array, shape (n_ops,)
    load_us : float
        Load of the busiest device; inf if nothing that fits was found.
    bound_us : float
        No placement of this kind has a lower load.
    why : str
        What a person should know about the solver; mostly empty.
    """

    device: IntArray
    load_us: float
    bound_us: float
    why: str = ""

    @property
    def proven(self) -> bool:
        """Whether no placement of this kind is better."""
        return self.load_us <= self.bound_us * (1 + PROVEN_GAP)


def best_anywhere(
    problem: Problem,
    limits: Limits[Found],
    rule: LoadRule = USUAL,
    seed: int = 0,
    solver: str = "HiGHS",
) -> Found:
    """The placement with the least maximum load; devices need not be contiguous (section 5.2).

    The DP's contiguous split is annealed, and the integer program goes on from that. Beside it,
    on another core, annealing starts again and again: many short runs find more than a long one.
    """
    started = time.monotonic()
    graph = hypergraph_of(problem, rule)
    late = _after(started + limits.seconds, limits.cancelled)
    start_by = _after(started + DP_SHARE * limits.seconds, limits.cancelled)
    split = split_exactly(problem, rule, seed=seed, stopped=start_by)
    start = _start(problem, graph, split.device)
    search = _Search(problem, graph, limits)
    search.offer(start)
    if graph.unit_us.size < SMALL or not search.feasible(start):
        return _noting(search.solved((), limits.seconds, solver), split)
    search.offer(anneal(graph, start, late, seed))

    def again(number: int, stopped: Callable[[], bool]) -> IntArray:
        return anneal(graph, start, stopped, seed + number * _SEEDS_APART)

    with Beside(again, late) as beside:
        seconds = limits.seconds - (time.monotonic() - started)
        return _noting(search.solved((), seconds, solver, beside), split)


def _after(deadline_s: float, cancelled: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: cancelled() or time.monotonic() > deadline_s


def _nothing() -> Iterator[IntArray]:
    return iter(())


def best_contiguous(
    problem: Problem,
    limits: Limits[Found],
    rule: LoadRule = USUAL,
    seed: int = 0,
    solver: str = CP_SAT,
) -> Found:
    """The least maximum load if each device has contiguous forward and backward ops (Fig. 6).

    Contiguous as in definition 3.1: devices may still take turns, which the DP does not let them.
    CP-SAT proves in seconds what HiGHS does in minutes.
    """
    started = time.monotonic()
    graph, passes = hypergraph_of(problem, rule), passes_of(problem)
    search = _Search(problem, graph, limits)
    late = _after(started + DP_SHARE * limits.seconds, limits.cancelled)
    split = split_exactly(problem, rule, seed=seed, stopped=late)
    device = unit_device(problem, split.device)
    if all(contiguous_units(each, device, graph.n_devices) for each in passes):
        search.offer(device)
    seconds = limits.seconds - (time.monotonic() - started)
    return _noting(search.solved(passes, seconds, solver), split)


def _noting(found: Found, split: Split) -> Found:
    """Say how the split came about that the search went on from, where that was not exact."""
    if found.why or found.proven or not split.note:
        return found
    return replace(found, why=f"began with a split: {split.note}")


def passes_of(problem: Problem) -> list[Pass]:
    """The forward and the backward ops on the way of a sample, those that there are."""
    profile, backward = problem.profile, backward_ops(problem)
    return [
        _pass_of(problem, ops)
        for ops in (~backward, backward & ~optimiser_ops(problem))
        if ops[profile.edge_source[ops[profile.edge_op]]].any()
    ]


def _pass_of(problem: Problem, ops: BoolArray) -> Pass:
    profile = problem.profile
    order = profile.topological_order[ops[profile.topological_order]]
    place = np.full(profile.n_ops, -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    inside = ops[profile.edge_source] & ops[profile.edge_op]
    edges = np.stack([place[profile.edge_source[inside]], place[profile.edge_op[inside]]], axis=1)
    edges = np.unique(edges, axis=0)
    return Pass(problem.unit[order], edges[:, 0], edges[:, 1])


def contiguous_units(each: Pass, device: IntArray, n_devices: int) -> bool:
    """Whether no path of a pass leaves a device and returns to it (definition 3.1).

    Parameters
    ----------
    device : int array, shape (n_units,)
    """
    here = device[each.unit]
    left = np.zeros((len(here), n_devices), dtype=bool)
    for a, b in zip(each.source.tolist(), each.target.tolist(), strict=True):
        left[b] |= left[a]
        if here[a] != here[b]:
            left[b, here[a]] = True
    return not left[np.arange(len(here)), here].any()


class _Search:
    """The best placement so far, which only gets better."""

    def __init__(self, problem: Problem, graph: Hypergraph, limits: Limits[Found]) -> None:
        self._problem, self._graph, self._limits = problem, graph, limits
        fastest = np.argmin(graph.unit_us.sum(axis=2), axis=1)
        self._device: IntArray | None = None
        self.found = Found(fastest[problem.unit], np.inf, _least_us(graph))

    def feasible(self, device: IntArray) -> bool:
        """Whether units are where they may be, and devices have the memory."""
        allowed = np.isfinite(self._graph.unit_us[np.arange(len(device)), device]).all()
        fits = (held_bytes(self._graph, device) <= self._graph.capacity_bytes).all()
        return bool(allowed and fits)

    def offer(self, device: IntArray) -> None:
        """Keep a placement if it is better."""
        if not self.feasible(device):
            return
        load_us = time_per_sample_us(self._graph, device)
        if load_us < self.found.load_us * (1 - 1e-9):
            self._device = device
            self._tell(Found(device[self._problem.unit], load_us, self.found.bound_us))

    def _tell(self, found: Found) -> None:
        self.found = found
        self._limits.report(found)

    def solved(
        self,
        passes: Sequence[Pass],
        seconds: float,
        solver: str,
        beside: Callable[[], Iterator[IntArray]] = _nothing,
    ) -> Found:
        """Go on with the integer program; meanwhile ``beside`` has placements now and then."""
        if self.found.proven or self._limits.cancelled() or seconds <= 0:
            return self.found
        began = time.monotonic()
        start, scale_us = None, _scale_us(self._graph, self.found)
        program = max_load_program(self._graph, scale_us, passes)
        if self._device is not None:
            start = values_of(program, self._device)

        def stopped() -> bool:
            for device in beside():
                self.offer(device)
            return self._limits.cancelled()

        def take(answer: Answer) -> None:
            self._take(program, answer)

        left_s = seconds - (time.monotonic() - began)
        answer = solve_milp(program.model, start, left_s, stopped, take, solver=solver)
        take(answer)
        best, left_s = self.found, seconds - (time.monotonic() - began)
        if answer.status == "optimal" and not best.proven and scale_us > FAR_OFF * best.load_us:
            return self.solved(passes, left_s, solver, beside)
        device = best.device
        if answer.status == "optimal" and answer.values is not None:
            # Of equals the program's own, which does not depend on how far annealing came.
            own = placement_of(program, answer.values)
            if self.feasible(own):
                device = own[self._problem.unit]
        why = f"{solver}: {answer.why}" if answer.why else ""
        return Found(device, best.load_us, best.bound_us, why)

    def _take(self, program: Program, answer: Answer) -> None:
        if answer.values is not None:
            self.offer(placement_of(program, answer.values))
        best = self.found
        bound_us = min((answer.bound - ROUNDING) * program.scale_us, best.load_us)
        if bound_us > best.bound_us:
            self._tell(Found(best.device, best.load_us, bound_us))


def _scale_us(graph: Hypergraph, found: Found) -> float:
    """About the size of a load, so that the model's numbers are neither large nor small."""
    if np.isfinite(found.load_us) and found.load_us > 0:
        return found.load_us
    return float(np.where(np.isfinite(graph.unit_us), graph.unit_us, 0.0).sum()) or 1.0


def _least_us(graph: Hypergraph) -> float:
    """No load is lower: the largest unit's time, or all work shared evenly, where it is fastest."""
    every_us = graph.unit_us.sum(axis=2)
    least_us = every_us.min(axis=1)
    gpus_only = np.isinf(every_us[:, graph.price < 0]).all(axis=1)
    shares = least_us.sum() / graph.n_devices, least_us[gpus_only].sum() / len(graph.paying)
    return float(max(least_us.max(), *shares))


def unit_device(problem: Problem, device: IntArray) -> IntArray:
    """Device of each unit, of a placement that keeps units together."""
    of_unit = np.zeros(problem.n_units, dtype=np.int64)
    of_unit[problem.unit] = device
    return of_unit


def _start(problem: Problem, graph: Hypergraph, split: IntArray) -> IntArray:
    """The DP's split, its units moved where they may be; else the largest to the most room."""
    device = unit_device(problem, split)
    refused = ~problem.unit_allowed[np.arange(graph.n_units), device]
    device[refused] = np.argmin(graph.unit_us[refused].sum(axis=2), axis=1)
    if (held_bytes(graph, device) <= graph.capacity_bytes).all():
        return device
    room = graph.capacity_bytes.copy()
    for unit in np.argsort(-graph.unit_bytes, kind="stable"):
        device[unit] = np.argmax(np.where(problem.unit_allowed[unit], room, -np.inf))
        room[device[unit]] -= graph.unit_bytes[unit]
    return device
