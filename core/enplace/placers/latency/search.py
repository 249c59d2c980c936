"""The least latency by annealing and integer programming (Figs. 3 and 4)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from enplace.machine.latency import latency_us
from enplace.machine.loads import send_us
from enplace.placers.latency.anneal import anneal, places_us
from enplace.placers.latency.greedy import greedy_places
from enplace.placers.latency.groups import Groups, devices_of, groups_of, op_places
from enplace.placers.latency.program import Program, latency_program, placement_of, values_of
from enplace.placers.max_load.contract import whole_lacking_bytes
from enplace.placers.max_load.dp import split_in_order
from enplace.solvers.background import Beside, Limits
from enplace.solvers.milp import FAR_OFF, ROUNDING, Answer, solve_milp
from enplace.values.problem import Problem
from enplace.values.profile import IntArray

STEPS = 300_000
"""Annealing steps of one run."""

SMALL = 200
"""With fewer choices of a place for an op, the program alone is done sooner."""

MOST_CHOICES = 50_000
"""With more choices of a piece for an op, a program takes longer to write down than it is worth."""

PROVEN_GAP = 1e-5
"""Relative difference to the bound that counts as none: solvers round."""

_SEEDS_APART = 1 << 32
"""Further than seeds that people give, so that runs of different seeds differ."""


@dataclass(frozen=True, eq=False)
class Found:
    """A placement and what is known about it.

    Attributes
    ----------
    device : int array, shape (n_ops,)
    piece : int array, shape (n_ops,)
        Pieces of each accelerator in each pass, in order; see
        :func:`~enplace.machine.latency.latency_us`.
    latency_us : float
        inf if nothing that fits was found.
    bound_us : float
        No placement that fits and has so many pieces has less.
    why : str
        What a person should know about the solver; mostly empty.
    """

    device: IntArray
    piece: IntArray
    latency_us: float
    bound_us: float
    why: str = ""

    @property
    def proven(self) -> bool:
        """Whether no placement that fits and has so many pieces is better."""
        found = bool(np.isfinite(self.latency_us))
        return found and self.latency_us <= self.bound_us * (1 + PROVEN_GAP)


def greedy_split(problem: Problem) -> IntArray:
    """Device of each op by the greedy baseline of section 7; shape (n_ops,)."""
    groups = groups_of(problem)
    place = greedy_places(groups)
    able = groups.allowed[np.arange(groups.n_groups), place]
    # What depends on each other both ways but is pinned apart cannot be together anywhere.
    place[~able] = np.argmax(groups.allowed[~able], axis=1)
    return devices_of(problem, op_places(groups, place))


def best_latency(
    problem: Problem, limits: Limits[Found], q: int = 1, seed: int = 0, solver: str = "HiGHS"
) -> Found:
    """The placement with the least latency.

    The greedy split is annealed, and the integer program goes on from that. Beside it, on another
    core, annealing starts again and again.

    Parameters
    ----------
    q : int
        Contiguous pieces of each accelerator in each pass: 1 for Fig. 3, more for Fig. 4.
    """
    deadline_s = time.monotonic() + limits.seconds

    def late() -> bool:
        return limits.cancelled() or time.monotonic() > deadline_s

    groups = groups_of(problem)
    start = np.zeros((groups.n_groups, 2), dtype=np.int64)
    start[:, 0] = greedy_places(groups)
    search = _Search(problem, groups, limits, q)
    search.offer(start)
    split = _pipeline_split(problem, groups, late)
    if search.offer(split):
        start = split
    if groups.op_us.size < SMALL or not np.isfinite(search.found.latency_us):
        return search.solved(deadline_s, solver)
    search.offer(anneal(groups, start, 1, STEPS, late, seed))

    def again(number: int, stopped: Callable[[], bool]) -> IntArray:
        # In turn with several pieces and as if only one were wanted, so that several do not end
        # up worse: what is good with one is hard to come upon with more.
        turn, pieces = (number, q) if q == 1 else ((number + 1) // 2, q if number % 2 else 1)
        return anneal(groups, start, pieces, STEPS, stopped, seed + turn * _SEEDS_APART)

    with Beside(again, late) as beside:
        return search.solved(deadline_s, solver, beside)


def _pipeline_split(problem: Problem, groups: Groups, stopped: Callable[[], bool]) -> IntArray:
    """Places of the split with the least largest load along one order, a baseline of section 7."""
    cluster = problem.cluster
    place_of = np.full(cluster.n_devices, groups.cpu)
    place_of[cluster.gpus] = np.arange(len(cluster.gpus))
    device = split_in_order(problem, stopped=stopped).device
    place = np.zeros((groups.n_groups, 2), dtype=np.int64)
    # The last op of a group decides, should the split have it on several devices.
    place[groups.group, 0] = place_of[device[groups.op]]
    return place


def _nothing() -> Iterator[IntArray]:
    return iter(())


class _Search:
    """The best placement so far, which only gets better."""

    def __init__(self, problem: Problem, groups: Groups, limits: Limits[Found], q: int) -> None:
        self._problem, self._groups, self._limits, self._q = problem, groups, limits, q
        n_ops = problem.profile.n_ops
        anywhere = np.argmin(np.where(problem.unit_allowed, 0, 1), axis=1)[problem.unit]
        self.found = Found(anywhere, np.zeros(n_ops, dtype=np.int64), np.inf, 0.0)
        self._slot = self.found.piece
        self._place: IntArray | None = None

    def offer(self, place: IntArray) -> bool:
        """Keep places of groups, shape (n_groups, 2), if they are better; whether they are."""
        groups = self._groups
        held = np.bincount(place[:, 0], groups.group_bytes, len(groups.capacity_bytes))
        allowed = groups.allowed[np.arange(groups.n_groups), place[:, 0]].all()
        if not allowed or (held > groups.capacity_bytes).any():
            return False
        if places_us(groups, place, self._q) >= self.found.latency_us * (1 - 1e-9):
            return False
        of_op = op_places(groups, place)
        better = self._keep(devices_of(self._problem, of_op[:, 0]), of_op[:, 1])
        if better:
            self._place, self._slot = of_op[:, 0], of_op[:, 1]
        return better

    def _keep(self, device: IntArray, piece: IntArray) -> bool:
        """Keep a placement if the evaluator finds it better."""
        us = latency_us(self._problem, device, piece)
        better = us < self.found.latency_us * (1 - 1e-9)
        if better:
            self._tell(Found(device, piece, us, self.found.bound_us))
        return better

    def _tell(self, found: Found) -> None:
        self.found = found
        self._limits.report(found)

    def solved(
        self,
        deadline_s: float,
        solver: str,
        beside: Callable[[], Iterator[IntArray]] = _nothing,
    ) -> Found:
        """Go on with the integer program; meanwhile ``beside`` has places now and then."""
        choices = self._groups.op_us.size * self._q
        if choices > MOST_CHOICES:
            why = f"{choices:,} choices are too many for the integer program: annealing alone"
            return replace(self.found, why=why)
        seconds = deadline_s - time.monotonic()
        if self._limits.cancelled() or seconds <= 0:
            return self.found
        start, enough_us = None, _serial_us(self._problem)
        if np.isfinite(self.found.latency_us):
            enough_us = max(1.001 * self.found.latency_us, 1e-3)
        program = latency_program(self._problem, self._q, enough_us)
        if self._place is not None:
            unit_place = np.zeros(self._problem.n_units, dtype=np.int64)
            unit_place[self._problem.unit] = self._place
            start = values_of(program, self._problem, unit_place, self._slot)

        def stopped() -> bool:
            for place in beside():
                self.offer(place)
            return self._limits.cancelled()

        def take(answer: Answer) -> None:
            self._take(program, answer)

        answer = solve_milp(program.model, start, seconds, stopped, take, solver=solver)
        take(answer)
        best = self.found
        far_off = enough_us > FAR_OFF * best.latency_us
        if answer.status == "optimal" and not best.proven and far_off:
            return self.solved(deadline_s, solver, beside)
        why = f"{solver}: {answer.why}" if answer.why else ""
        return Found(best.device, best.piece, best.latency_us, best.bound_us, why)

    def _take(self, program: Program, answer: Answer) -> None:
        if answer.values is not None:
            place, piece = placement_of(program, answer.values, self._problem)
            device = devices_of(self._problem, place[self._problem.unit])
            # To a solver, a little more than there is room for still fits.
            if whole_lacking_bytes(self._problem, device) == 0:
                self._keep(device, piece)
        best = self.found
        bound_us = min((answer.bound - ROUNDING) * program.scale_us, best.latency_us)
        if bound_us > best.bound_us:
            self._tell(Found(best.device, best.piece, best.latency_us, bound_us))


def _serial_us(problem: Problem) -> float:
    """No latency is more, of any placement: everything one after the other, sent everywhere."""
    work = np.where(np.isfinite(problem.time_us), problem.time_us, 0.0).max(axis=1).sum()
    ends = problem.profile.n_tensors + problem.profile.n_edges
    return float(work + send_us(problem).max(initial=0.0) * ends) + 1.0
