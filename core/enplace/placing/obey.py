"""Repair plans that exceed the budgets of constraints on a whole plan, unknown to placers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from enplace.compiling import kernel
from enplace.errors import PlanError
from enplace.linear import ModelBuilder, give_to_highs
from enplace.machine import simulate
from enplace.machine.check_claims import check_claims
from enplace.text import count, finite
from enplace.values.arrays import BoolArray, FloatArray, IntArray
from enplace.values.constraints import Budget
from enplace.values.plan import Plan, check_devices
from enplace.values.problem import STEP_TIME, Problem

CHUNKS = 16
"""Parts of the units that must move back which are tried where the plan has them."""

PASSES = 3
MOST_NODES, GAP = 1000, 0.05
"""When the search for the cheapest moves that keep all budgets ends."""


def known_to_placers(problem: Problem) -> Problem:
    """Return the problem without constraints on a whole plan."""
    kept = problem.constraints.only(lambda kind: not kind.is_checked)
    if kept == problem.constraints:
        return problem
    return replace(problem, constraints=kept)


def obey(problem: Problem, plan: Plan, chunks: int = CHUNKS) -> Plan:
    """Move units until a plan keeps the constraints on a whole plan; the best of several ways.

    First all units that matter go where the constraints want them; then parts of them, one after
    another, go back to where the plan has them, as long as that helps. If none of these ways keeps
    all constraints, an integer program finds the moves. Replicas and recomputation stay.

    Parameters
    ----------
    chunks : int
        Number of such parts.

    Raises
    ------
    PlanError
        If the plan breaks another constraint, or no plan that keeps all was found.
    """
    budgets = [budget for kind in problem.constraints for budget in kind.budgets(problem)]
    if budgets:
        check_devices(problem, plan)
    if all(budget.spent(plan.device) <= budget.most for budget in budgets):
        return plan
    repair = _Repair(problem, plan, budgets)
    best, least = None, (True, np.inf)
    stays = np.full(problem.n_units, -1.0)
    for keep in _ways(problem, plan, stays, chunks):
        mended = repair.moved(keep)
        cost = (True, np.inf) if mended is None else _cost(problem, mended)
        if mended is not None and (best is None or cost < least):
            best, least = mended, cost
            stays[keep > 0] = 2.0
    best = best or repair.solved()
    moved = count(int(np.count_nonzero(best.device != plan.device)), "op")
    note = f"{moved} moved back for the constraints on the whole plan"
    return best.with_notes(f"{note}; before that: {plan.note}" if plan.note else f"{note}.")


def _ways(problem: Problem, plan: Plan, stays: FloatArray, chunks: int) -> Iterator[FloatArray]:
    """Yield which units to leave where they are if possible: none, all, and parts of them.

    Yields
    ------
    float array, shape (n_units,)
        Units with a higher number stay if others can move instead; below 0, they go anyway.

    Parameters
    ----------
    stays : float array, shape (n_units,)
        Those of the best way so far.
    """
    yield stays.copy()
    yield _unit_us(problem, plan)
    first = np.full(problem.n_units, len(plan.position))
    np.minimum.at(first, problem.unit, plan.position)
    for part in np.array_split(np.argsort(first), min(chunks, problem.n_units)):
        keep = stays.copy()
        keep[part] = np.maximum(keep[part], 1.0)
        yield keep


def _unit_us(problem: Problem, plan: Plan) -> FloatArray:
    run_us = problem.time_us[np.arange(len(plan.device)), plan.device]
    time_us: FloatArray = np.bincount(problem.unit, run_us).astype(np.float64)
    return time_us


def _cost(problem: Problem, plan: Plan) -> tuple[bool, float]:
    """Return whether a plan exceeds memory, and its value."""
    if plan.objective == STEP_TIME:
        schedule = simulate(problem, plan)
        return not schedule.fits, schedule.makespan_us
    value_us = finite(check_claims(problem, plan).value_us)
    return False, np.inf if value_us is None else value_us


@dataclass(frozen=True, eq=False)
class _Repair:
    """Moves the units of a plan; it looks at all budgets at once."""

    problem: Problem
    plan: Plan
    budgets: list[Budget]

    @cached_property
    def start(self) -> IntArray:
        """The device of each unit in the plan."""
        device = np.zeros(self.problem.n_units, dtype=np.int64)
        device[self.problem.unit] = self.plan.device
        return device

    @cached_property
    def most(self) -> FloatArray:
        return np.array([budget.most for budget in self.budgets], dtype=np.float64)

    @cached_property
    def spends(self) -> FloatArray:
        """What each unit spends on each device; shape (n_units, n_devices, n_budgets)."""
        ops = np.stack([budget.spends for budget in self.budgets], axis=2)
        units = np.zeros((self.problem.n_units, *ops.shape[1:]))
        np.add.at(units, self.problem.unit, ops)
        return units

    @cached_property
    def allowed(self) -> BoolArray:
        """Where a unit may go: the first device of replicas, and only if it can run on all."""
        allowed = self.problem.unit_allowed.copy()
        for first, *copies in self.plan.replicas:
            runs = np.isfinite(self.problem.time_us[:, copies]).all(axis=1)
            allowed[self.problem.unit[~runs], first] = False
            allowed[:, copies] = False
        return allowed

    def moved(self, keep: FloatArray) -> Plan | None:
        """Return the plan with the moves that are found one unit at a time; None if too few."""
        device = self._move(keep)
        return self._with(device) if (self._spent(device) <= self.most).all() else None

    def _move(self, keep: FloatArray) -> IntArray:
        device = self.start.copy()
        order = np.argsort(keep, kind="stable")
        move_units(self.spends, self.allowed, device, order, keep < 0, self.most)
        return device

    def solved(self) -> Plan:
        """Find the moves of least time that keep all budgets.

        Raises
        ------
        PlanError
            If there are none, or none were found.
        """
        unit, device = np.nonzero(self.allowed)
        time_us = _unit_us(self.problem, self.plan)
        cost = (device != self.start[unit]) * (time_us[unit] / max(time_us.max(), 1.0) + 1e-3)
        program = ModelBuilder()
        goes = program.variables(len(unit), upper=1.0, integral=True, cost=cost)
        program.sums(len(self.start), [(unit, 1.0, goes)], lower=1.0, upper=1.0)
        budget = np.arange(len(self.most))
        spends = self.spends[unit, device]
        program.sums(len(budget), [(budget, spends, goes[:, None])], upper=self.most)
        solver = give_to_highs(program.model())
        solver.setOptionValue("mip_max_nodes", MOST_NODES)
        solver.setOptionValue("mip_rel_gap", GAP)
        solver.run()
        found, is_taken = self.start.copy(), np.array(solver.getSolution().col_value) > 0.5
        if is_taken.any():
            found[unit[is_taken]] = device[is_taken]
            if (self._spent(found) <= self.most).all():
                return self._with(found)
        spent = self._spent(self._move(np.full(len(self.start), -1.0)))
        excess = next(
            budget.says(used)
            for budget, used in zip(self.budgets, spent.tolist(), strict=True)
            if used > budget.most
        )
        if solver.modelStatusToString(solver.getModelStatus()) != "Infeasible":
            raise PlanError(f"{excess}; a search for other plans found none; change a constraint")
        others = "replicas or other constraints" if self.plan.replicas else "other constraints"
        raise PlanError(f"{excess}, and {others} keep them there; change one of the two")

    def _spent(self, device: IntArray) -> FloatArray:
        spent: FloatArray = self.spends[np.arange(len(device)), device].sum(axis=0)
        return spent

    def _with(self, device: IntArray) -> Plan:
        return replace(self.plan, device=device[self.problem.unit], subgraph=None)


@kernel
def move_units(
    spends: FloatArray,
    allowed: BoolArray,
    device: IntArray,
    order: IntArray,
    anyway: BoolArray,
    most: FloatArray,
) -> None:  # pragma: no cover - compiled
    """Move one unit after another to where all budgets together are exceeded least.

    Parameters
    ----------
    device : int array, shape (n_units,)
        Where each unit is; it is changed.
    order : int array, shape (n_units,)
        The units to move, those that go anyway first. The others move only while a budget is
        exceeded.
    anyway : bool array, shape (n_units,)
        Units that also move to spend less if nothing is exceeded.
    """
    n_units, n_devices, n_budgets = spends.shape
    spent = np.zeros(n_budgets)
    for unit in range(n_units):
        spent += spends[unit, device[unit]]
    for _ in range(PASSES):
        for unit in order:
            here = best = device[unit]
            least, least_spent = np.inf, np.inf
            for i in range(-1, n_devices):  # first where it is
                there = here if i < 0 else i
                if i >= 0 and not allowed[unit, there]:
                    continue
                over = total = 0.0
                for b in range(n_budgets):
                    used = spent[b] - spends[unit, here, b] + spends[unit, there, b]
                    over += max(0.0, used - most[b])
                    total += used
                if i < 0 and over == 0.0 and not anyway[unit]:
                    return
                if over < least or (over == least and total < least_spent):
                    least, least_spent, best = over, total, there
                if i < 0 and not anyway[unit]:
                    least_spent = -np.inf
            spent += spends[unit, best] - spends[unit, here]
            device[unit] = best
