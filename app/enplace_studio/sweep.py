"""The step time of plans over the speed of devices or links (Pesto's Fig. 8). No Qt."""

from __future__ import annotations

from dataclasses import dataclass, replace

from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace_studio.project import OpenProject, PlanEntry

FACTORS = (0.25, 0.35, 0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0)
COMPUTE, LINKS = 0, 1
"""What is swept: an index into :attr:`OpenProject.scale`."""
MOST_PLANS = 4


@dataclass(frozen=True, eq=False)
class Curve:
    """The step time of a plan for each of :data:`FACTORS`, in us."""

    entry: PlanEntry
    steps_us: tuple[float, ...]


def swept_plans(project: OpenProject) -> list[PlanEntry]:
    """Return the plans to sweep: the current one first, then the others as they are listed."""
    fitting = [entry for entry in project.plans if entry.cluster is None]
    return sorted(fitting, key=lambda entry: entry is not project.current)[:MOST_PLANS]


def find_curve(project: OpenProject, entry: PlanEntry, over: int) -> Curve | None:
    """Simulate a plan at every factor; the other speed stays as it is. None if it cannot run."""
    steps_us = []
    for factor in FACTORS:
        scale = [*project.scale]
        scale[over] = factor
        problem = replace(entry.schedule.problem, cluster=project.cluster.scaled(*scale))
        try:
            steps_us.append(simulate(problem, entry.plan).makespan_us)
        except EnplaceError:
            return None
    return Curve(entry, tuple(steps_us))
