"""The plans that others are compared with: an expert's, and what TensorFlow does alone."""

from __future__ import annotations

from collections.abc import Callable

from enplace.bounds.proofs import Proof
from enplace.errors import EnplaceError
from enplace.placing.options import PlaceOptions
from enplace.placing.run import place
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule

EXPERT, ALONE = "expert", "single"
TITLES = {EXPERT: "an expert's plan", ALONE: "TensorFlow alone: everything on one GPU"}


def _never() -> bool:
    return False


def reference_schedule(
    problem: Problem, method: str, cancelled: Callable[[], bool] = _never
) -> Schedule | None:
    """Return the schedule of a method's plan; None if it has none, or if cancelled."""
    options = PlaceOptions(cancelled=cancelled)
    options.proofs.add(problem, Proof(0.0))  # nobody asks how good this plan is
    try:
        return place(problem, method, options=options).schedule
    except EnplaceError:
        return None


def reference_schedules(problem: Problem) -> dict[str, Schedule]:
    """Return the schedules of all such plans that there are, by what they are.

    TensorFlow alone knows nothing of the constraints.
    """
    free = Problem(problem.measured_profile, problem.cluster)
    found = {
        TITLES[EXPERT]: reference_schedule(problem, EXPERT),
        TITLES[ALONE]: reference_schedule(free, ALONE),
    }
    return {title: schedule for title, schedule in found.items() if schedule is not None}
