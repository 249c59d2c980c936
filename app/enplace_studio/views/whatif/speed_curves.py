"""The step time over speeds, GPUs, memory or the batch (Pesto's Fig. 8). No Qt.

Over speeds, plans are simulated as they are. Over the others, methods make a new plan for each
value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace.text import count, factor
from enplace.values.batch import with_batch
from enplace.values.cluster_variants import with_gpus, with_memory
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule
from enplace_studio.explain.pipelines import simulate_kind
from enplace_studio.model.open_project import OpenProject, PlanEntry

FACTORS = (0.25, 0.35, 0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0)
MOST_PLANS = 4
QUICK, SEARCH = ("expert", "heft"), "enplace"
METHODS = (*QUICK, SEARCH)
"""The methods that make new plans; the last searches, and starts from the plan before."""

LIMIT_S = 2.0
"""Time for each new plan of the method that searches."""


@dataclass(frozen=True)
class Axis:
    """What is swept.

    Attributes
    ----------
    title : str
    values, ticks : tuple of float
        The values to try, rising, and those to write below the axis.
    text, tick : callable
        Show a value in a sentence, and below the axis.
    change : callable or None
        Returns the problem for a value; None for speeds, which :class:`OpenProject` scales.
    """

    title: str
    values: tuple[float, ...]
    ticks: tuple[float, ...]
    text: Callable[[float], str]
    tick: Callable[[float], str]
    change: Callable[[Problem, float], Problem] | None = None


MICROBATCHES = Axis(
    "the number of micro-batches",
    (1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
    (1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
    lambda n: count(int(n), "sample"),
    lambda n: f"{n:.0f}",
)
_TICKS = (0.25, 0.5, 1.0, 2.0, 4.0)
_GPUS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
COMPUTE = Axis("the compute speed", FACTORS, _TICKS, factor, factor)
LINKS = Axis("the link speed", FACTORS, _TICKS, factor, factor)
SPEEDS = (COMPUTE, LINKS)
GPUS = Axis(
    "the number of GPUs",
    _GPUS,
    _GPUS,
    lambda n: count(int(n), "GPU"),
    lambda n: f"{n:.0f}",
    lambda problem, n: replace(problem, cluster=with_gpus(problem.cluster, int(n))),
)
MEMORY = Axis(
    "the memory of the GPUs",
    _TICKS,
    _TICKS,
    factor,
    factor,
    lambda problem, times: replace(problem, cluster=with_memory(problem.cluster, times)),
)
BATCH = Axis(
    "the batch size",
    _TICKS,
    _TICKS,
    lambda times: f"{factor(times)} the batch",
    factor,
    lambda problem, times: replace(
        problem, measured_profile=with_batch(problem.measured_profile, times)
    ),
)


@dataclass(frozen=True, eq=False)
class Curve:
    """The step time of a plan or method for each value of an axis, in us.

    NaN where it does not fit in memory, or is not known yet. Of a pipeline, it is the time per
    sample, and ``peak_bytes`` is the memory of the fullest device.
    """

    name: str
    steps_us: tuple[float, ...]
    peak_bytes: tuple[float, ...] = ()


def swept_plans(project: OpenProject) -> list[PlanEntry]:
    """Return the plans to sweep: the current one first, then the others as they are listed."""
    fitting = [entry for entry in project.plans if entry.cluster is None]
    return sorted(fitting, key=lambda entry: entry is not project.current)[:MOST_PLANS]


def find_curve(project: OpenProject, entry: PlanEntry, over: Axis) -> Curve | None:
    """Simulate a plan at every speed; the other speed stays as it is. None if it cannot run."""
    steps_us = []
    for value in over.values:
        scale = [*project.scale]
        scale[SPEEDS.index(over)] = value
        problem = replace(entry.schedule.problem, cluster=project.cluster.scaled(*scale))
        try:
            steps_us.append(simulate(problem, entry.plan).makespan_us)
        except EnplaceError:
            return None
    return Curve(entry.name, tuple(steps_us))


def find_pipeline_curve(schedule: Schedule, kind: str) -> Curve | None:
    """Simulate a plan as a pipeline of more and more samples; None if it has too many stages."""
    found = [simulate_kind(schedule, kind, int(n)) for n in MICROBATCHES.values]
    known = [each for each in found if not isinstance(each, int)]
    if len(known) < len(found):
        return None
    peaks = tuple(float(each.peak_bytes.max()) for each in known)
    return Curve(kind, tuple(each.mean_us for each in known), peaks)


def now(project: OpenProject, over: Axis) -> float:
    """Return where the project is on an axis."""
    if over in SPEEDS:
        return project.scale[SPEEDS.index(over)]
    return float(len(project.cluster.gpus)) if over is GPUS else 1.0


def swept_problems(project: OpenProject, over: Axis) -> list[Problem | None]:
    """Return the problem at each value of an axis, without constraints: they name devices.

    None where there is none, because a single GPU does not tell how several would be linked.
    """
    assert over.change is not None
    own = project.problem
    plain = Problem(own.measured_profile, project.cluster.scaled(*project.scale), splits=own.splits)
    found: list[Problem | None] = []
    for value in over.values:
        try:
            found.append(over.change(plain, value))
        except EnplaceError:
            found.append(None)
    return found
