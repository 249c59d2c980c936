"""Repair plans that break constraints which placers need not know: those on a whole plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from enplace.errors import PlanError
from enplace.machine import simulate
from enplace.machine.claims import check_claims
from enplace.text import count, finite
from enplace.values.plan import Plan, check_plan
from enplace.values.problem import STEP_TIME, Problem
from enplace.values.profile import FloatArray

CHUNKS = 16
"""Parts of the units that must move back which are tried where the plan has them."""


def known_to_placers(problem: Problem) -> Problem:
    """Return the problem without constraints on a whole plan."""
    kept = problem.constraints.only(lambda kind: not kind.is_checked)
    if kept == problem.constraints:
        return problem
    return replace(problem, constraints=kept)


def obey(problem: Problem, plan: Plan, chunks: int = CHUNKS) -> Plan:
    """Move units until a plan keeps the constraints on a whole plan; the best of several ways.

    First all units that matter go where the constraint wants them; then parts of them, one after
    another, go back to where the plan has them, as long as that helps.

    Parameters
    ----------
    chunks : int
        Number of such parts.

    Raises
    ------
    PlanError
        If no plan that was tried keeps them.
    """
    kinds = [kind for kind in problem.constraints if kind.is_checked]
    if not any(kind.check(problem, plan) for kind in kinds):
        return plan
    best, least, faults = None, (True, np.inf), list[PlanError]()
    stays = np.full(problem.n_units, -1.0)
    for keep in _ways(problem, plan, stays, chunks):
        mended = plan
        for kind in kinds:
            mended = replace(mended, device=kind.mend(problem, mended.device, keep))
        mended = replace(mended, replicas=(), recompute=(), pace_us=0.0, subgraph=None)
        try:
            check_plan(problem, mended)
        except PlanError as error:
            faults.append(error)
            continue
        cost = _cost(problem, mended)
        if best is None or cost < least:
            best, least = mended, cost
            stays[keep > 0] = 2.0
    if best is None:
        raise PlanError(
            f"{faults[0]}, and other constraints keep them there; change one of the two"
        )
    moved = count(int(np.count_nonzero(best.device != plan.device)), "op")
    return best.with_notes(plan.note, f"{moved} moved back for the constraints on the whole plan.")


def _ways(problem: Problem, plan: Plan, stays: FloatArray, chunks: int) -> Iterator[FloatArray]:
    """Yield which units to leave where they are if possible: none, all, and parts of them.

    Parameters
    ----------
    stays : float array, shape (n_units,)
        Those of the best way so far.
    """
    yield stays.copy()
    time_us = np.zeros(problem.n_units)
    run_us = problem.time_us[np.arange(len(plan.device)), plan.device]
    np.add.at(time_us, problem.unit, run_us)
    yield time_us
    first = np.full(problem.n_units, len(plan.position))
    np.minimum.at(first, problem.unit, plan.position)
    for part in np.array_split(np.argsort(first), min(chunks, problem.n_units)):
        keep = stays.copy()
        keep[part] = np.maximum(keep[part], 1.0)
        yield keep


def _cost(problem: Problem, plan: Plan) -> tuple[bool, float]:
    """Return whether a plan exceeds memory, and its value."""
    if plan.objective == STEP_TIME:
        schedule = simulate(problem, plan)
        return not schedule.fits, schedule.makespan_us
    value_us = finite(check_claims(problem, plan).value_us)
    return False, np.inf if value_us is None else value_us
